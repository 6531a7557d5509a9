"""Compare finished training runs of the same model and work on different engines.

    mapo train CONFIG --out runs/local
    mapo train CONFIG --engine verl verl.gpus=1 --out runs/verl
    .venv/bin/python benchmarks/engines.py local=runs/local "verl + vLLM=runs/verl" [--json FILE --setup TEXT]

Reads config.toml, manifest.json and metrics.jsonl of every run and prints a table with the medians over its
steps, without the first --skip (they compile and warm up). --json writes a result file that
scripts/docs_tables.py can insert into a page. Settings and work that differ are listed below the table.

- step: seconds of a step, without validation and checkpoint. `other` is neither rollout nor update: in verl,
  log-probabilities computed again, advantages, and weights sent to the sampler.
- sampled, trained: the policy's tokens per second of rollout, and of update.
- GPU: the most memory in use on a GPU, by all processes; where that is not recorded, what the trainer's
  process allocated (marked with *).
- drift: mean |log-probability of the trainer - that of the sampler| before the first optimizer step.
  First ratio: the largest probability of the trainer over that of the sampler; clipped: the share of tokens
  that this alone clips. verl trains on recomputed log-probabilities, so its own first ratios are 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from mapo.errors import MapoError
from mapo.store import RunDir, read_steps
from mapo.train.setup import engine_of, load_run_config

COLUMNS = {
    "engine": "{engine}",
    "step, s": "{step_s:.2f}",
    "rollout": "{rollout_s:.2f}",
    "update": "{update_s:.2f}",
    "other": "{other_s:.2f}",
    "sampled tokens/s": "{sampled_per_s:,.0f}",
    "trained tokens/s": "{trained_per_s:,.0f}",
    "GPU, GiB": "{gpu_gb:.1f}{allocated}",
    "drift": "{drift:.1e}",
    "first ratio": "{ratio_max:.3f}",
    "clipped": "{clip_fraction:.2%}",
}
SAME = ("dialogues", "turns", "reply_tokens", "tokens")
"""Metrics that describe the work of a step."""
OWN_SECTIONS = {"run", "verl", "eval"}
"""Sections of a config that may differ between the engines."""


class RunError(Exception):
    """A run that cannot be compared."""


def read_run(name: str, folder: Path, skip: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """Return a run's row of the table, its settings by name, and its work per step."""
    steps = read_steps(RunDir(folder).metrics) if RunDir(folder).metrics.exists() else []
    if len(steps) <= skip:
        raise RunError(f"{folder}: {len(steps)} steps are recorded, and the first {skip} are skipped")
    lines = steps[skip:]
    settings = load_run_config(folder).model_dump(mode="json")
    flat = {f"{s}.{k}": v for s, keys in settings.items() if s not in OWN_SECTIONS for k, v in keys.items()}
    work = {key: value for key in SAME if (value := middle(lines, key)) is not None}
    seconds = {key: middle(lines, key) for key in ("step_s", "rollout_s", "update_s")}
    rest = None if None in seconds.values() else median(map(other_seconds, lines))
    row = {"engine": name, **seconds, "other_s": rest}
    row |= {key: middle(lines, key) for key in ("sampled_per_s", "trained_per_s")}
    used, allocated = largest(lines, "gpu_gb"), largest(lines, "memory_gb")
    row |= {"gpu_gb": allocated if used is None else used, "allocated": "*" if used is None else ""}
    row |= {key: middle(lines, "first", key) for key in ("drift", "ratio_max", "clip_fraction")}
    return {key: value for key, value in row.items() if value is not None}, flat, work


def values(lines: list[dict[str, Any]], *path: str) -> list[float]:
    """Return the numbers at a path of every line that has one."""
    found: list[Any] = list(lines)
    for key in path:
        found = [item.get(key) for item in found if isinstance(item, dict)]
    return [float(value) for value in found if isinstance(value, int | float)]


def middle(lines: list[dict[str, Any]], *path: str) -> float | None:
    numbers = values(lines, *path)
    return median(numbers) if numbers else None


def largest(lines: list[dict[str, Any]], *path: str) -> float | None:
    return max(values(lines, *path), default=None)


def other_seconds(line: dict[str, Any]) -> float:
    return float(line["step_s"] - line["rollout_s"] - line["update_s"])


def differences(every: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each setting that is not the same in all runs."""
    names = dict.fromkeys(key for settings in every.values() for key in settings)
    lines = []
    for name in names:
        by_run = {run: settings.get(name) for run, settings in every.items()}
        if len({json.dumps(value, sort_keys=True) for value in by_run.values()}) > 1:
            lines.append(f"{name}: " + "; ".join(f"{run} {value}" for run, value in by_run.items()))
    return lines


def show(rows: list[dict[str, Any]]) -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for row in rows:
        print(f"| {' | '.join(cell(form, row) for form in COLUMNS.values())} |")


def cell(form: str, row: dict[str, Any]) -> str:
    try:
        return form.format_map(row)
    except KeyError:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="[NAME=]FOLDER")
    parser.add_argument("--skip", type=int, default=1, help="first steps to leave out (default: 1)")
    parser.add_argument("--json", type=Path, help="write a result file")
    parser.add_argument("--setup", default="", help="where and how the runs were made, for the result file")
    args = parser.parse_args()
    rows, settings, work = [], {}, {}
    for text in args.runs:
        name, _, folder = text.rpartition("=")
        try:
            row, settings[name or folder], work[name or folder] = read_run(
                name or engine_of(Path(folder)), Path(folder), args.skip
            )
        except (RunError, MapoError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        rows.append(row)
    show(rows)
    notes = [f"work per step: {run}: {described(done)}" for run, done in work.items()]
    notes += [f"setting differs: {line}" for line in differences(settings)]
    print("\n" + "\n".join(notes))
    if args.json:
        command = "python benchmarks/engines.py " + " ".join(f"'{t}'" if " " in t else t for t in args.runs)
        setup = args.setup or "Medians over steps."
        result = {"command": command, "setup": setup, "columns": COLUMNS, "rows": rows, "notes": notes}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def described(work: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:,.1f}" for key, value in work.items())


if __name__ == "__main__":
    sys.exit(main())
