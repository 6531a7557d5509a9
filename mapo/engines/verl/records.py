"""The trainer's access to the run directory, which has the same files as in a local run.

Each worker process writes its own dialogue files (`step_00001.jsonl`, `step_00001.1.jsonl`, ...), so the run
directory must be visible from all nodes. verl's checkpoints are in `verl/checkpoints`;
`checkpoints/step_00010` links to the Hugging Face folder inside one of them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from mapo.config import Config, Model
from mapo.credit import compute_credit
from mapo.engines.verl.settings import learning_rate_at
from mapo.engines.verl.worker import dialogue_file
from mapo.errors import JudgeError, TrainError
from mapo.measure.rubric import Rubric
from mapo.sandbox.monitoring.judge_failures import JudgeMonitor
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.score import Score, score_dialogues
from mapo.scoring.spot_checks import CheckWindow, restored_window
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
    **{name: f"mapo/{name}" for name in ("tokens", "gpu_gb")},
}
"""Names in metrics.jsonl -> names of verl's and MapoTrainer's metrics."""
_FIRST = ("drift", "ratio_max", "clip_fraction")


def dialogues_of(run: RunDir, config: Config, split: str, step: int) -> list[Dialogue]:
    """Return the dialogues of a split at a step from all processes. For each id, the latest one counts."""
    files = process_files(dialogue_file(run, split, step, config.optim.steps, 0))
    dialogues: dict[str, Dialogue] = {}
    for file in sorted(files, key=lambda f: (f.stat().st_mtime_ns, f.name)):
        dialogues |= {d.id: d for d in read_dialogues(file) if not isinstance(d, BadLine)}
    return [dialogues[name] for name in sorted(dialogues)]


def due_splits(run: RunDir, config: Config, step: int) -> list[str]:
    """Return the splits ("validation", "test") that are due at a step and not complete on disk."""
    e, steps = config.eval, config.optim.steps
    splits = ["validation"] if step and e.due(step, steps) else []
    if e.test_repeats and step in (0, steps):
        splits.append("test")
    return [split for split in splits if not is_complete(run, config, split, step)]


def is_complete(run: RunDir, config: Config, split: str, step: int) -> bool:
    """Return whether every dialogue of a validation or test is on disk. Broken dialogues count."""
    s, e = config.scenarios, config.eval
    repeats = e.repeats if split == "validation" else e.test_repeats
    expected = {
        f"{scenario.id}_{k}"
        for scenario in load_scenarios(getattr(s, split), s.domain)
        for k in range(1, repeats + 1)
    }
    return expected <= {d.id for d in dialogues_of(run, config, split, step)}


def check_judge(run: RunDir, config: Config, split: str, step: int) -> None:
    """Write a stop reason if the judge failed too often, counted over the dialogues of all processes."""
    monitor = JudgeMonitor(config.roles.max_unscored)
    try:
        for dialogue in dialogues_of(run, config, split, step):
            for turn in dialogue.turns:
                monitor.update(turn)
    except JudgeError as error:
        write_stop_reason(run, str(error), keep_first=True)


def step_record(
    run: RunDir,
    config: Config,
    step: int,
    measured: dict[str, Any],
    timing: dict[str, Any],
    checks: CheckWindow | None = None,
) -> dict[str, Any]:
    """Return a step's line of metrics.jsonl, from its dialogues and verl's measurements. Its spot checks are
    added to `checks`."""
    dialogues = dialogues_of(run, config, "train", step)
    usable = [d for d in dialogues if d.usable]
    rubric = Rubric.load(config.scenarios.domain)
    credit = compute_credit(usable, config.advantage.resolved(config.reward.name), rubric)
    sampled = sum(len(turn.reply.token_ids or ()) for d in dialogues for turn in d.turns)
    seconds = {name: float(value) for name, value in timing.items()}
    rollout, update = seconds.get("gen", 0.0), seconds.get("update_actor", 0.0)
    tokens = measured.get("mapo/tokens")
    first = {name: measured.get(f"mapo/first_{name}") for name in _FIRST}
    step_score = score(config, "", dialogues)
    return {
        "step": step,
        **numbers.dialogue_metrics(
            dialogues, load_scenarios(config.scenarios.train, config.scenarios.domain), rubric
        ),
        "score": step_score.composite.epm_q if step_score else None,
        **({"check": line} if checks is not None and (line := checks.add(dialogues)) else {}),
        **numbers.credit_metrics([d.rewards for d in usable], credit),
        **numbers.state_metrics(usable, credit, config.advantage),
        **numbers.fault_metrics(usable, config.advantage),
        "lr": learning_rate_at(config, step),
        **{key: _finite(measured[name]) for key, name in _NAMES.items() if name in measured},
        "first": {name: _finite(value) for name, value in first.items() if value is not None},
        "rollout_s": rollout,
        "update_s": update,
        "other_s": sum(seconds.get(name, 0.0) for name in ("old_log_prob", "ref", "adv", "update_weights")),
        "step_s": seconds.get("step", sum(seconds.values())),
        "time": {name: value for name, value in seconds.items() if name != "step"},
        "sampled_tokens": sampled,
        "sampled_per_s": sampled / max(rollout, 1e-9),
        **({} if tokens is None else {"trained_per_s": tokens / max(update, 1e-9)}),
    }


def restored_checks(run: RunDir, config: Config, step: int) -> CheckWindow | None:
    """Return the latest spot checks before a step; None if the run has none."""
    if config.roles.check is None:
        return None
    rubric = Rubric.load(config.scenarios.domain)
    return restored_window(run, step - 1, config.roles.check.window, rubric)


def check_agreement(run: RunDir, config: Config, checks: CheckWindow | None) -> None:
    """Write a stop reason if the judge and the judge of spot checks agree too little."""
    limit = config.roles.check.limit if config.roles.check else None
    if checks is not None and (error := checks.disagreement(limit, str(run.root))):
        write_stop_reason(run, error, keep_first=True)


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def check_gradient(measured: dict[str, Any], step: int, where: Path) -> None:
    """Raise TrainError if the gradient is not finite. verl alone would skip the update and continue."""
    norm = measured.get("actor/grad_norm")
    if norm is not None and not math.isfinite(norm):
        raise TrainError(
            f"the gradient of step {step} is not finite ({norm})",
            where=str(where),
            fix="Use a smaller optim.lr; --resume continues from the last checkpoint",
        )


def append_metrics(run: RunDir, record: dict[str, Any]) -> None:
    with JsonlWriter(run.metrics) as writer:
        writer.write(record)


def step_line(run: RunDir, step: int) -> dict[str, Any] | None:
    """Return a step's line of metrics.jsonl, if it has one."""
    return next((line for line in read_steps(run.metrics) if line["step"] == step), None)


def tracker_metrics(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a line under the prefix `mapo/`, for verl's trackers."""
    return {f"mapo/{name}": value for name, value in numbers.flat(record).items()}


def score_validation(run: RunDir, config: Config, step: int) -> dict[str, Any] | None:
    """Score the validation of a step and update best.json if it is the best so far."""
    result = score(config, f"validation_{step:05d}", dialogues_of(run, config, "validation", step))
    if result is None:
        return None
    summary = {"epm_q": result.composite.epm_q, "passes": result.passes, "n": result.n}
    best = best_validation(run)
    if step and (best is None or summary["epm_q"] > best["epm_q"]):
        write_json(run.best, {"step": step, **summary})
    return summary


def best_validation(run: RunDir) -> dict[str, Any] | None:
    return json.loads(run.best.read_bytes()) if run.best.exists() else None


def score(config: Config, name: str, dialogues: list[Dialogue]) -> Score | None:
    return score_dialogues(name, dialogues, Rubric.load(config.scenarios.domain))


def move_interrupted_step(run: RunDir, step: int) -> None:
    """Move the dialogues of an interrupted step to dialogues/cut_off, because the step is played again."""
    for file in process_files(run.dialogues_of(step)):
        run.cut_off.mkdir(exist_ok=True)
        number = next(n for n in range(10**6) if not (run.cut_off / f"{file.stem}-{n}.jsonl").exists())
        os.replace(file, run.cut_off / f"{file.stem}-{number}.jsonl")


def check_usable(run: RunDir, config: Config, step: int) -> None:
    """Write a stop reason if no dialogue of a step is usable. verl would only report an empty batch."""
    dialogues = dialogues_of(run, config, "train", step)
    if dialogues and not any(d.usable for d in dialogues):
        reason = f"no dialogue of step {step} is usable; the first failed with: {dialogues[0].error}"
        write_stop_reason(run, f"{run.dialogues_of(step)}: {reason}", keep_first=True)


def stop_reason(run: RunDir) -> str | None:
    """Return the reason to stop that a process of the run has written, if any."""
    return run.stopped.read_text(encoding="utf-8").strip() if run.stopped.exists() else None


def last_checkpoint(folder: Path) -> int:
    """Return the step of verl's last complete checkpoint, 0 if there is none."""
    try:
        last = int((folder / "latest_checkpointed_iteration.txt").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return last if (folder / f"global_step_{last}").is_dir() else 0


def link_checkpoints(run: RunDir, folder: Path, model_config: Model) -> None:
    """Link checkpoints/step_00010 etc. to the models in verl's checkpoints; remove dangling links.

    With LoRA they are adapters, which are first written in a form that other programs read.
    """
    target = run.checkpoints
    target.mkdir(parents=True, exist_ok=True)
    last = last_checkpoint(folder)
    for model in folder.glob("global_step_*/actor/huggingface"):
        step = int(model.parents[1].name.rpartition("_")[2])
        link = run.checkpoint(step)
        if step <= last and not os.path.lexists(link) and (model / "config.json").exists():
            if model_config.lora:
                from mapo.engines.verl.adapter import write_adapter

                model = write_adapter(model.parent, model_config.lora, model_config.source)
            link.symlink_to(os.path.relpath(model, target), target_is_directory=True)
    for link in target.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink()


def keep_best(run: RunDir) -> None:
    """Replace the link to the best model by a folder, so that it remains when verl deletes its checkpoint.

    The files are hard links, which take no extra space while verl's files exist.
    """
    best = best_validation(run)
    folder = run.checkpoint(best["step"]) if best else None
    if folder is None or not folder.is_symlink() or not folder.exists():
        return
    draft = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(folder.resolve(), draft, copy_function=_link_or_copy)
    folder.unlink()
    os.replace(draft, folder)
    for other in folder.parent.glob("step_*"):
        if other != folder and not other.is_symlink():
            shutil.rmtree(other)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
