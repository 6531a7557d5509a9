"""The run directory of a verl run, written and read by its trainer: the same files as a local run's.

The processes that play write dialogues side by side (`step_00001.jsonl`, `step_00001.1.jsonl`, ...); so the
run directory must be one that all nodes see. verl's own checkpoints lie in `verl/checkpoints`; what
`checkpoints/step_00010` points to is the plain Hugging Face folder in one of them.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from mapo.advantage import advantages
from mapo.config import Config
from mapo.engines.verl.site import STOPPED, dialogue_file, leave_word
from mapo.evals.score import Score, score_dialogues
from mapo.sandbox.rubric import Rubric
from mapo.store import BadLine, JsonlWriter, RunDir, read_dialogues
from mapo.train import metrics as numbers
from mapo.train.rollouts import write_json
from mapo.types import Dialogue

_NAMES = {
    "grad_norm": "actor/grad_norm",
    "lr": "actor/lr",
    "loss": "actor/pg_loss",
    "clip_fraction": "actor/pg_clipfrac",
    "entropy": "actor/entropy",
    "kl": "actor/ppo_kl",
    "kl_start": "actor/kl_loss",
    "drift": "training/rollout_probs_diff_mean",
    "memory_gb": "perf/max_memory_allocated_gb",
    "advantage_max": "critic/advantages/max",
    "advantage_min": "critic/advantages/min",
}
"""Our names for what verl measures too."""


def dialogues_of(run: RunDir, config: Config, split: str, step: int) -> list[Dialogue]:
    """Everybody's dialogues of a split at a step; the last of an id counts."""
    first = dialogue_file(run, split, step, config.optim.steps, 0)
    files = sorted(first.parent.glob(f"{first.stem}.[0-9]*.jsonl"))
    found: dict[str, Dialogue] = {}
    for file in [first, *files]:
        if file.exists():
            found |= {d.id: d for d in read_dialogues(file) if not isinstance(d, BadLine)}
    return [found[name] for name in sorted(found)]


def step_record(
    run: RunDir, config: Config, step: int, measured: dict[str, Any], timing: dict[str, Any]
) -> dict[str, Any]:
    """One line of metrics.jsonl, from the step's dialogues and what verl measured."""
    dialogues = dialogues_of(run, config, "train", step)
    usable = [d for d in dialogues if d.error is None]
    rewards = [[turn.reward for turn in d.turns] for d in usable]
    a = config.advantage
    credit = advantages(
        rewards,
        [d.group for d in usable],
        a.method,
        gamma=a.gamma,
        turn_weight=a.turn_weight,
        scope=a.scope,
        horizon=a.horizon,
    )
    sampled = sum(len(turn.reply.token_ids or ()) for d in dialogues for turn in d.turns)
    rollout, update = float(timing.get("gen", 0.0)), float(timing.get("update_actor", 0.0))
    found = score(config, "", dialogues)
    return {
        "step": step,
        **numbers.dialogue_metrics(dialogues),
        "score": found.composite.epm_q if found else None,
        **numbers.credit_metrics(rewards, credit),
        **{ours: float(measured[name]) for ours, name in _NAMES.items() if name in measured},
        "rollout_s": rollout,
        "update_s": update,
        "step_s": float(timing.get("step", rollout + update)),
        "sampled_tokens": sampled,
        "sampled_per_s": sampled / max(rollout, 1e-9),
    }


def log(run: RunDir, record: dict[str, Any]) -> None:
    with JsonlWriter(run.metrics) as writer:
        writer.write(record)


def for_trackers(record: dict[str, Any]) -> dict[str, float]:
    """Our numbers beside verl's own."""
    return {f"mapo/{name}": value for name, value in numbers.flat(record).items()}


def score_validation(run: RunDir, config: Config, step: int) -> dict[str, Any] | None:
    """The score of the validation just played; the best one so far is remembered."""
    now = score(config, f"validation_{step:05d}", dialogues_of(run, config, "validation", step))
    if now is None:
        return None
    found = {"epm_q": now.composite.epm_q, "passes": now.passes, "n": now.n}
    known = best(run)
    if step and (known is None or found["epm_q"] > known["epm_q"]):
        write_json(run.root / "best.json", {"step": step, **found})
    return found


def best(run: RunDir) -> dict[str, Any] | None:
    file = run.root / "best.json"
    return json.loads(file.read_bytes()) if file.exists() else None


def score(config: Config, name: str, dialogues: list[Dialogue]) -> Score | None:
    return score_dialogues(name, dialogues, Rubric.load(config.scenarios.domain))


def set_aside(run: RunDir, step: int) -> None:
    """A step that was cut off is played anew, with other words: its dialogues are kept, out of the way."""
    for file in run.dialogues.glob(f"step_{step:05d}*.jsonl"):
        aside = run.dialogues / "cut_off"
        aside.mkdir(exist_ok=True)
        at = next(n for n in range(10**6) if not (aside / f"{file.stem}-{n}.jsonl").exists())
        os.replace(file, aside / f"{file.stem}-{at}.jsonl")


def check_usable(run: RunDir, config: Config, step: int) -> None:
    """Say so where a step has nothing to learn from: verl would only find its batch empty."""
    dialogues = dialogues_of(run, config, "train", step)
    if dialogues and all(d.error is not None for d in dialogues):
        told = f"not one dialogue of step {step} can be used; the first: {dialogues[0].error}"
        leave_word(run, f"{run.dialogues_of(step)}: {told}")


def why_stopped(run: RunDir) -> str | None:
    """What one of the playing processes found to be the end of the run."""
    file = run.root / STOPPED
    return file.read_text(encoding="utf-8").strip() if file.exists() else None


def link_checkpoints(run: RunDir, folder: Path) -> None:
    """checkpoints/step_00010 -> the model in verl's checkpoint; links to those it has deleted go."""
    there = run.checkpoint(0).parent
    there.mkdir(parents=True, exist_ok=True)
    for made in folder.glob("global_step_*/actor/huggingface"):
        link = run.checkpoint(int(made.parents[1].name.rpartition("_")[2]))
        if not os.path.lexists(link) and (made / "config.json").exists():
            link.symlink_to(os.path.relpath(made, there), target_is_directory=True)
    for link in there.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink()


def keep_best(run: RunDir) -> None:
    """The best model so far stays when verl deletes its checkpoint: a folder takes the place of the link.

    Its files are hard links, so it costs nothing as long as verl's are there too.
    """
    chosen = best(run)
    folder = run.checkpoint(chosen["step"]) if chosen else None
    if folder is None or not folder.is_symlink() or not folder.exists():
        return
    draft = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(folder.resolve(), draft, copy_function=_linked)
    folder.unlink()
    os.replace(draft, folder)
    for other in folder.parent.glob("step_*"):
        if other != folder and not other.is_symlink():
            shutil.rmtree(other)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one that has no such links
        shutil.copy2(source, target)
