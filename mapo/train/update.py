"""Token rows -> one or more optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mapo.errors import TrainError
from mapo.rows import Row
from mapo.train.batch import Micro, micro_batches, minibatches
from mapo.train.loss import Stats, policy_loss, summary, token_logprobs
from mapo.train.optim import lr_at
from mapo.train.policy import reference

if TYPE_CHECKING:
    from mapo.train.setup import Training


def update(t: Training, rows: Sequence[Row], step: int) -> dict[str, Any]:
    """Make the replies of good turns likelier, those of bad ones less so; what happened while doing it."""
    settings, model = t.config.optim, t.policy.model
    torch.manual_seed(t.config.run.seed * 1_000_003 + step)  # dropout, where a model has any
    parts = minibatches(rows, settings.updates, seed=step) if rows else []
    parts += [[]] * (settings.updates - len(parts))  # a member with few rows takes part all the same
    model.train()
    norms, stats = [], []
    for number, part in enumerate(parts):
        stats += gradients(t, part)
        t.team.sum_gradients(model.parameters())
        norms.append(t.optimizer.clip(settings.grad_clip))
        if not math.isfinite(norms[-1]):
            raise TrainError(
                f"the gradient of step {step} is not finite ({norms[-1]})",
                where=str(t.run.root),
                fix="A smaller optim.lr, or float32; --resume goes on from the last checkpoint",
            )
        done = (step - 1) * settings.updates + number
        total = settings.steps * settings.updates
        rate = lr_at(done, total, settings.lr, settings.warmup, settings.schedule)
        t.optimizer.step(rate)
        t.optimizer.zero_grad()
    model.eval()
    return {"lr": rate, "grad_norm": sum(norms) / len(norms), "tokens": 0, **_renamed(summary(stats))}


def gradients(t: Training, rows: Sequence[Row]) -> list[Stats]:
    """Add up the gradients of the token-mean loss, a micro-batch at a time."""
    settings, policy = t.config.optim, t.policy
    count = torch.tensor([float(sum(int(row.mask.sum()) for row in rows))], device=policy.device)
    total = max(1, int(t.team.sum(count)))
    stats = []
    alike = 64 if t.config.model.compile else 1  # few shapes suit compiled code
    for number, cpu in enumerate(micro_batches(rows, settings.tokens, multiple=alike)):
        micro = cpu.to(policy.device)
        measured = t.config.run.reference and (settings.kl > 0 or number == 0)
        loss, seen = policy_loss(
            policy.model,
            micro,
            total=total,
            low=settings.clip_low,
            high=settings.clip_high,
            dual=settings.dual_clip,
            kl_weight=settings.kl,
            entropy_weight=settings.entropy,
            reference=_start_logprobs(t, micro) if measured else None,
            temperature=t.config.rollout.temperature,
            compiled=t.config.model.compile,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        stats.append(seen)
    return stats


def _start_logprobs(t: Training, micro: Micro) -> torch.Tensor:
    with reference(t.policy) as start:
        scores = token_logprobs(
            start, micro.ids, micro.mask, at=micro.at, temperature=t.config.rollout.temperature
        )
    return scores.logprobs


def _renamed(found: dict[str, float]) -> dict[str, float]:
    """`kl_ref` is the distance from the start, over the micro-batches in which it was measured."""
    return {"kl_start" if name == "kl_ref" else name: value for name, value in found.items()}
