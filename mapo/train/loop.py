"""The training loop of the local engine.

Each step plays dialogues, computes the advantage of every turn, and updates the policy so that replies with
positive advantages become more likely. A step depends only on the run's seed, the step number and the
weights, so a run that resumes from a checkpoint continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mapo.advantage import Advantages
from mapo.credit import compute_credit
from mapo.errors import JudgeError, TrainError
from mapo.rows import rows_of
from mapo.sampling.turns import turns_of_loop
from mapo.train import checkpoint, metrics
from mapo.train.rollouts import evaluate, play_jobs, step_jobs, write_json
from mapo.train.setup import Training, note_decoding
from mapo.train.update import update
from mapo.types import Dialogue


async def train(t: Training) -> None:
    """Train from the step after the last checkpoint to the last step."""
    for step in range(t.done + 1, t.config.optim.steps + 1):
        watch = metrics.Stopwatch()
        watch.start("rollout_s")
        dialogues = await play_step(t, step)
        watch.start("credit_s")
        usable = [d for d in dialogues if d.usable]
        credit = turn_advantages(t, step, usable)
        watch.start("update_s")
        t.callbacks.update_begins(step)
        t.sampler.make_room()
        stats = update(t, rows_of(usable, credit), step)
        t.sampler.forget_all()
        t.done = step
        record = step_record(t, dialogues, credit, stats, watch.seconds())
        record["step_s"] = watch.elapsed()
        disagreement = check_judge(t, dialogues, record)
        if t.config.eval.due(step, t.config.optim.steps):
            await validate(t, record)
        save_step(t, record, stopping=disagreement is not None)
        if disagreement:
            raise disagreement


async def play_step(t: Training, step: int) -> list[Dialogue]:
    """Play the dialogues of a step and return those of all processes, in job order."""
    t.sampler.stats.clear()
    turns_of_loop().work.clear()
    metrics.reset_memory()
    rollout = t.config.rollout
    jobs = step_jobs(
        t.train_scenarios,
        step,
        per_step=rollout.scenarios,
        siblings=rollout.siblings,
        seed=t.config.run.seed,
    )
    return await play_jobs(t, jobs, t.dialogue_file(step), t.rules, partial(t.callbacks.step_begins, step))


def turn_advantages(t: Training, step: int, dialogues: Sequence[Dialogue]) -> Advantages:
    """Return the advantage of every turn. Siblings are compared within their group."""
    if not dialogues:
        raise TrainError(
            f"no dialogue of step {step} can be used",
            where=str(t.dialogue_file(step)),
            fix="Fix what the `error` of each dialogue says, then resume",
        )
    settings = t.config.advantage.resolved(t.config.reward.name)
    return compute_credit(dialogues, settings, t.rules.rubric)


def step_record(
    t: Training,
    dialogues: Sequence[Dialogue],
    credit: Advantages,
    stats: dict[str, Any],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Return the line of metrics.jsonl for this step."""
    usable = [d for d in dialogues if d.usable]
    # Tokens sampled in this session only: a resumed step may have dialogues from disk.
    work = t.processes.gather([(t.sampler.stats.sampled, t.sampler.stats.seconds)])
    role_seconds = t.processes.gather([turns_of_loop().work.seconds])
    role_ids = t.processes.gather([turns_of_loop().work.ids])
    return {
        "step": t.done,
        **metrics.dialogue_metrics(dialogues, t.train_scenarios, t.rules.rubric),
        "score": t.score_of(dialogues),
        **metrics.credit_metrics([d.rewards for d in usable], credit),
        **metrics.state_metrics(usable, credit, t.config.advantage),
        **metrics.fault_metrics(usable, t.config.advantage),
        **stats,
        **seconds,
        "model_s": max(busy for _, busy in work),
        "time": {**metrics.role_time(role_seconds, seconds["rollout_s"]), **stats["time"]},
        "ids": metrics.role_ids(role_ids),
        "sampled_tokens": sum(len(turn.reply.token_ids or ()) for d in dialogues for turn in d.turns),
        "sampled_per_s": sum(sampled for sampled, _ in work) / max(seconds["rollout_s"], 1e-9),
        "trained_per_s": stats["tokens"] / max(seconds["update_s"], 1e-9),
        "memory_gb": metrics.memory_gb(),
        **metrics.gpu_memory(t.processes.gather([t.gpu_memory.peak_gb() if t.gpu_memory else None])),
    }


def check_judge(t: Training, dialogues: Sequence[Dialogue], record: dict[str, Any]) -> JudgeError | None:
    """Add the spot checks of the step to its metrics; return the error that ends the run, if there is one."""
    if t.checks is None or t.config.roles.check is None:
        return None
    if line := t.checks.add(dialogues):
        record["check"] = line
    if warning := t.checks.warning(line):
        t.callbacks.message(f"warning: step {t.done}: {warning}")
    return t.checks.disagreement(t.config.roles.check.limit, str(t.run.root))


async def validate(t: Training, record: dict[str, Any]) -> None:
    """Score the policy on the validation scenarios, and remember the step with the highest score."""
    score = await evaluate(t, t.validation_scenarios, t.config.eval.repeats, f"validation_{t.done:05d}")
    if score is None:
        return
    record["validation"] = {"epm_q": score.composite.epm_q, "passes": score.passes, "n": score.n}
    if t.best is None or score.composite.epm_q > t.best["epm_q"]:
        t.best = {"step": t.done, **record["validation"]}


def save_step(t: Training, record: dict[str, Any], *, stopping: bool = False) -> None:
    """Write the metrics, then a checkpoint if one is due or the run is `stopping`, so that no checkpoint
    lacks its metrics."""
    due = stopping or t.done % t.config.run.checkpoint_every == 0 or t.done == t.config.optim.steps
    due = due or "validation" in record
    if t.processes.is_leader:
        t.log(record)
        note_decoding(t.run.root, t.sampler.decoding)  # it may have fallen back to another decoder
        if due:
            folder = t.run.checkpoint(t.done)
            checkpoint.save(folder, t.policy, t.optimizer, {"step": t.done, "best": t.best})
            if t.best:
                write_json(t.run.best, t.best)
            best = {t.best["step"]} if t.best else set()
            checkpoint.remove_old(folder.parent, t.config.run.keep, best)
    elif due:
        checkpoint.send_state(t.optimizer)
    t.processes.wait()
    t.callbacks.step_ends(record)
