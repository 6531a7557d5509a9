"""The update: token rows to one or more optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mapo.errors import TrainError
from mapo.local_model.policy import reference
from mapo.rows import Row
from mapo.sandbox.cast import world_seed
from mapo.train.batch import MicroBatch, empty_batch, micro_batches, minibatches, share
from mapo.train.loss import Stats, mean_stats, policy_loss, token_logprobs
from mapo.train.metrics import Stopwatch
from mapo.train.optim import lr_at

if TYPE_CHECKING:
    from mapo.train.setup import Training


def update(t: Training, rows: Sequence[Row], step: int) -> dict[str, Any]:
    """Take `optim.updates` optimizer steps on the rows of a training step, and return their statistics and,
    as "time", where the seconds went.

    Every process has all rows and computes the gradient of its share of each minibatch. The gradients are
    summed, so all processes take the same optimizer steps.
    """
    settings, model = t.config.optim, t.policy.model
    torch.manual_seed(world_seed(t.config.run.seed, step))  # for dropout
    model.train()
    norms: list[float] = []
    stats: list[list[Stats]] = []
    rate = 0.0
    watch = Stopwatch(t.policy.device)
    parts = minibatches(rows, settings.updates, seed=step)
    for number, part in enumerate(parts):
        own_rows = share(part, t.processes.rank, t.processes.world_size)
        # The KL divergence from the start model costs another forward pass. Where it is only a statistic,
        # it is measured in one minibatch per step, in turn.
        measure_kl = settings.kl > 0 or number == (step - 1) % len(parts)
        total_tokens = sum(row.trained for row in part)
        stats.append(add_gradients(t, own_rows, watch, total_tokens=total_tokens, measure_kl=measure_kl))
        watch.start("optimizer")
        t.optimizer.sum_gradients(t.processes)
        norms.append(t.optimizer.clip(settings.grad_clip))
        if not math.isfinite(norms[-1]):
            raise TrainError(
                f"the gradient of step {step} is not finite ({norms[-1]})",
                where=str(t.run.root),
                fix="Lower optim.lr or use model.dtype=float32; --resume continues from the last checkpoint",
            )
        done = (step - 1) * settings.updates + number
        total = settings.steps * settings.updates
        rate = lr_at(done, total, settings.lr, settings.warmup, settings.schedule)
        t.optimizer.step(rate)
        t.optimizer.zero_grad()
    model.eval()
    mean, largest = sum(norms) / max(1, len(norms)), max(norms, default=0.0)
    merged = merge_stats(t.processes.gather([mean_stats([s for part in stats for s in part])]))
    first = merge_stats(t.processes.gather([mean_stats(stats[0] if stats else [])]))
    return {
        "lr": rate,
        "grad_norm": mean,
        "grad_norm_max": largest,
        "tokens": 0,
        **merged,
        "first": {name: first[name] for name in ("drift", "ratio_max", "clip_fraction") if name in first},
        "time": slowest(t.processes.gather([watch.seconds()])),
    }


def add_gradients(
    t: Training, rows: Sequence[Row], watch: Stopwatch, *, total_tokens: int, measure_kl: bool
) -> list[Stats]:
    """Accumulate the gradient of the loss over `rows`, one micro-batch at a time, and return its statistics.

    The loss is a mean over `total_tokens`, the tokens of the minibatch in all processes. `measure_kl` also
    measures the KL divergence from the start model: in all micro-batches if it is part of the loss, else in
    one.
    """
    settings, policy = t.config.optim, t.policy
    stats = []
    multiple = 64 if t.config.model.compile else 1  # fewer shapes mean fewer compilations
    batches = micro_batches(rows, settings.tokens, multiple=multiple)
    fewest = len(batches)
    if t.config.run.shard:  # processes communicate in every pass, so all of them need the same number
        counts = t.processes.gather([len(batches)])
        batches += [empty_batch(multiple)] * (max(counts) - len(batches))
        fewest = min(counts)
    for number, batch in enumerate(batches):
        watch.start("reference")
        micro = batch.to(policy.device)
        kl_here = measure_kl and (settings.kl > 0 or number == t.done % max(1, fewest))
        start = _start_logprobs(t, micro) if kl_here and t.config.run.reference else None
        watch.start("forward")
        loss, loss_stats = policy_loss(
            policy.model,
            micro,
            total=total_tokens,
            low=settings.clip_low,
            high=settings.clip_high,
            dual=settings.dual_clip,
            kl_weight=settings.kl,
            entropy_weight=settings.entropy,
            reference=start,
            temperature=t.config.rollout.temperature,
            compiled=t.config.model.compile,
        )
        watch.start("backward")
        loss.backward()  # type: ignore[no-untyped-call]
        t.optimizer.absorb()
        stats.append(loss_stats)
    return stats


def slowest(processes: list[dict[str, float]]) -> dict[str, float]:
    """Return the seconds of each part in the process in which it took longest."""
    names = dict.fromkeys(name for parts in processes for name in parts)
    return {name: max(parts.get(name, 0.0) for parts in processes) for name in names}


def merge_stats(processes: list[dict[str, float]]) -> dict[str, float]:
    """Merge the mean statistics of all processes, weighted by their tokens.

    `kl_ref` becomes `kl_start`, its name in metrics.jsonl.
    """
    processes = [stats for stats in processes if stats]
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for stats in processes for name in stats):
        values = [(stats[name], stats["tokens"]) for stats in processes if name in stats]
        mean = sum(value * tokens for value, tokens in values) / max(1.0, sum(tokens for _, tokens in values))
        merged["kl_start" if name == "kl_ref" else name] = mean
    if processes:
        merged["tokens"] = sum(stats["tokens"] for stats in processes)
        merged["ratio_max"] = max(stats["ratio_max"] for stats in processes)
    return merged


def _start_logprobs(t: Training, micro: MicroBatch) -> torch.Tensor:
    """Return the log-probabilities of the trained tokens under the model before training."""
    with reference(t.policy) as start:
        scores = token_logprobs(
            start, micro.ids, micro.mask, at=micro.at, temperature=t.config.rollout.temperature
        )
    return scores.logprobs
