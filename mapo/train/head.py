"""Log-probabilities and entropies straight from hidden states, without the whole matrix of logits.

Most of a small model's memory, and much of its time, is logits: [tokens, vocabulary] in float32, several
times over. `head_scores` takes only the hidden states whose next token trains, in chunks. The backward pass
computes a chunk's logits again (a few are kept) and turns them into their gradient in place.
benchmarks/train_step.py measures it beside plain transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 (its usual name)

# One chunk's logits: on a GPU large enough for full speed, on a CPU small enough to stay near its caches.
_CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 32 << 20}
# Logits of this size, in the model's own precision, are kept for the backward pass rather than made twice.
_KEEP_BYTES = {"cuda": 4 << 30, "cpu": 512 << 20}


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
    """Log-probabilities of `targets` [M] and entropies, float32, from hidden states [M, H] and the head.

    `chunk` is the number of tokens whose logits exist at a time; `compiled` fuses the chunks' arithmetic.
    """
    size = weight.shape[0] * hidden.element_size()
    device = "cuda" if hidden.is_cuda else "cpu"
    chunk = chunk or max(1, _CHUNK_BYTES[device] // size)
    plan = _Plan(1.0 / temperature, chunk, _KEEP_BYTES[device] // (size * chunk), entropy, compiled)
    logp, entropies = _Head.apply(hidden, weight, bias, targets, plan)  # type: ignore[no-untyped-call]
    return logp, entropies if entropy else None


class _Plan(NamedTuple):
    scale: float
    chunk: int
    keep: int
    entropy: bool
    compiled: bool


class _Head(torch.autograd.Function):
    """(hidden [M, H], weight [V, H], bias, targets [M]) -> log-probabilities and entropies [M]."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, plan: _Plan
    ) -> tuple[Tensor, Tensor]:
        score = _fused(_scores) if plan.compiled else _scores
        logp, lse, entropy = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        ctx.kept = []
        for number, part in enumerate(_slices(len(hidden), plan.chunk)):
            logits = F.linear(hidden[part], weight, bias)
            logp[part], lse[part], entropy[part] = score(logits, targets[part], plan.scale, plan.entropy)
            if number < plan.keep and any(ctx.needs_input_grad[:3]):
                ctx.kept.append(logits)
        ctx.save_for_backward(hidden, weight, bias, targets, lse, entropy)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        if not plan.entropy:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, g_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse, entropy = ctx.saved_tensors
        plan, kept = ctx.plan, ctx.kept
        ctx.kept = []  # they are overwritten below; a second backward pass makes its own
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if g is None and g_entropy is None:
            return None, None, None, None, None
        g = torch.zeros_like(lse) if g is None else g
        slope = _fused(_slopes) if plan.compiled else _slopes_in_place
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        parts = list(_slices(len(hidden), plan.chunk))
        # Sums over several chunks are kept in float32: in bfloat16 each addition would round them.
        total = torch.float32 if len(parts) > 1 else weight.dtype
        d_weight = torch.zeros_like(weight, dtype=total) if needs_weight else None
        d_bias = torch.zeros_like(bias, dtype=total) if needs_bias else None
        for number, part in enumerate(parts):
            logits = kept[number] if number < len(kept) else F.linear(hidden[part], weight, bias)
            ge = None if g_entropy is None else g_entropy[part]
            d = slope(logits, targets[part], lse[part], entropy[part], g[part], ge, plan.scale)
            if number < len(kept):
                kept[number] = None  # free it as soon as it is used
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
    """Log-probability of the target, log of the sum of exponentials, entropy; x are the scaled logits.

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


def _slopes(
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
    hit = torch.arange(logits.shape[-1], device=logits.device)[None] == targets[:, None]
    d = torch.where(hit, g[:, None], 0.0) - g[:, None] * logp.exp()
    if g_entropy is not None:
        d = d - g_entropy[:, None] * logp.exp() * (logp + entropy[:, None])
    return (d * scale).to(logits.dtype)


def _slopes_in_place(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    g: Tensor,
    g_entropy: Tensor | None,
    scale: float,
) -> Tensor:
    """The same in as few passes as can be without a compiler, overwriting float32 logits."""
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
