"""Layers for packed prompts: the products of the library, and one kernel for each step between them.

Written as separate operations, norms, rotary embeddings, activations and the KV cache take as long as half of
the products of a small model. A layer is twelve launches here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear

from mapo.sampling.streamed.layers import WINDOWS, StreamedLayers, Swap, kind_of


def packed_layers_for(model: torch.nn.Module, kernels: Any) -> PackedLayers | None:
    """Return the layers of a model for packed prompts; None without the attention kernel."""
    if not hasattr(kernels, "attend_packed"):
        return None
    try:
        streams = importlib.import_module("mapo.sampling.streamed.kernels")
    except ImportError:
        return None
    return PackedLayers(model, streams, kernels.attend_packed, processors=1)


class PackedLayers(StreamedLayers):
    """Layers for the new ids of several prompts in one row. `attend` is the attention kernel for them."""

    def swaps(self) -> list[Swap]:
        """Return the modules to replace during a forward pass, each with its new forward."""
        head = self.model.get_output_embeddings()
        return [swap for swap in super().swaps() if swap[0] is not head]

    def _layer(self, at: int, layer: Any, next_norm: Any) -> Callable[..., torch.Tensor]:
        window = WINDOWS[kind_of(layer)](layer.self_attn)
        attention, after, mlp = layer.self_attn, layer.post_attention_layernorm, layer.mlp

        def forward(hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
            """Take and return [1, ids, size]."""
            cache = more["past_key_values"]
            x = self._normed(hidden_states, layer.input_layernorm)
            query = self._query(attention, x, cache.layers[at], cache.view, more["position_embeddings"])
            store, tiles = cache.layers[at], cache.view.tiles
            attended = self.attend(
                query, store.keys, store.values, tiles, scale=attention.scaling, window=window
            )
            parts = linear(attended.reshape(len(x), -1), attention.o_proj.weight)[None]
            total, x = self._add_norm(parts, hidden_states[0], after)
            x = self.streams.silu_product(linear(x, mlp.gate_proj.weight), linear(x, mlp.up_proj.weight))
            total, x = self._add_norm(linear(x, mlp.down_proj.weight)[None], total, next_norm)
            out = total[None]
            self._ready = (out, x)
            return out

        return forward

    def _query(self, attention: Any, x: torch.Tensor, store: Any, view: Any, cos_sin: Any) -> torch.Tensor:
        """Write the new keys and values to their slots and return the queries, [1, heads, ids, dim]."""
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        states = [linear(x, p.weight)[None] for p in projections]
        cos, sin = (c[0] for c in cos_sin)
        where = (store.keys, store.values, view.write_slots[0], view.positions.T)
        query: torch.Tensor = self.streams.turn(states, [p.bias for p in projections], cos, sin, *where)
        return query[:, :, 0].transpose(0, 1)[None]
