"""Token rows -> one or more optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mapo.errors import TrainError
from mapo.local_model.policy import reference
from mapo.rows import Row
from mapo.sandbox.cast import world_seed
from mapo.train.batch import Micro, micro_batches, minibatches, share
from mapo.train.loss import Stats, policy_loss, summary, token_logprobs
from mapo.train.optim import lr_at

if TYPE_CHECKING:
    from mapo.train.setup import Training


def update(t: Training, rows: Sequence[Row], step: int) -> dict[str, Any]:
    """Make the replies of good turns likelier, those of bad ones less so; what happened while doing it.

    Every member of a team has all rows and takes its share of each part.
    """
    settings, model = t.config.optim, t.policy.model
    torch.manual_seed(world_seed(t.config.run.seed, step))  # dropout, where a model has any
    model.train()
    norms, stats, rate = [], [], 0.0
    parts = minibatches(rows, settings.updates, seed=step)
    for number, part in enumerate(parts):
        mine = share(part, t.team.rank, t.team.world)
        # The distance from the start costs a pass of its own: in one update a step, each in its turn.
        measure = settings.kl > 0 or number == (step - 1) % len(parts)
        stats += gradients(t, mine, total=sum(row.trained for row in part), measure=measure)
        t.team.sum_gradients(t.optimizer.gradients(every=t.team.world > 1))
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
    found = {"lr": rate, "grad_norm": sum(norms) / max(1, len(norms)), "tokens": 0}
    return {**found, **joined(t.team.gather([summary(stats)]))}


def joined(parts: list[dict[str, float]]) -> dict[str, float]:
    """Every member's means in one, by their tokens; `kl_ref` is the distance from the start."""
    parts = [part for part in parts if part]
    tokens = sum(part["tokens"] for part in parts)
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [(part[name], part["tokens"]) for part in parts if name in part]
        mean = sum(value * n for value, n in values) / max(1.0, sum(n for _, n in values))
        found["kl_start" if name == "kl_ref" else name] = mean
    if parts:
        found |= {"tokens": tokens, "ratio_max": max(part["ratio_max"] for part in parts)}
    return found


def gradients(t: Training, rows: Sequence[Row], *, total: int, measure: bool) -> list[Stats]:
    """Add up the gradients of the token-mean loss over `total` tokens, a micro-batch at a time.

    measure: the distance from the start as well, on one micro-batch, or on all where it is part of the loss.
    """
    settings, policy = t.config.optim, t.policy
    stats = []
    alike = 64 if t.config.model.compile else 1  # few shapes suit compiled code
    micros = micro_batches(rows, settings.tokens, multiple=alike)
    for number, cpu in enumerate(micros):
        micro = cpu.to(policy.device)
        wanted = measure and (settings.kl > 0 or number == t.done % len(micros))
        loss, seen = policy_loss(
            policy.model,
            micro,
            total=total,
            low=settings.clip_low,
            high=settings.clip_high,
            dual=settings.dual_clip,
            kl_weight=settings.kl,
            entropy_weight=settings.entropy,
            reference=_start_logprobs(t, micro) if wanted and t.config.run.reference else None,
            temperature=t.config.rollout.temperature,
            compiled=t.config.model.compile,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        t.optimizer.absorb()
        stats.append(seen)
    return stats


def _start_logprobs(t: Training, micro: Micro) -> torch.Tensor:
    with reference(t.policy) as start:
        scores = token_logprobs(
            start, micro.ids, micro.mask, at=micro.at, temperature=t.config.rollout.temperature
        )
    return scores.logprobs
