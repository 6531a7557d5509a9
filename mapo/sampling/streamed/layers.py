"""Streamed layers: Llama-style decoder layers in few kernels, used to record decode steps of few rows.

A layer is eight kernel launches, nine if attention is split: the product of query, key and value; rotary
embedding and KV cache; attention; a product; residual and norm; the gated products; a product; residual and
the norm of the next layer. The weights are read in place, so training and saving are not affected and a graph
sees in-place updates of the weights. Models that are not fully supported (adapters, another activation, norms
of the queries, float32) are not changed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mapo.sampling.streamed.tiling import gated_tile, head_tile, product_tile, streamed_attention_cut

MAX_ROWS = 64  # with more rows, a product is no longer limited by reading its weights
Swap = tuple[torch.nn.Module, Callable[..., torch.Tensor]]

_MODULE = "transformers.models.{0}.modeling_{0}"
# The supported layers, with the window of their attention.
WINDOWS: dict[tuple[str, str], Callable[[Any], int | None]] = {
    (_MODULE.format("llama"), "LlamaDecoderLayer"): lambda _: None,
    (_MODULE.format("qwen2"), "Qwen2DecoderLayer"): lambda attention: attention.sliding_window,
    (_MODULE.format("mistral"), "MistralDecoderLayer"): lambda attention: attention.config.sliding_window,
}
_LINEAR = {f"self_attn.{name}_proj" for name in "qkvo"} | {
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
}
_WEIGHTS = {f"{name}.weight" for name in _LINEAR | {"input_layernorm", "post_attention_layernorm"}}
_BIASES = {f"self_attn.{name}_proj.bias" for name in "qkv"}


def streamed_layers_for(model: torch.nn.Module, kernels: Any) -> StreamedLayers | None:
    """Return streamed layers for a model; None without the attention kernel, and on GPUs other than Hopper,
    on which they were tuned."""
    device = next(model.parameters()).device
    if kernels is None or device.type != "cuda" or torch.version.hip is not None:
        return None
    if torch.cuda.get_device_capability(device)[0] != 9:
        return None
    streams = importlib.import_module("mapo.sampling.streamed.kernels")
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return StreamedLayers(model, streams, kernels.attend, processors)


class StreamedLayers:
    """Streamed layers of one model. `streams` is the module of kernels, `attend` the attention kernel."""

    def __init__(
        self, model: Any, streams: Any, attend: Callable[..., torch.Tensor], processors: int
    ) -> None:
        self.model, self.streams, self.attend, self.processors = model, streams, attend, processors
        self._ready: tuple[torch.Tensor, torch.Tensor] | None = None

    def accepts(self, rows: int) -> bool:
        """Return whether steps of `rows` rows are supported for the model in its current state."""
        return rows <= MAX_ROWS and not self.incompatibility()

    def incompatibility(self) -> str:
        """Return why the model in its current state is not supported; empty if it is."""
        try:
            reason = _incompatibility(self.model)
            if not reason:
                self.swaps()  # accesses everything else that recording accesses
            return reason
        except Exception as problem:  # noqa: BLE001 (a model may be anything)
            return f"the model cannot be inspected: {type(problem).__name__}: {problem}"

    def swaps(self) -> list[Swap]:
        """Return the modules to replace while a step is recorded, each with its new forward."""
        base, head = self.model.get_decoder(), self.model.get_output_embeddings()
        next_norms = [*(layer.input_layernorm for layer in base.layers[1:]), base.norm]
        swaps: list[Swap] = [
            (layer, self._layer(at, layer, next_norm))
            for at, (layer, next_norm) in enumerate(zip(base.layers, next_norms, strict=True))
        ]
        swaps.append((base.norm, lambda hidden: self._normed(hidden, base.norm).view(hidden.shape)))
        if _is_plain(head) and head.bias is None and _has_no_hooks(head) and head_tile(head.in_features):
            swaps.append((head, lambda hidden: self._head(hidden, head.weight)))
        return swaps

    def _layer(self, at: int, layer: Any, next_norm: Any) -> Callable[..., torch.Tensor]:
        """Return the forward of one layer, which is followed by `next_norm`."""
        window = WINDOWS[kind_of(layer)](layer.self_attn)

        def forward(hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
            """Take and return [rows, 1, size]: one new id per row."""
            cache = more["past_key_values"]
            rows, _, size = hidden_states.shape
            x = self._normed(hidden_states, layer.input_layernorm)
            attended = self._attention(
                layer.self_attn, x, cache.layers[at], cache.view, more["position_embeddings"], window
            )
            after, mlp = layer.post_attention_layernorm, layer.mlp
            parts = self._product(attended.view(rows, -1), layer.self_attn.o_proj)
            total, x = self._add_norm(parts, hidden_states.reshape(rows, size), after)
            gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
            x = self.streams.gated(x, gate, up, gated_tile(len(gate), self.processors))
            total, x = self._add_norm(self._product(x, mlp.down_proj), total, next_norm)
            out = total.view(rows, 1, size)
            self._ready = (out, x)
            return out

        return forward

    def _attention(
        self,
        attention: Any,
        x: torch.Tensor,
        store: Any,
        view: Any,
        cos_sin: Sequence[torch.Tensor],
        window: int | None,
    ) -> torch.Tensor:
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        states = torch.split(self._product(x, *projections), [p.out_features for p in projections], 2)
        cos, sin = (c.expand(len(x), -1, -1)[:, 0] for c in cos_sin)
        slots = (store.keys, store.values, view.slots, view.positions)
        query = self.streams.turn(states, [p.bias for p in projections], cos, sin, *slots)
        _, kv_heads, context, dim = store.keys.shape
        cut = streamed_attention_cut(len(x) * kv_heads, context, dim, self.processors)
        return self.attend(query, *slots, scale=attention.scaling, window=window, cut=cut)

    def _product(self, x: torch.Tensor, *layers: torch.nn.Linear) -> torch.Tensor:
        """Return the product without biases, as partial sums [splits, rows, outputs]."""
        tile = product_tile([p.out_features for p in layers], x.shape[1], self.processors)
        parts: torch.Tensor = self.streams.product(x, [p.weight for p in layers], tile)
        return parts

    def _head(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        size = hidden.shape[-1]
        logits: torch.Tensor = self.streams.product(hidden.reshape(-1, size), [weight], head_tile(size))
        return logits.view(*hidden.shape[:-1], -1)

    def _add_norm(
        self, parts: torch.Tensor | None, residual: torch.Tensor, norm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = self.streams.add_norm(
            parts, residual, norm.weight, norm.variance_epsilon
        )
        return result

    def _normed(self, hidden: torch.Tensor, norm: Any) -> torch.Tensor:
        """Return the norm of `hidden`, [rows, size]. The previous layer has usually computed it already."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is hidden:
            return ready[1]
        return self._add_norm(None, hidden.reshape(-1, hidden.shape[-1]).contiguous(), norm)[1]


def _incompatibility(model: Any) -> str:
    """Return why the model is not supported; empty if it is."""
    base: Any = model.get_decoder() if hasattr(model, "get_decoder") else None
    layers: Any = getattr(base, "layers", None)
    if not layers:
        return f"a {type(model).__name__} has no supported layers"
    for at, layer in enumerate(layers):
        if reason := _layer_incompatibility(layer):
            return f"layer {at}: {reason}"
    norm: Any = getattr(base, "norm", None)
    rotary = base.rotary_emb
    if not _is_original(norm, layers[0], "RMSNorm") or not _is_original(rotary, layers[0], "RotaryEmbedding"):
        return "its last norm or its rotary embedding is of another type or was changed"
    weights = [w for layer in layers for w in layer.parameters()]
    weights += [norm.weight, model.get_output_embeddings().weight]
    if not all(_is_readable(w) for w in weights) or len({(w.dtype, w.device) for w in weights}) > 1:
        return "its weights are not all aligned 16-bit parameters of one dtype on one device"
    return ""


def _layer_incompatibility(layer: Any) -> str:
    names = {name for name, _ in layer.named_parameters()}
    if (
        kind_of(layer) not in WINDOWS
        or names - _BIASES != _WEIGHTS
        or names & _BIASES not in (set(), _BIASES)
    ):
        return f"this kind of {type(layer).__name__} is not supported"
    if not all(_has_no_hooks(module) for module in layer.modules()):
        return "a module has forward hooks or a replaced forward"
    parts = {"self_attn": "Attention", "mlp": "MLP", "": "DecoderLayer"}
    parts |= {"input_layernorm": "RMSNorm", "post_attention_layernorm": "RMSNorm"}
    if not all(_is_original(layer.get_submodule(name), layer, kind) for name, kind in parts.items()):
        return "a part of it is of another type or was changed"
    if not all(_is_plain(layer.get_submodule(name)) for name in _LINEAR):
        return "a linear layer is not a plain one, or its inputs are not a multiple of 64"
    if type(layer.mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return f"its activation is {type(layer.mlp.act_fn).__name__}"
    if layer.self_attn.head_dim not in (32, 64, 128, 256):
        return f"its head dimension is {layer.self_attn.head_dim}"
    return ""


def kind_of(layer: torch.nn.Module) -> tuple[str, str]:
    return type(layer).__module__, type(layer).__name__


def _is_original(module: Any, layer: torch.nn.Module, kind: str) -> bool:
    """Return whether a module has the class that the layer's model file defines for it, not patched."""
    file, name = type(layer).__module__, type(layer).__name__.replace("DecoderLayer", kind)
    if type(module).__module__ != file or type(module).__name__ != name or not _has_no_hooks(module):
        return False
    forward = type(module).forward
    return (forward.__module__, forward.__qualname__) == (file, f"{name}.forward")


def _is_plain(linear: torch.nn.Module) -> bool:
    return type(linear) is torch.nn.Linear and linear.in_features % 64 == 0


def _has_no_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module has neither forward hooks nor a replaced forward."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _is_readable(weight: torch.Tensor) -> bool:
    """Return whether the kernels can read a weight: 16 bits, contiguous, aligned, with 32-bit indices."""
    return (
        type(weight) is torch.nn.Parameter
        and weight.dtype in (torch.bfloat16, torch.float16)
        and weight.is_contiguous()
        and weight.data_ptr() % 16 == 0
        and weight.numel() < 2**31
    )
