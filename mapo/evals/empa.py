"""The EMPA benchmark: any policy through a set of scenarios, on disk as it goes, resumable at any point.

OUT/manifest.json        what is being run; a resume must ask for the same
    dialogues/empa.jsonl each dialogue, complete before the next may start in its place
    empa/MODEL/*.json    the same as EMPA result files
    cache.sqlite         every model call, so that nothing is paid twice
    ledger.json          calls, tokens, cost by role
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.evals.empa_write import write_result
from mapo.sandbox.cast import Casting, Job, Policy
from mapo.sandbox.rollout import Rules, play_all
from mapo.sandbox.scenario import Scenario
from mapo.store import BadLine, JsonlWriter, RunDir, encode, read_dialogues, write_atomic
from mapo.types import Dialogue, StopReason, Turn

FILE = "empa.jsonl"
Watch = Callable[[Dialogue], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play: every scenario `repeats` times."""

    scenarios: Sequence[Scenario]
    repeats: int = 1
    seed: int = 0
    start_levels: Mapping[str, Mapping[str, int]] | None = None

    def jobs(self) -> list[Job]:
        known = self.start_levels or {}
        return [
            Job(
                scenario,
                id=scenario.id if self.repeats == 1 else f"{scenario.id}_{repeat}",
                group=scenario.id,
                seed=self.seed * 1000 + repeat,
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
        "scenarios": sorted(s.id for s in plan.scenarios),
        "repeats": plan.repeats,
        "seed": plan.seed,
        "rubric": rules.rubric.name,
        "profile": rules.profile,
        "max_turns": rules.max_turns,
        "temperature": rules.temperature,
        "max_tokens": rules.max_tokens,
    }


def prepare(out: Path, manifest: Mapping[str, Any], *, resume: bool) -> list[Dialogue]:
    """Claim the folder and return the dialogues that are already finished there."""
    run = RunDir(out)
    if run.manifest.exists():
        if not resume:
            raise InputError(
                "holds a run already", where=str(out), fix="Add --resume, or choose another --out"
            )
        _same(json.loads(run.manifest.read_text(encoding="utf-8")), manifest, out)
    elif out.exists() and any(out.iterdir()):
        raise InputError("is not empty and no run", where=str(out), fix="Choose another --out")
    else:
        write_atomic(run.manifest, encode(dict(manifest), str(run.manifest)) + b"\n")
    file = run.dialogues / FILE
    if not file.exists():
        return []
    kept = [item for item in read_dialogues(file) if not isinstance(item, BadLine)]
    return [d for d in kept if d.ending is None or d.ending.reason is not StopReason.BROKEN]


def _same(there: Mapping[str, Any], asked: Mapping[str, Any], out: Path) -> None:
    other = sorted(key for key in {*there, *asked} if there.get(key) != asked.get(key))
    if other:
        told = "; ".join(
            f"{key}: {there.get(key)!r} there, {asked.get(key)!r} asked for" for key in other[:3]
        )
        raise InputError(
            f"the run there is another one ({told})", where=str(out), fix="Resume with the same settings"
        )


async def run(
    out: Path,
    plan: Plan,
    policy: Policy,
    casting: Casting,
    rules: Rules,
    *,
    finished: Sequence[Dialogue] = (),
    concurrency: int = 32,
    on_done: Watch | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> list[Dialogue]:
    """Play what is not finished yet; every dialogue is on disk before it counts."""
    done = {dialogue.id for dialogue in finished}
    todo = [job for job in plan.jobs() if job.id not in done]
    with JsonlWriter(RunDir(out).dialogues / FILE) as writer:

        def keep(dialogue: Dialogue) -> None:
            writer.write_dialogue(dialogue)
            if dialogue.error is None:
                write_result(dialogue, rules.rubric, out / "empa" / _folder_name(dialogue.model))
            if on_done:
                on_done(dialogue)

        played = await play_all(
            todo, policy, casting, rules, concurrency=concurrency, on_done=keep, on_turn=on_turn
        )
    return [*finished, *played]


def _folder_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in model).strip(".") or "model"
