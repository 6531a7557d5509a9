"""The EMPA benchmark: plays a policy in a set of scenarios, resumable at any point.

OUT/manifest.json        what is being run; a resume must ask for the same
    dialogues/empa.jsonl each dialogue, written when it finishes
    empa/MODEL/*.json    the same dialogues as EMPA result files
    cache.sqlite         every model call, so that no call is paid for twice
    ledger.json          calls, tokens and cost by role
    health.json          checks of the simulated users: repetition, contradictions, over-cooperation
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mapo.errors import JudgeError
from mapo.evals.empa.result_files import result_path, write_result
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat
from mapo.records import encode
from mapo.runs.claim import check_folder, digest, read_manifest
from mapo.sandbox.cast import Casting, Job, Policy, held_out_seed
from mapo.sandbox.rollout import ActiveDialogue, Rules, play_all
from mapo.scenarios.scenario import Scenario, scenario_digest
from mapo.scenarios.start_levels import StartLevelTable, check_start_levels
from mapo.scoring.findings import warnings
from mapo.scoring.health import health
from mapo.store import BadLine, JsonlWriter, RunDir, read_dialogues, write_atomic
from mapo.types import Dialogue, Goal, Turn

HEALTH_SCHEMA = "mapo.health/1"
OnDialogue = Callable[[Dialogue], None]


@dataclass(frozen=True, slots=True)
class EmpaPlan:
    """The dialogues to play: `repeats` per scenario."""

    scenarios: Sequence[Scenario]
    repeats: int = 1
    seed: int = 0
    start_levels: StartLevelTable | None = None
    goals: Mapping[str, Goal] | None = None
    """Thresholds by scenario that replace those of the profile."""

    def check(self, rubric: Rubric) -> list[str]:
        """Refuse start levels that do not fit the rubric; return warnings about missing ones."""
        if self.start_levels is None:
            return []
        return check_start_levels(self.start_levels, self.scenarios, rubric)

    def jobs(self) -> list[Job]:
        known, goals = self.start_levels or {}, self.goals or {}
        return [
            Job(
                scenario,
                id=scenario.id if self.repeats == 1 else f"{scenario.id}_{repeat}",
                group=scenario.id,
                seed=held_out_seed(self.seed, repeat),
                start_levels=known.get(scenario.id),
                goal=goals.get(scenario.id),
            )
            for scenario in self.scenarios
            for repeat in range(1, self.repeats + 1)
        ]


def manifest(
    plan: EmpaPlan, rules: Rules, model: str, cast: str | Mapping[str, str], prompts: str = ""
) -> dict[str, Any]:
    """Return the settings that identify a run; a resume must agree in all of them. `prompts` are the name and
    fingerprint of the prompts, empty if no model gets one."""
    return {
        "schema": "mapo.empa/1",
        "model": model,
        "cast": cast,
        "scenarios": {s.id: scenario_digest(s) for s in plan.scenarios},
        "start_levels": digest(plan.start_levels) if plan.start_levels else None,
        **(
            {"goals": digest({case: asdict(goal) for case, goal in plan.goals.items()})} if plan.goals else {}
        ),
        **({"prompts": prompts} if prompts else {}),
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


class PreviousDialogues(NamedTuple):
    """The content of a run directory: finished dialogues, failed attempts in the order in which they were
    written, and unreadable lines."""

    finished: list[Dialogue]
    failed: list[Dialogue]
    bad: list[str]


def prepare(out: Path, manifest: Mapping[str, Any], *, resume: bool) -> PreviousDialogues:
    """Check that `out` is free or holds this run, and return what it holds. A run of fewer scenarios may be
    resumed with more of them."""
    earlier = _fewer_scenarios(out, manifest)
    check_folder(out, {**manifest, **({"scenarios": earlier} if earlier else {})}, resume=resume)
    return read_previous(out)


def add_scenarios(out: Path, manifest: Mapping[str, Any]) -> None:
    """Record the scenarios of `manifest` in a run that was started with fewer of them."""
    if _fewer_scenarios(out, manifest):
        recorded = {**read_manifest(RunDir(out).manifest), "scenarios": manifest["scenarios"]}
        write_atomic(RunDir(out).manifest, encode(recorded, str(RunDir(out).manifest)) + b"\n")


def _fewer_scenarios(out: Path, manifest: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the scenarios of the run in `out` if they are some of those of `manifest`, unchanged."""
    if not RunDir(out).manifest.exists():
        return None
    earlier = read_manifest(RunDir(out).manifest).get("scenarios")
    if not isinstance(earlier, dict) or len(earlier) >= len(manifest["scenarios"]):
        return None
    return earlier if earlier.items() <= dict(manifest["scenarios"]).items() else None


def read_previous(out: Path) -> PreviousDialogues:
    """Read the dialogues of a run directory."""
    previous = PreviousDialogues([], [], [])
    file = RunDir(out).empa_dialogues
    for item in read_dialogues(file) if file.exists() else ():
        if isinstance(item, BadLine):
            previous.bad.append(str(item))
        elif item.judged:
            previous.finished.append(item)
        else:
            previous.failed.append(item)
    return previous


class Recorder:
    """Writes finished dialogues to a run directory: the record, and the EMPA result file."""

    def __init__(self, out: Path, rubric: Rubric) -> None:
        self.out, self.rubric = out, rubric
        self._writer = JsonlWriter(RunDir(out).empa_dialogues)

    def write(self, dialogue: Dialogue) -> None:
        self._writer.write_dialogue(dialogue)
        self.export(dialogue)

    def export(self, dialogue: Dialogue) -> None:
        """Write the EMPA result file of a dialogue unless it is broken or has one."""
        folder = RunDir(self.out).empa_files / _folder_name(dialogue.model)
        if dialogue.usable and not result_path(dialogue, folder).exists():
            write_result(dialogue, self.rubric, folder)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


async def run(
    out: Path,
    plan: EmpaPlan,
    policy: Policy,
    casting: Casting,
    rules: Rules,
    *,
    previous: PreviousDialogues | None = None,
    concurrency: int = 32,
    on_done: OnDialogue | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> list[Dialogue]:
    """Play the unfinished dialogues and return all; each is written to disk when it finishes.

    If the judge fails too often, those in play are recorded as broken: a resumed run then asks anew instead
    of stopping at the same cached answers of the judge.
    """
    finished, failed, _ = previous or PreviousDialogues([], [], [])
    done = {dialogue.id for dialogue in finished}
    attempts = Counter(dialogue.id for dialogue in failed)
    todo = [replace(job, attempt=attempts[job.id]) for job in plan.jobs() if job.id not in done]
    # The last attempt only: a scenario that is never judged must not stop the run after enough resumes.
    last_failed = {dialogue.id: dialogue for dialogue in failed if dialogue.id not in done}
    in_play: dict[str, ActiveDialogue] = {}

    def begin(job: Job) -> Chat:
        chat = policy(job)
        in_play[job.id] = ActiveDialogue(job, rules, chat.name)
        return chat

    with Recorder(out, rules.rubric) as recorder:

        def write(dialogue: Dialogue) -> None:
            in_play.pop(dialogue.id, None)
            recorder.write(dialogue)
            if on_done:
                on_done(dialogue)

        for dialogue in finished:  # a run may have been killed between the record and its EMPA file
            recorder.export(dialogue)
        try:
            played = await play_all(
                todo,
                begin,
                casting,
                rules,
                concurrency=concurrency,
                before=[*finished, *last_failed.values()],
                on_done=write,
                on_turn=on_turn,
            )
        except JudgeError as error:
            for active in in_play.values():
                active.fail(error)
                recorder.write(await active.finish())
            raise
    write_health(out, [*finished, *played], plan.scenarios)
    return [*finished, *played]


def write_health(out: Path, dialogues: Sequence[Dialogue], scenarios: Sequence[Scenario]) -> None:
    """Write OUT/health.json, the checks of the simulated users (docs/sandbox.md)."""
    numbers = health(dialogues, {s.id: s for s in scenarios}).as_json()
    text = json.dumps({"schema": HEALTH_SCHEMA, **numbers, "warnings": warnings(numbers)}, indent=1)
    write_atomic(RunDir(out).health, text + "\n")


def _folder_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in model).strip(".") or "model"
