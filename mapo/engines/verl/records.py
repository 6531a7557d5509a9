"""The run directory of a verl run, written and read by its trainer: the same files as a local run's.

The processes that play write dialogues side by side (`step_00001.jsonl`, `step_00001.1.jsonl`, ...); so the
run directory must be one that all nodes see. verl's own checkpoints lie in `verl/checkpoints`; what
`checkpoints/step_00010` points to is the plain Hugging Face folder in one of them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from mapo.advantage import advantages
from mapo.config import Config
from mapo.engines.verl.settings import rate_at
from mapo.engines.verl.site import dialogue_file
from mapo.errors import JudgeError, TrainError
from mapo.measure.rubric import Rubric
from mapo.sandbox.rollout import JudgeMonitor
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.score import Score, score_dialogues
from mapo.store import (
    BadLine,
    JsonlWriter,
    RunDir,
    process_files,
    read_dialogues,
    read_steps,
    write_stop_reason,
)
from mapo.train import metrics as numbers
from mapo.train.rollouts import write_json
from mapo.types import Dialogue

_NAMES = {
    "grad_norm": "actor/grad_norm",
    "loss": "actor/pg_loss",
    "clip_fraction": "actor/pg_clipfrac",
    "entropy": "actor/entropy",
    "kl_old": "actor/ppo_kl",
    "kl_start": "actor/kl_loss",
    "memory_gb": "perf/max_memory_allocated_gb",
    **{name: f"mapo/{name}" for name in ("drift", "advantage_max", "advantage_min", "advantage_mean")},
}
"""Our names for what verl and our trainer measure."""


def dialogues_of(run: RunDir, config: Config, split: str, step: int) -> list[Dialogue]:
    """Everybody's dialogues of a split at a step; of an id, the one that was written last."""
    files = process_files(dialogue_file(run, split, step, config.optim.steps, 0))
    found: dict[str, Dialogue] = {}
    for file in sorted(files, key=lambda f: (f.stat().st_mtime_ns, f.name)):
        found |= {d.id: d for d in read_dialogues(file) if not isinstance(d, BadLine)}
    return [found[name] for name in sorted(found)]


def due(run: RunDir, config: Config, step: int) -> list[str]:
    """What is to be played at this point and is not on disk: validation, test, both or nothing."""
    e, steps = config.eval, config.optim.steps
    found = ["validation"] if step and e.due(step, steps) else []
    if e.test_repeats and step in (0, steps):
        found.append("test")
    return [split for split in found if not complete(run, config, split, step)]


def complete(run: RunDir, config: Config, split: str, step: int) -> bool:
    """Every dialogue of a validation or test is on disk, broken ones too."""
    s, e = config.scenarios, config.eval
    repeats = e.repeats if split == "validation" else e.test_repeats
    wanted = {
        f"{scenario.id}_{k}"
        for scenario in load_scenarios(getattr(s, split), s.domain)
        for k in range(1, repeats + 1)
    }
    return wanted <= {d.id for d in dialogues_of(run, config, split, step)}


def check_judge(run: RunDir, config: Config, split: str, step: int) -> None:
    """The watch of each process sees its own dialogues only; here are everybody's."""
    watch = JudgeMonitor(config.roles.max_unscored)
    try:
        for dialogue in dialogues_of(run, config, split, step):
            for turn in dialogue.turns:
                watch.update(turn)
    except JudgeError as deaf:
        write_stop_reason(run, str(deaf), keep_first=True)


def step_record(
    run: RunDir, config: Config, step: int, measured: dict[str, Any], timing: dict[str, Any]
) -> dict[str, Any]:
    """One line of metrics.jsonl, from the step's dialogues and what was measured."""
    dialogues = dialogues_of(run, config, "train", step)
    usable = [d for d in dialogues if d.usable]
    rewards = [d.rewards for d in usable]
    credit = advantages(rewards, [d.group for d in usable], **config.advantage.options())
    sampled = sum(len(turn.reply.token_ids or ()) for d in dialogues for turn in d.turns)
    rollout, update = float(timing.get("gen", 0.0)), float(timing.get("update_actor", 0.0))
    found = score(config, "", dialogues)
    return {
        "step": step,
        **numbers.dialogue_metrics(
            dialogues, load_scenarios(config.scenarios.train, config.scenarios.domain)
        ),
        "score": found.composite.epm_q if found else None,
        **numbers.credit_metrics(rewards, credit),
        "lr": rate_at(config, step),
        **{ours: _finite(measured[name]) for ours, name in _NAMES.items() if name in measured},
        "rollout_s": rollout,
        "update_s": update,
        "other_s": sum(float(timing.get(name, 0.0)) for name in ("old_log_prob", "ref", "adv")),
        "sampled_tokens": sampled,
        "sampled_per_s": sampled / max(rollout, 1e-9),
    }


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def check_gradient(measured: dict[str, Any], step: int, where: Path) -> None:
    """verl passes over an update whose gradient is not finite; a run of ours stops, as everywhere."""
    norm = measured.get("actor/grad_norm")
    if norm is not None and not math.isfinite(norm):
        raise TrainError(
            f"the gradient of step {step} is not finite ({norm})",
            where=str(where),
            fix="A smaller optim.lr; --resume goes on from the last checkpoint",
        )


def log(run: RunDir, record: dict[str, Any]) -> None:
    with JsonlWriter(run.metrics) as writer:
        writer.write(record)


def line_of(run: RunDir, step: int) -> dict[str, Any] | None:
    return next((line for line in read_steps(run.metrics) if line["step"] == step), None)


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
        write_json(run.best, {"step": step, **found})
    return found


def best(run: RunDir) -> dict[str, Any] | None:
    return json.loads(run.best.read_bytes()) if run.best.exists() else None


def score(config: Config, name: str, dialogues: list[Dialogue]) -> Score | None:
    return score_dialogues(name, dialogues, Rubric.load(config.scenarios.domain))


def set_aside(run: RunDir, step: int) -> None:
    """A step that was cut off is played anew, with other words: its dialogues are kept, out of the way."""
    for file in process_files(run.dialogues_of(step)):
        run.cut_off.mkdir(exist_ok=True)
        at = next(n for n in range(10**6) if not (run.cut_off / f"{file.stem}-{n}.jsonl").exists())
        os.replace(file, run.cut_off / f"{file.stem}-{at}.jsonl")


def check_usable(run: RunDir, config: Config, step: int) -> None:
    """Say so where a step has nothing to learn from: verl would only find its batch empty."""
    dialogues = dialogues_of(run, config, "train", step)
    if dialogues and not any(d.usable for d in dialogues):
        told = f"not one dialogue of step {step} can be used; the first: {dialogues[0].error}"
        write_stop_reason(run, f"{run.dialogues_of(step)}: {told}", keep_first=True)


def why_stopped(run: RunDir) -> str | None:
    """What one of the playing processes found to be the end of the run."""
    return run.stopped.read_text(encoding="utf-8").strip() if run.stopped.exists() else None


def link_checkpoints(run: RunDir, folder: Path) -> None:
    """checkpoints/step_00010 -> the model in verl's checkpoint; links to those it has deleted go."""
    there = run.checkpoints
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
