"""Decoder layers of the Llama kind in few kernels: what a decode step of few rows is recorded with.

A layer is eight launches, nine where attention is split: the product of query, key and value; rotary
positions and cache; attention; a product; residual and norm; the gated products; a product; residual and the
norm of the layer after it. The weights are read where they lie: training and saving know nothing of it, and
a recording sees what training changes in place. A model it does not know whole (adapters, another activation,
norms of the queries, float32) is left as it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mapo.sampling.streamed.tiling import gated_tile, head_tile, product_tile, streamed_attention_cut

MAX_ROWS = 64  # rows: with more, a product waits for more than its weights
Swap = tuple[torch.nn.Module, Callable[..., torch.Tensor]]

_PLACE = "transformers.models.{0}.modeling_{0}"
# The layers it knows, with how far back their attention looks.
_WINDOWS: dict[tuple[str, str], Callable[[Any], int | None]] = {
    (_PLACE.format("llama"), "LlamaDecoderLayer"): lambda _: None,
    (_PLACE.format("qwen2"), "Qwen2DecoderLayer"): lambda attention: attention.sliding_window,
    (_PLACE.format("mistral"), "MistralDecoderLayer"): lambda attention: attention.config.sliding_window,
}
_LINEAR = {f"self_attn.{name}_proj" for name in "qkvo"} | {
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
}
_WEIGHTS = {f"{name}.weight" for name in _LINEAR | {"input_layernorm", "post_attention_layernorm"}}
_BIASES = {f"self_attn.{name}_proj.bias" for name in "qkv"}


def streamed_layers_for(model: torch.nn.Module, kernels: Any) -> StreamedLayers | None:
    """None without the attention kernel, and on other cards than it was measured on (Hopper)."""
    device = next(model.parameters()).device
    if kernels is None or device.type != "cuda" or torch.version.hip is not None:
        return None
    if torch.cuda.get_device_capability(device)[0] != 9:
        return None
    streams = importlib.import_module("mapo.sampling.streamed.kernels")
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return StreamedLayers(model, streams, kernels.attend, processors)


class StreamedLayers:
    """The layers of one model. `streams` are the kernels, `attend` is the attention kernel."""

    def __init__(
        self, model: Any, streams: Any, attend: Callable[..., torch.Tensor], processors: int
    ) -> None:
        self.model, self.streams, self.attend, self.processors = model, streams, attend, processors
        self._ready: tuple[torch.Tensor, torch.Tensor] | None = None

    def accepts(self, rows: int) -> bool:
        """Steps of so many rows, of the model as it is now."""
        return rows <= MAX_ROWS and not self.incompatibility()

    def incompatibility(self) -> str:
        """Why it takes no steps of the model as it is now; empty if it does."""
        try:
            why = _unfit(self.model)
            if not why:
                self.swaps()  # reads the rest of what a recording reads
            return why
        except Exception as problem:  # noqa: BLE001 (a model may be anything)
            return f"it cannot be read: {type(problem).__name__}: {problem}"

    def swaps(self) -> list[Swap]:
        """The modules it stands in for, each with the forward to have while a step is recorded."""
        base, head = self.model.get_decoder(), self.model.get_output_embeddings()
        norms = [*(layer.input_layernorm for layer in base.layers[1:]), base.norm]
        found: list[Swap] = [
            (layer, self._layer(at, layer, coming))
            for at, (layer, coming) in enumerate(zip(base.layers, norms, strict=True))
        ]
        found.append((base.norm, lambda hidden: self._normed(hidden, base.norm).view(hidden.shape)))
        if _is_plain(head) and head.bias is None and _is_bare(head) and head_tile(head.in_features):
            found.append((head, lambda hidden: self._head(hidden, head.weight)))
        return found

    def _layer(self, at: int, layer: Any, coming: Any) -> Callable[..., torch.Tensor]:
        """The forward of one layer; `coming` is the norm that follows it."""
        window = _WINDOWS[_kind(layer)](layer.self_attn)

        def forward(hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
            """[rows, 1, size]: one new id a row."""
            cache = more["past_key_values"]
            rows, _, size = hidden_states.shape
            x = self._normed(hidden_states, layer.input_layernorm)
            mixed = self._mix(
                layer.self_attn, x, cache.layers[at], cache.view, more["position_embeddings"], window
            )
            after, mlp = layer.post_attention_layernorm, layer.mlp
            parts = self._product(mixed.view(rows, -1), layer.self_attn.o_proj)
            total, x = self._add_norm(parts, hidden_states.reshape(rows, size), after)
            gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
            x = self.streams.gated(x, gate, up, gated_tile(len(gate), self.processors))
            total, x = self._add_norm(self._product(x, mlp.down_proj), total, coming)
            out = total.view(rows, 1, size)
            self._ready = (out, x)
            return out

        return forward

    def _mix(
        self,
        attention: Any,
        x: torch.Tensor,
        store: Any,
        view: Any,
        turned: Sequence[torch.Tensor],
        window: int | None,
    ) -> torch.Tensor:
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        states = torch.split(self._product(x, *three), [p.out_features for p in three], 2)
        cos, sin = (c.expand(len(x), -1, -1)[:, 0] for c in turned)
        slots = (store.keys, store.values, view.slots, view.positions)
        query = self.streams.turn(states, [p.bias for p in three], cos, sin, *slots)
        _, kv_heads, context, dim = store.keys.shape
        cut = streamed_attention_cut(len(x) * kv_heads, context, dim, self.processors)
        return self.attend(query, *slots, scale=attention.scaling, window=window, cut=cut)

    def _product(self, x: torch.Tensor, *layers: torch.nn.Linear) -> torch.Tensor:
        """Without their biases, in parts: [splits, rows, outputs]."""
        tile = product_tile([p.out_features for p in layers], x.shape[1], self.processors)
        made: torch.Tensor = self.streams.product(x, [p.weight for p in layers], tile)
        return made

    def _head(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        size = hidden.shape[-1]
        logits: torch.Tensor = self.streams.product(hidden.reshape(-1, size), [weight], head_tile(size))
        return logits.view(*hidden.shape[:-1], -1)

    def _add_norm(
        self, parts: torch.Tensor | None, residual: torch.Tensor, norm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        made: tuple[torch.Tensor, torch.Tensor] = self.streams.add_norm(
            parts, residual, norm.weight, norm.variance_epsilon
        )
        return made

    def _normed(self, hidden: torch.Tensor, norm: Any) -> torch.Tensor:
        """[rows, size]. The layer before has made the norm of what it returned already."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is hidden:
            return ready[1]
        return self._add_norm(None, hidden.reshape(-1, hidden.shape[-1]).contiguous(), norm)[1]


def _unfit(model: Any) -> str:
    """Why it does not know the model as it is now; empty if it does."""
    base: Any = model.get_decoder() if hasattr(model, "get_decoder") else None
    layers: Any = getattr(base, "layers", None)
    if not layers:
        return f"a {type(model).__name__} has no layers that it knows"
    for at, layer in enumerate(layers):
        if why := _unfit_layer(layer):
            return f"layer {at}: {why}"
    norm: Any = getattr(base, "norm", None)
    if not _is_own(norm, layers[0], "RMSNorm") or not _is_own(base.rotary_emb, layers[0], "RotaryEmbedding"):
        return "its last norm or its rotary positions are of another kind, or were changed"
    weights = [w for layer in layers for w in layer.parameters()]
    weights += [norm.weight, model.get_output_embeddings().weight]
    if not all(_is_readable(w) for w in weights) or len({(w.dtype, w.device) for w in weights}) > 1:
        return "its weights are not all of the same 16 bits, plain and aligned"
    return ""


def _unfit_layer(layer: Any) -> str:
    names = {name for name, _ in layer.named_parameters()}
    if _kind(layer) not in _WINDOWS or names - _BIASES != _WEIGHTS or names & _BIASES not in (set(), _BIASES):
        return f"a {type(layer).__name__} of this kind is not known"
    if not all(_is_bare(module) for module in layer.modules()):
        return "somebody has hooked in"
    parts = {"self_attn": "Attention", "mlp": "MLP", "": "DecoderLayer"}
    parts |= {"input_layernorm": "RMSNorm", "post_attention_layernorm": "RMSNorm"}
    if not all(_is_own(layer.get_submodule(name), layer, kind) for name, kind in parts.items()):
        return "a part of it is of another kind, or was changed"
    if not all(_is_plain(layer.get_submodule(name)) for name in _LINEAR):
        return "a linear layer of it is not plain, or of an odd size"
    if type(layer.mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return f"its activation is {type(layer.mlp.act_fn).__name__}"
    if layer.self_attn.head_dim not in (32, 64, 128, 256):
        return f"its heads are {layer.self_attn.head_dim} wide"
    return ""


def _kind(layer: torch.nn.Module) -> tuple[str, str]:
    return type(layer).__module__, type(layer).__name__


def _is_own(module: Any, layer: torch.nn.Module, kind: str) -> bool:
    """Of the very class that the layer's own model has for it, which nobody has patched."""
    home, name = type(layer).__module__, type(layer).__name__.replace("DecoderLayer", kind)
    if type(module).__module__ != home or type(module).__name__ != name or not _is_bare(module):
        return False
    forward = type(module).forward
    return (forward.__module__, forward.__qualname__) == (home, f"{name}.forward")


def _is_plain(linear: torch.nn.Module) -> bool:
    return type(linear) is torch.nn.Linear and linear.in_features % 64 == 0


def _is_bare(module: torch.nn.Module) -> bool:
    """Nobody has hooked in."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _is_readable(weight: torch.Tensor) -> bool:
    """By the kernels: 16 bits, at a place and of a size they can count with."""
    return (
        type(weight) is torch.nn.Parameter
        and weight.dtype in (torch.bfloat16, torch.float16)
        and weight.is_contiguous()
        and weight.data_ptr() % 16 == 0
        and weight.numel() < 2**31
    )
