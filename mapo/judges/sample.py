"""Recorded dialogues and turns for a judge to rate again, sampled with a seed.

Single turns are drawn evenly from all strata (early, middle or late in the dialogue; recorded as harmful,
neutral, helpful or unscored), because a judge that is reliable on common turns may be unreliable on rare
ones. Whole dialogues are drawn as complete groups of siblings first, because advantages are only defined
within a group.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mapo.domain_folders import known_folder
from mapo.errors import InputError, RubricError
from mapo.measure.potential import moving_probabilities, zone_distance
from mapo.measure.reward import REWARDS, Distance, Measure
from mapo.measure.rubric import Rubric
from mapo.runs.claim import read_manifest
from mapo.runs.contents import read_rubric
from mapo.runs.kind import Kind, kind_in_manifest
from mapo.scenarios.scenario import Scenario, scenario_digest
from mapo.store import TESTS, BadLine, RunDir, read_dialogues
from mapo.types import Dialogue, Levels, PotentialState, Turn, Vector

THIRDS = ("early", "middle", "late")
Stratum = tuple[str, str]
"""Third of the dialogue, and recorded effect of the reply."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded dialogue with its run, scenario and rubric. `reward` is what its turns are rated by."""

    run: str
    dialogue: Dialogue
    scenario: Scenario
    rubric: Rubric
    reward: str = "idr"
    distance: Distance = "zone"

    @property
    def id(self) -> str:
        """Unique name: run, training step if any, dialogue id."""
        step = "" if self.dialogue.step is None else f"{self.dialogue.step}/"
        return f"{self.run}/{step}{self.dialogue.id}"

    @property
    def group(self) -> str:
        """Name shared by siblings: same run, step and scenario."""
        return f"{self.run}/{self.dialogue.step}/{self.dialogue.group or self.dialogue.scenario}"

    @property
    def turns(self) -> list[RecordedTurn]:
        """All turns of the dialogue."""
        return [RecordedTurn(self, number) for number in range(1, len(self.dialogue.turns) + 1)]


@dataclass(frozen=True)
class RecordedTurn:
    """One turn of a recorded dialogue, counted from 1: the reply to judge, and everything before it."""

    recording: Recording
    number: int

    @property
    def id(self) -> str:
        """Unique name of the turn."""
        return f"{self.recording.id}@{self.number}"

    @property
    def history(self) -> tuple[Turn, ...]:
        """The dialogue up to and including this turn."""
        return self.recording.dialogue.turns[: self.number]

    @property
    def reply(self) -> str:
        """Text of the reply to judge."""
        return self.history[-1].reply.text

    @property
    def stratum(self) -> Stratum:
        """Stratum that the turn is sampled from."""
        third = THIRDS[min(2, 3 * (self.number - 1) // len(self.recording.dialogue.turns))]
        levels = self.history[-1].levels
        if levels is None:
            return third, "unscored"
        movement = sum(self.recording.rubric.step(levels))
        return third, "harm" if movement < 0 else "good" if movement else "nothing"

    @cached_property
    def before(self) -> Vector:
        """Position before this reply, according to the recorded judgements."""
        rubric, position = self.recording.rubric, list(self.recording.dialogue.start)
        for turn in self.history[:-1]:
            if turn.levels is not None:
                read = moving_probabilities(self.recording.dialogue, turn)
                step = rubric.step(turn.levels) if read is None else rubric.expected_step(read)
                position = [p + v for p, v in zip(position, step, strict=True)]
        return tuple(position)

    def reward(self, levels: Levels) -> float:
        """Return what the turn would earn with these levels, with all earlier turns as recorded."""
        rubric, before = self.recording.rubric, self.before
        after = tuple(p + v for p, v in zip(before, rubric.step(levels), strict=True))
        measure = Measure(rubric, self.recording.distance)
        return REWARDS[self.recording.reward](measure, _state(before, rubric), _state(after, rubric), None)


def _state(position: Vector, rubric: Rubric) -> PotentialState:
    """Return a state with the fields that rewards read."""
    return PotentialState(
        0, position, zone_distance(position, rubric), in_zone=False, norm=0.0, projection=0.0
    )


def stratum_sizes(recordings: Sequence[Recording]) -> Counter[Stratum]:
    """Count the turns of each stratum."""
    return Counter(turn.stratum for recording in recordings for turn in recording.turns)


def sampling_weights(turns: Sequence[RecordedTurn], sizes: Mapping[Stratum, int]) -> list[float]:
    """Return how many recorded turns each sampled turn represents: the size of its stratum / the number
    sampled from it. This corrects for rare strata being sampled as often as common ones."""
    sampled = Counter(turn.stratum for turn in turns)
    return [sizes[t.stratum] / sampled[t.stratum] if t.stratum in sizes else 1.0 for t in turns]


def read_recordings(
    root: Path, scenarios: Mapping[str, Scenario], name: str = ""
) -> tuple[list[Recording], list[str]]:
    """Read the finished dialogues of an `eval empa` or `train` run. Return them and a list of problems."""
    recordings: dict[str, Recording] = {}
    problems: list[str] = []
    run = name or root.resolve().name
    digests = _scenario_digests(root)
    for file in dialogue_files(root):
        part = file.parent.name if file.parent.name in TESTS else ""
        for item in read_dialogues(file):
            if isinstance(item, BadLine):
                problems.append(str(item))
            elif item.usable and item.turns:
                scenario = scenarios.get(item.scenario)
                if scenario is None or digests.get(item.scenario, "") not in ("", scenario_digest(scenario)):
                    change = "has changed since the run" if scenario else "was not found"
                    problems.append(f"{file}: scenario '{item.scenario}' {change}; its dialogues are skipped")
                    continue
                rubric = rubric_of(item, root)
                if rubric is None:
                    problems.append(
                        f"{file}: rubric '{item.rubric}' was not found; dialogues with it are skipped"
                    )
                    continue
                recording = Recording(f"{run}/{part}" if part else run, item, scenario, rubric)
                recordings[recording.id] = recording
    if not recordings:
        domain = domain_in(root)
        raise InputError(
            f"no dialogue here can be judged again{f': {problems[0]}' if problems else ''}",
            where=str(root),
            fix="Give a run of mapo eval empa or mapo train, its scenarios with --scenarios"
            f" and its domain folder with --domain{f' (the domain is {domain})' if domain else ''}",
        )
    return list(recordings.values()), list(dict.fromkeys(problems))


def domain_in(root: Path) -> str | None:
    """Return the domain named in a run's records (their rubric). It is a name, never a path."""
    records = (item for file in dialogue_files(root) for item in read_dialogues(file))
    return next((item.rubric for item in records if not isinstance(item, BadLine)), None)


def rubric_of(dialogue: Dialogue, root: Path) -> Rubric | None:
    """Return the rubric a run was judged by: the run's copy, or that of a shipped or explicitly given domain.
    The name in the record is only looked up, never opened as a path."""
    rubric, problem = read_rubric(RunDir(root).rubric, dialogue.rubric)
    if problem:
        raise RubricError(
            problem, where=str(RunDir(root).rubric), fix="Restore the file from a copy of the run"
        )
    return rubric or (Rubric.load(dialogue.rubric) if known_folder(dialogue.rubric) else None)


def dialogue_files(root: Path) -> list[Path]:
    """Return the files with a run's dialogues, including a training run's tests."""
    if not root.is_dir():
        raise InputError("no such folder", where=str(root), fix="Check the spelling of the path")
    run = RunDir(root)
    folders = [run.dialogues, *map(run.eval_of, TESTS)]
    return [file for folder in folders if folder.is_dir() for file in sorted(folder.rglob("*.jsonl"))]


def _scenario_digests(root: Path) -> dict[str, str]:
    """Return the scenario digests in an evaluation's manifest; other runs have none."""
    path = RunDir(root).manifest
    manifest: Any = read_manifest(path) if path.exists() else {}
    digests = manifest.get("scenarios") if kind_in_manifest(manifest) is Kind.EMPA else None
    return {str(k): str(v) for k, v in digests.items()} if isinstance(digests, dict) else {}


def choose_turns(recordings: Sequence[Recording], n: int, seed: int = 0) -> list[RecordedTurn]:
    """Draw `n` turns, one from each stratum in rotation until they run out."""
    turns = [turn for recording in recordings for turn in recording.turns]
    random.Random(f"{seed}/turns").shuffle(turns)  # noqa: S311 (sampling, not security)
    strata: dict[Stratum, list[RecordedTurn]] = {}
    for turn in turns:
        strata.setdefault(turn.stratum, []).append(turn)
    order = [strata[key] for key in sorted(strata)]
    chosen: list[RecordedTurn] = []
    while len(chosen) < min(n, len(turns)):
        for stratum in order:
            if stratum and len(chosen) < n:
                chosen.append(stratum.pop())
    return chosen


def choose_dialogues(recordings: Sequence[Recording], n: int, seed: int = 0) -> list[Recording]:
    """Draw about `n` whole dialogues: complete groups of siblings as long as they fit, then single ones."""
    groups: dict[str, list[Recording]] = {}
    for recording in recordings:
        groups.setdefault(recording.group, []).append(recording)
    order = sorted(groups)
    random.Random(f"{seed}/dialogues").shuffle(order)  # noqa: S311 (sampling, not security)
    siblings = [groups[key] for key in order if len(groups[key]) > 1]
    chosen: list[Recording] = []
    for group in siblings:
        if len(chosen) + len(group) <= n:
            chosen += group
    singles = [groups[key][0] for key in order if len(groups[key]) == 1]
    return chosen + singles[: max(0, n - len(chosen))] or [r for group in siblings for r in group][:n]
