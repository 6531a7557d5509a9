"""Causal attention without a mask, for rows that are padded on the right.

For such rows transformers finds that no mask is needed, but only after it has looked for packed rows in the
position ids, which waits for the GPU. It does not look if it knows no mask for the attention implementation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mapo.local_model.layers import decoder_layers, evaluating

CAUSAL_ONLY = "causal_only"
"""The attention implementation "sdpa" under a name for which transformers builds no mask.

A model that is given this name ignores two-dimensional masks. A forward pass with it can be recorded as a
CUDA graph and keeps flash attention there; with "sdpa" a mask would be built.
"""
AttentionInterface.register(CAUSAL_ONLY, sdpa_attention_forward)

_MASKLESS: WeakKeyDictionary[nn.Module, dict[str, bool]] = WeakKeyDictionary()


@contextmanager
def without_mask(body: Any) -> Iterator[None]:
    """Inside the block, a transformer body builds no attention mask for its layers, if they need none.

    Use it around forward passes of right-padded rows. Only the config of the body is replaced: its layers
    read their own, so that they are not compiled again for a backward pass that recomputes them.
    """
    if not _needs_no_mask(body):
        yield
        return
    config = body.config
    body.config = copy.copy(config)
    body.config._attn_implementation = CAUSAL_ONLY
    try:
        yield
    finally:
        body.config = config


def _needs_no_mask(body: Any) -> bool:
    """Return whether transformers builds no mask for the layers, however long the rows are."""
    config = body.config
    windows = any(getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    kinds = set(getattr(config, "layer_types", None) or ())
    if windows or kinds - {"full_attention"} or config.sub_configs:  # a copy would share the sub-configs
        return False
    known = _MASKLESS.setdefault(body, {})
    implementation = config._attn_implementation
    if implementation not in known:
        known[implementation] = _layers_get_no_mask(body)
    return known[implementation]


@torch.no_grad()
def _layers_get_no_mask(body: Any) -> bool:
    """Return whether the layers get no mask for four tokens. They get one if their attention is not causal by
    itself ("eager"), or if the model adds something to the mask."""
    masks: list[object] = []

    def record(_: nn.Module, __: object, arguments: dict[str, Any]) -> None:
        masks.append(arguments.get("attention_mask", "not known"))

    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in decoder_layers(body)]
    try:
        with evaluating(body):
            ids = torch.arange(4, device=body.get_input_embeddings().weight.device)[None]
            body(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return bool(masks) and all(mask is None for mask in masks)
