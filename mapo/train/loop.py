"""The training loop: the story of the algorithm.

Play dialogues; credit every turn for what it led to and for what it moved itself; make the replies of good
turns likelier. What a step does follows from the run's seed, the step's number and the weights, so a run
that was cut off goes on from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from mapo.advantage import Advantages, advantages
from mapo.errors import TrainError
from mapo.rows import rows_of
from mapo.train import checkpoint, metrics
from mapo.train.rollouts import evaluate, played, step_jobs, write_json
from mapo.train.setup import Training, note_decoding
from mapo.train.update import update
from mapo.types import Dialogue


async def train(t: Training) -> None:
    """From the step after the last checkpoint to the last one."""
    for step in range(t.done + 1, t.config.optim.steps + 1):
        began = time.monotonic()
        t.sampler.stats.clear()
        dialogues = await play_step(t, step)
        usable = [d for d in dialogues if d.usable]
        rewards = [d.rewards for d in usable]
        credit = credit_of(t, step, usable, rewards)
        talked = time.monotonic()
        learnt = update(t, rows_of(usable, credit), step)
        t.sampler.forget_all()
        t.done = step
        clock = {"rollout_s": talked - began, "update_s": time.monotonic() - talked}
        record = step_record(t, dialogues, rewards, credit, learnt, clock)
        if t.config.eval.due(step, t.config.optim.steps):
            await validate(t, record)
        keep_step(t, record)


async def play_step(t: Training, step: int) -> list[Dialogue]:
    """The step's dialogues, everybody's; each member's are on disk as they end."""
    rollout = t.config.rollout
    jobs = step_jobs(
        t.train_scenarios,
        step,
        per_step=rollout.scenarios,
        siblings=rollout.siblings,
        seed=t.config.run.seed,
    )
    return await played(t, jobs, t.dialogue_file(step), t.rules, partial(t.callbacks.step_begins, step))


def credit_of(
    t: Training, step: int, dialogues: Sequence[Dialogue], rewards: Sequence[Sequence[float | None]]
) -> Advantages:
    """The advantage of every turn."""
    if not dialogues:
        raise TrainError(
            f"not one dialogue of step {step} can be used",
            where=str(t.dialogue_file(step)),
            fix="Each one's `error` says why it broke; then resume",
        )
    return advantages(rewards, [d.group for d in dialogues], **t.config.advantage.options())


def step_record(
    t: Training,
    dialogues: Sequence[Dialogue],
    rewards: Sequence[Sequence[float | None]],
    credit: Advantages,
    learnt: dict[str, Any],
    clock: dict[str, float],
) -> dict[str, Any]:
    """One line of metrics.jsonl."""
    work = t.team.gather([(t.sampler.stats.sampled, t.sampler.stats.seconds)])  # now, not what was on disk
    return {
        "step": t.done,
        **metrics.dialogue_metrics(dialogues, t.train_scenarios),
        "score": t.score_of(dialogues),
        **metrics.credit_metrics(rewards, credit),
        **learnt,
        **clock,
        "model_s": max(seconds for _, seconds in work),
        "sampled_tokens": sum(len(turn.reply.token_ids or ()) for d in dialogues for turn in d.turns),
        "sampled_per_s": sum(drawn for drawn, _ in work) / max(clock["rollout_s"], 1e-9),
        "trained_per_s": learnt["tokens"] / max(clock["update_s"], 1e-9),
        "memory_gb": metrics.memory_gb(),
    }


async def validate(t: Training, record: dict[str, Any]) -> None:
    """Held-out scenarios; the best checkpoint is the one with the highest score on them."""
    score = await evaluate(t, t.validation_scenarios, t.config.eval.repeats, f"validation_{t.done:05d}")
    if score is None:
        return
    record["validation"] = {"epm_q": score.composite.epm_q, "passes": score.passes, "n": score.n}
    if t.best is None or score.composite.epm_q > t.best["epm_q"]:
        t.best = {"step": t.done, **record["validation"]}


def keep_step(t: Training, record: dict[str, Any]) -> None:
    """The line, then the checkpoint where one is due: what is on disk never runs ahead of its record."""
    due = t.done % t.config.run.checkpoint_every == 0 or t.done == t.config.optim.steps
    if t.team.leads:
        t.log(record)
        note_decoding(t.run.root, t.sampler.decoding)  # a way may have failed on the way
        if due or "validation" in record:
            folder = t.run.checkpoint(t.done)
            checkpoint.save(folder, t.policy, t.optimizer, {"step": t.done, "best": t.best})
            if t.best:
                write_json(t.run.best, t.best)
            kept = {t.best["step"]} if t.best else set()
            checkpoint.keep(folder.parent, t.config.run.keep, kept)
    t.team.wait()
    t.callbacks.step_ends(record)
