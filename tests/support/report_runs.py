"""Run folders made up for the tests of reports: real records, numbers chosen by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from mapo import Rubric
from mapo.config import dump_config, load_config
from mapo.records import encode_dialogue
from mapo.types import Dialogue, Reply
from support.builders import dialogue, marks

RUBRIC = Rubric.load("empathy")


def talk(levels: list[int | None], **kw) -> Dialogue:
    """A dialogue whose turns got these progress levels (negative: regression; None: unscored) and are paid
    10 times the level."""
    forms = [None if n is None else marks(RUBRIC, max(n, 0), min(n, 0)) for n in levels]
    made = dialogue(RUBRIC, forms, **kw)
    turns = tuple(
        replace(turn, reward=None if n is None else 10.0 * n)
        for turn, n in zip(made.turns, levels, strict=True)
    )
    return replace(made, turns=turns)


def saying(made: Dialogue, text: str) -> Dialogue:
    turns = tuple(replace(t, user=text, reply=Reply(text)) for t in made.turns)
    return replace(made, turns=turns)


def write_lines(path: Path, dialogues: list[Dialogue]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode_dialogue(d) + b"\n" for d in dialogues))
    return path


def step(number: int, **more) -> dict:
    return {
        "step": number,
        "dialogues": 4,
        "reward": number / 10,
        "score": 20.0 + number,
        "grad_norm": 1.0 / number,
        "entropy": 0.5,
        "kl_old": 0.01,
        "clip_fraction": 0.02,
        "turns": 3.0,
        "reply_tokens": 12.0,
        "unscored": 0.0,
        "cut": 0.1,
        "endings": {"timeout": 3, "success": 1},
        "turn_part_std": 1.0,
        "batch_part_std": 0.9,
        "advantage_std": 0.8,
        "parts_correlation": 0.4,
        "sampled_per_s": 100.0,
        "trained_per_s": 200.0,
        "rollout_s": 1.0,
        "update_s": 2.0,
        **more,
    }


def group(number: int) -> list[Dialogue]:
    """Four siblings of one scenario."""
    plans = ([1, 1, 0], [0, 1, 1], [1, None, 2], [0, 0, -1])
    return [
        talk(p, id=f"{number}_{i}", scenario="s", group=f"{number}_s", step=number)
        for i, p in enumerate(plans)
    ]


def training(root: Path, *, method="mapo", seed=0, steps=6, after=30.0, cases=3, finished=True) -> Path:
    """A whole training run: metrics, dialogues, tests before and after, summary."""
    root.mkdir(parents=True, exist_ok=True)
    told = [
        "roles.judge.model=",
        f"advantage.method={method}",
        "advantage.gamma=0.5",
        f"run.seed={seed}",
        "eval.test_repeats=1",
    ]
    config = load_config(None, told)
    (root / "config.toml").write_text(dump_config(config))
    manifest = {
        "schema": "mapo.train/1",
        "method": method,
        "seed": seed,
        "versions": {"mapo": "1.2.3"},
        "scenarios": {"test": {f"c{k}": "h" for k in range(cases)}},
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    lines = [
        step(n, **({"validation": {"epm_q": 40.0, "passes": 1, "n": 2}} if n % 3 == 0 else {}))
        for n in range(1, steps + 1)
    ]
    (root / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for n in range(1, steps + 1):
        write_lines(root / "dialogues" / f"step_{n:05d}.jsonl", group(n))
    for label, level in (("before", 0), ("after", 1)):
        tests = [
            talk([level, 1, level, 0][: 3 + k % 2], id=f"c{k}_1", scenario=f"c{k}") for k in range(cases)
        ]
        write_lines(root / "eval" / label / "dialogues.jsonl", tests)
    if finished:
        score = {"interval": None, "passes": 0, "n": cases}
        summary = {
            "method": method, "reward": "idr", "model": "pocket", "seed": seed, "steps": steps,
            "chosen_step": steps, "dialogues": 4 * steps, "seconds": 400.0,
            "before": {"epm_q": 20.0, **score}, "after": {"epm_q": after, **score},
            "validation": {"step": steps},
        }  # fmt: skip
        (root / "summary.json").write_text(json.dumps(summary))
    return root


def ablation(root: Path, methods=("mapo", "grpo"), seeds=(0, 1)) -> Path:
    for i, method in enumerate(methods):
        for seed in seeds:
            training(
                root / f"{method}_idr_seed{seed}",
                method=method,
                seed=seed,
                after=30.0 - 5 * i + seed,
                steps=3,
            )
    grid = {"schema": "mapo.ablate/1", "methods": [*methods], "rewards": ["idr"], "seeds": [*seeds]}
    (root / "manifest.json").write_text(json.dumps(grid))
    return root


def bench(root: Path, items: int = 4, **more) -> Path:
    """An EmoBench result.json."""
    from mapo.evals.summary import Scored, summarise, write_result

    root.mkdir(parents=True, exist_ok=True)
    scored = [Scored(f"EA-en-{i}", {"EA": float(i % 2)}) for i in range(items)]
    scored += [Scored(f"EU-en-{i}", {"EU": float(i % 3 == 0)}) for i in range(items)]
    scores, intervals = summarise(scored, {"Overall": ("EA", "EU")})
    told = {
        "model": "m",
        "settings": {"temperature": 0.6},
        "of": 2 * items,
        "details": {"by": {"en": {"EA": 0.5}}, "list": [1]},
    }
    write_result(
        root, benchmark="emobench", items=scored, scores=scores, intervals=intervals, **{**told, **more}
    )
    return root


def empa(root: Path, *, model: str = "m", cases: int = 4) -> Path:
    """A run of `mapo eval empa`."""
    cast = dict.fromkeys(("user", "director", "judge"), "scripted")
    played = [
        talk([k % 3 - 1, 1, 1], id=f"c{k}_1", scenario=f"c{k}", model=model, cast=cast,
             tags={"category": "home" if k % 2 else "work", "difficulty": ("easy", "hard")[k % 2]})
        for k in range(cases)
    ]  # fmt: skip
    write_lines(root / "dialogues" / "empa.jsonl", played)
    manifest = {
        "schema": "mapo.empa/1", "model": model, "cast": "scripted", "rubric": "empathy 0123",
        "repeats": 1, "seed": 0,
        "scenarios": {f"c{k}": "h" for k in range(cases)},
    }  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(manifest))
    row = {"role": "judge", "model": "j", "calls": 10, "hits": 1, "retries": 0, "failures": 0, "prompt": 1000,
           "cached": 0, "completion": 50, "seconds": 1.0, "cost": 0.25}  # fmt: skip
    (root / "ledger.json").write_text(json.dumps({"schema": "mapo.ledger/1", "rows": [row]}))
    return root
