"""Run directories for the viewer's tests: as a training and a benchmark leave them, made without a model."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

from mapo import Reply, Rubric, Trajectory, Turn
from mapo.measure.reward import rewards_of
from mapo.records import encode_dialogue
from mapo.types import AxisMarks, Dialogue, Direction, Ending, Mark, StopReason

CONFIG = """
[model]
source = "tiny"
[advantage]
method = "{method}"
gamma = 0.85
{advantage}
[reward]
name = "idr"
[optim]
steps = {steps}
"""
TAGS = [
    {"category": "career", "axis": "C", "difficulty": "easy"},
    {"category": "health", "axis": "A", "difficulty": "hard"},
    {"category": "living", "axis": "P", "difficulty": "extreme"},
]


def talk(rubric: Rubric, name: str, turns: int = 4, seed: int = 0, **kw) -> Dialogue:
    """A dialogue whose levels, states and rewards agree, as play() would leave it."""
    rng = random.Random(f"{name}/{seed}")
    start = {i.key: Mark(2) for i in rubric.indicators}
    path = Trajectory(rubric, rubric.start(start))
    made = []
    for number in range(1, turns + 1):
        levels = {
            axis.key: AxisMarks(
                Mark(rng.randint(0, 2), evidence=f"words {number}", reason="it takes up what was said"),
                Mark(-rng.randint(0, 1)),
            )
            for axis in rubric.axes
        }
        state = path.judge(levels)
        reply = Reply(f"reply {number} of {name}", token_ids=(5, 6, 7), logprobs=(-0.05, -1.5, -6.0))
        made.append(
            Turn(
                f"line {number} of {name}", reply, levels, state, direction=Direction("wait", "", "too early")
            )
        )
    ending = Ending(StopReason.TIMEOUT)
    rewards = rewards_of(path, "idr", distance="zone", ending=ending)
    made = [replace(turn, reward=reward) for turn, reward in zip(made, rewards, strict=True)]
    known = {
        "id": name,
        "scenario": name.rpartition("_")[0] or name,
        "group": name.rpartition("_")[0] or name,
        "model": "tiny",
        "start_levels": start,
        "start": path.start,
        "turns": tuple(made),
        "ending": ending,
        "rubric": rubric.name,
        "profile": "published",
        "reward": "idr/zone",
    }
    return Dialogue(**{**known, **kw})


def write_lines(path: Path, dialogues: list[Dialogue]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.writelines(encode_dialogue(d) + b"\n" for d in dialogues)
    return path


def metrics_line(step: int) -> dict:
    return {
        "step": step, "dialogues": 6, "broken": 0, "endings": {"timeout": 6}, "turns": 4.0, "unscored": 0.0,
        "reward": step / 10, "reply_tokens": 3.0, "score": 30.0 + step, "grad_norm": 1.0 / step,
        "entropy": 0.5, "kl_start": 0.01 * step, "kl_old": 0.001, "clip_fraction": 0.02,
        "sampled_per_s": 100.0, "trained_per_s": 80.0, "rollout_s": 1.0, "update_s": 1.0,
    }  # fmt: skip


def step_talks(rubric: Rubric, step: int, siblings: int = 3, scenarios: int = 2) -> list[Dialogue]:
    return [
        talk(rubric, f"{g:03d}_scenario-{g}_{k}", turns=3 + k, seed=step, step=step, tags=TAGS[g % 3])
        for g in range(scenarios)
        for k in range(siblings)
    ]


def training(
    root: Path,
    name: str = "first",
    steps: int = 3,
    *,
    method: str = "mapo",
    advantage: str = "",
    done: bool = True,
) -> Path:
    """A whole training run of a few small steps. `advantage` are further lines of that section; without any,
    the run is one of an earlier version."""
    run, rubric = root / name, Rubric.load("empathy")
    run.mkdir(parents=True)
    (run / "config.toml").write_text(CONFIG.format(method=method, steps=steps, advantage=advantage))
    (run / "manifest.json").write_text(json.dumps({"schema": "mapo.train/1", "method": method, "seed": 7}))
    with open(run / "metrics.jsonl", "w") as file:
        file.writelines(json.dumps(metrics_line(step)) + "\n" for step in range(1, steps + 1))
    for step in range(1, steps + 1):
        write_lines(run / "dialogues" / f"step_{step:05d}.jsonl", step_talks(rubric, step))
    for part, seed in (("before", 100), ("after", 101), ("validation_00002", 102)):
        held = [talk(rubric, f"held-{i}_1", seed=seed, tags=TAGS[i], group=f"held-{i}") for i in range(3)]
        write_lines(run / "eval" / part / "dialogues.jsonl", held)
    if done:
        test = {"epm_q": 30.0, "interval": [28.0, 32.0], "passes": 1, "n": 3}
        summary = {"schema": "mapo.summary/1", "method": method, "reward": "idr", "model": "tiny", "seed": 7}
        summary |= {"steps": steps, "before": test, "after": {**test, "epm_q": 35.5}}
        (run / "summary.json").write_text(json.dumps(summary))
    return run


def benchmark(root: Path, name: str = "bench", n: int = 3) -> Path:
    """An EMPA run of `n` scenarios, all of them played."""
    run, rubric = root / name, Rubric.load("empathy")
    made = [talk(rubric, f"case-{i}", turns=5, tags=TAGS[i % 3], model="big") for i in range(n)]
    write_lines(run / "dialogues" / "empa.jsonl", made)
    manifest = {"schema": "mapo.empa/1", "model": "big", "scenarios": {d.id: "x" for d in made}, "repeats": 1}
    (run / "manifest.json").write_text(json.dumps(manifest))
    ledger = {"role": "judge", "model": "big-judge", "calls": 12, "hits": 3, "retries": 0, "failures": 1}
    ledger |= {"prompt": 4000, "cached": 0, "completion": 900, "seconds": 1.0}
    rows = [{**ledger, "cost": 0.25}, {**ledger, "role": "user", "cost": None}]
    (run / "ledger.json").write_text(json.dumps({"schema": "mapo.ledger/1", "rows": rows}))
    return run


def questions(root: Path, name: str = "quiz") -> Path:
    """An EmoBench run with its result."""
    run = root / name
    run.mkdir(parents=True)
    result = {
        "schema": "mapo.result/1", "benchmark": "emobench", "model": "big", "judge": None, "settings": {},
        "complete": True, "n": 2, "of": 2, "items": [],
        "scores": {"EA": 0.5, "EU": 0.25, "Overall": 0.375},
        "intervals": {"EA": [0.4, 0.6], "EU": None}, "notes": ["EU is not above answering A every time"],
        "details": {"languages": {"en": {"EA": {"accuracy": 0.5}}}, "parse_rate": 1.0},
    }  # fmt: skip
    (run / "result.json").write_text(json.dumps(result))
    (run / "manifest.json").write_text(json.dumps({"schema": "mapo.emobench/1", "model": "big"}))
    return run


def age(folder: Path, seconds: float = 3600.0) -> None:
    """Make every file below look as old as that."""
    for path in [folder, *folder.rglob("*")]:
        told = path.lstat()
        times = (told.st_atime - seconds, told.st_mtime - seconds)
        os.utime(path, times, follow_symlinks=False)
