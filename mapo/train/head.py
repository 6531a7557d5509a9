"""Log-probabilities and entropies from hidden states, without materialising all logits.

The logits, [tokens, vocabulary] in float32 and several copies of them, take most of a small model's memory
and much of its time. `head_scores` computes them in chunks, only for trained tokens. The backward pass
recomputes the logits of a chunk (a few chunks are stored) and turns them into their gradient in place.
benchmarks/train_step.py compares it with plain transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 (its usual name)

# Logits of one chunk: large enough for full speed on a GPU, small enough for the caches of a CPU.
_CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 32 << 20}
# Logits up to this size, in the model's dtype, are stored for the backward pass instead of recomputed.
_STORE_BYTES = {"cuda": 4 << 30, "cpu": 512 << 20}


def head_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy: bool = False,
    compiled: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the log-probabilities of `targets` [M] and the entropies, float32, from hidden states [M, H].

    `chunk` is the number of tokens whose logits exist at the same time; `compiled` uses torch.compile.
    """
    size = weight.shape[0] * hidden.element_size()
    device = "cuda" if hidden.is_cuda else "cpu"
    chunk = chunk or max(1, _CHUNK_BYTES[device] // size)
    settings = _Settings(1.0 / temperature, chunk, _STORE_BYTES[device] // (size * chunk), entropy, compiled)
    logp, entropies = _Head.apply(hidden, weight, bias, targets, settings)  # type: ignore[no-untyped-call]
    return logp, entropies if entropy else None


class _Settings(NamedTuple):
    scale: float
    chunk: int
    stored_chunks: int
    entropy: bool
    compiled: bool


class _Head(torch.autograd.Function):
    """(hidden [M, H], weight [V, H], bias, targets [M]) -> log-probabilities and entropies [M]."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, settings: _Settings
    ) -> tuple[Tensor, Tensor]:
        score = _fused(_scores) if settings.compiled else _scores
        logp, lse, entropy = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        ctx.stored = []
        for number, part in enumerate(_slices(len(hidden), settings.chunk)):
            logits = F.linear(hidden[part], weight, bias)
            logp[part], lse[part], entropy[part] = score(
                logits, targets[part], settings.scale, settings.entropy
            )
            if number < settings.stored_chunks and any(ctx.needs_input_grad[:3]):
                ctx.stored.append(logits)
        ctx.save_for_backward(hidden, weight, bias, targets, lse, entropy)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        if not settings.entropy:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, g_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse, entropy = ctx.saved_tensors
        settings, stored = ctx.settings, ctx.stored
        ctx.stored = []  # overwritten below; a second backward pass recomputes them
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if g is None and g_entropy is None:
            return None, None, None, None, None
        g = torch.zeros_like(lse) if g is None else g
        gradient = _fused(_logit_gradient) if settings.compiled else _logit_gradient_in_place
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        parts = list(_slices(len(hidden), settings.chunk))
        # Sums over several chunks are float32, because in bfloat16 each addition would round.
        total = torch.float32 if len(parts) > 1 else weight.dtype
        d_weight = torch.zeros_like(weight, dtype=total) if needs_weight else None
        d_bias = torch.zeros_like(bias, dtype=total) if needs_bias else None
        for number, part in enumerate(parts):
            logits = stored[number] if number < len(stored) else F.linear(hidden[part], weight, bias)
            ge = None if g_entropy is None else g_entropy[part]
            d = gradient(logits, targets[part], lse[part], entropy[part], g[part], ge, settings.scale)
            if number < len(stored):
                stored[number] = None  # free the memory
            if d_hidden is not None:
                torch.mm(d, weight, out=d_hidden[part])
            if d_weight is not None:
                _add_product(d_weight, d, hidden[part])
            if d_bias is not None:
                d_bias += d.sum(0, dtype=total)
        to = weight.dtype
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(to),
            None if d_bias is None else d_bias.to(to),
            None,
            None,
        )


def _slices(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _add_product(total: Tensor, d: Tensor, hidden: Tensor) -> None:
    """total += d.T @ hidden."""
    if total.dtype == d.dtype:
        total.addmm_(d.T, hidden)
    else:
        total += d.T @ hidden


def _scores(logits: Tensor, targets: Tensor, scale: float, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probability of the target, the log-sum-exp and the entropy of scaled logits x.

    H = -sum p log p = lse - sum p x.
    """
    x = logits.float()
    if scale != 1.0:
        x = x * scale
    top = x.amax(-1, keepdim=True)
    weights = (x - top).exp_()
    total = weights.sum(-1)
    lse = total.log() + top.squeeze(-1)
    logp = x.gather(-1, targets[:, None]).squeeze(-1) - lse
    if not entropy:
        return logp, lse, torch.zeros_like(lse)
    return logp, lse, lse - torch.linalg.vecdot(weights, x) / total


def _logit_gradient(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    g: Tensor,
    g_entropy: Tensor | None,
    scale: float,
) -> Tensor:
    """d logp / dx_j = [j is the target] - p_j;  d H / dx_j = -p_j (log p_j + H)."""
    logp = logits.float() * scale - lse[:, None]
    is_target = torch.arange(logits.shape[-1], device=logits.device)[None] == targets[:, None]
    d = torch.where(is_target, g[:, None], 0.0) - g[:, None] * logp.exp()
    if g_entropy is not None:
        d = d - g_entropy[:, None] * logp.exp() * (logp + entropy[:, None])
    return (d * scale).to(logits.dtype)


def _logit_gradient_in_place(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    g: Tensor,
    g_entropy: Tensor | None,
    scale: float,
) -> Tensor:
    """Compute `_logit_gradient` in few passes without a compiler, overwriting float32 logits."""
    logp = logits.float()
    if scale != 1.0:
        logp.mul_(scale)
    logp.sub_(lse[:, None])
    if g_entropy is None:
        d = logp.exp_().mul_((g * -scale)[:, None])
    else:
        factor = logp.mul(-g_entropy[:, None]).sub_((g + g_entropy * entropy)[:, None])
        d = logp.exp_().mul_(factor).mul_(scale)
    d.scatter_add_(-1, targets[:, None], (g * scale)[:, None])
    return d.to(logits.dtype)


@cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function)
    return compiled
