"""The EMPA benchmark: any policy through a set of scenarios, on disk as it goes, resumable at any point.

OUT/manifest.json        what is being run; a resume must ask for the same
    dialogues/empa.jsonl each dialogue, complete before the next may start in its place
    empa/MODEL/*.json    the same as EMPA result files
    cache.sqlite         every model call, so that nothing is paid twice
    ledger.json          calls, tokens, cost by role
    health.json          repetition, lines against the persona, over-cooperation of the simulated people
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mapo.errors import InputError, RubricError
from mapo.evals.empa.result_files import result_path, write_result
from mapo.measure.rubric import Rubric
from mapo.runs.claim import digest, look
from mapo.sandbox.cast import Casting, Job, Policy, held_out_seed
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.scenario import Scenario, scenario_digest
from mapo.scoring.findings import warnings
from mapo.scoring.health import health
from mapo.store import BadLine, JsonlWriter, RunDir, read_dialogues, write_atomic
from mapo.types import Dialogue, Turn

HEALTH_SCHEMA = "mapo.health/1"
Watch = Callable[[Dialogue], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play: every scenario `repeats` times."""

    scenarios: Sequence[Scenario]
    repeats: int = 1
    seed: int = 0
    start_levels: Mapping[str, Mapping[str, int]] | None = None

    def check(self, rubric: Rubric) -> list[str]:
        """Refuse start levels that do not fit; say what of them is not used or not there."""
        if self.start_levels is None:
            return []
        known, asked = set(self.start_levels), {s.id for s in self.scenarios}
        for case in sorted(known & asked):
            try:
                rubric.start(self.start_levels[case])
            except RubricError as error:
                raise InputError(str(error), where=f"start levels of {case}") from None
        told = [f"no start levels for {case}" for case in sorted(asked - known)]
        return told + ([] if known & asked else ["the start levels name none of the chosen cases"])

    def jobs(self) -> list[Job]:
        known = self.start_levels or {}
        return [
            Job(
                scenario,
                id=scenario.id if self.repeats == 1 else f"{scenario.id}_{repeat}",
                group=scenario.id,
                seed=held_out_seed(self.seed, repeat),
                start_levels=known.get(scenario.id),
            )
            for scenario in self.scenarios
            for repeat in range(1, self.repeats + 1)
        ]


def manifest(plan: Plan, rules: Rules, model: str, cast: str | Mapping[str, str]) -> dict[str, Any]:
    """What makes a run the run it is; a resume must agree in all of it."""
    return {
        "schema": "mapo.empa/1",
        "model": model,
        "cast": cast,
        "scenarios": {s.id: scenario_digest(s) for s in plan.scenarios},
        "start_levels": digest(plan.start_levels) if plan.start_levels else None,
        "repeats": plan.repeats,
        "seed": plan.seed,
        "rubric": f"{rules.rubric.name} {digest(rules.rubric.measure)}",
        "profile": rules.profile,
        "reward": f"{rules.reward}/{rules.distance}",
        "min_turns": rules.min_turns,
        "max_turns": rules.max_turns,
        "temperature": rules.temperature,
        **({"top_p": rules.top_p} if rules.top_p != 1 else {}),
        "max_tokens": rules.max_tokens,
        **({"system": False} if rules.system is None else {}),
    }


class Kept(NamedTuple):
    """What a folder holds already: finished dialogues, and how often others broke."""

    finished: list[Dialogue]
    broken: Counter[str]
    bad: list[str]


def prepare(out: Path, asked: Mapping[str, Any], *, resume: bool) -> Kept:
    """Refuse a folder that is not this run's or free; find out what is done in it."""
    look(out, asked, resume=resume)
    return read_kept(out)


def read_kept(out: Path) -> Kept:
    kept = Kept([], Counter(), [])
    file = RunDir(out).empa_dialogues
    for item in read_dialogues(file) if file.exists() else ():
        if isinstance(item, BadLine):
            kept.bad.append(str(item))
        elif item.judged:
            kept.finished.append(item)
        else:
            kept.broken[item.id] += 1
    return kept


async def run(
    out: Path,
    plan: Plan,
    policy: Policy,
    casting: Casting,
    rules: Rules,
    *,
    kept: Kept | None = None,
    concurrency: int = 32,
    on_done: Watch | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> list[Dialogue]:
    """Play what is not finished yet; every dialogue is on disk before it counts."""
    finished = kept.finished if kept else []
    done = {dialogue.id for dialogue in finished}
    broken = kept.broken if kept else Counter[str]()
    todo = [replace(job, attempt=broken[job.id]) for job in plan.jobs() if job.id not in done]
    with JsonlWriter(RunDir(out).empa_dialogues) as writer:

        def export(dialogue: Dialogue) -> None:
            folder = RunDir(out).empa_files / _folder_name(dialogue.model)
            if dialogue.usable and not result_path(dialogue, folder).exists():
                write_result(dialogue, rules.rubric, folder)

        def keep(dialogue: Dialogue) -> None:
            writer.write_dialogue(dialogue)
            export(dialogue)
            if on_done:
                on_done(dialogue)

        for dialogue in finished:  # a kill may have come between the record and its EMPA file
            export(dialogue)
        played = await play_all(
            todo, policy, casting, rules, concurrency=concurrency, on_done=keep, on_turn=on_turn
        )
    write_health(out, [*finished, *played], plan.scenarios)
    return [*finished, *played]


def write_health(out: Path, dialogues: Sequence[Dialogue], scenarios: Sequence[Scenario]) -> None:
    """OUT/health.json: whether the simulated people were still people (docs/sandbox.md)."""
    found = health(dialogues, {s.id: s for s in scenarios}).as_json()
    text = json.dumps({"schema": HEALTH_SCHEMA, **found, "warnings": warnings(found)}, indent=1)
    write_atomic(RunDir(out).health, text + "\n")


def _folder_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in model).strip(".") or "model"
