"""Which recorded turns a judge is asked about again: drawn by a seed, spread over what there is.

Single turns are drawn from all strata alike (the beginning, middle and end of a dialogue; replies that the
record says did harm, nothing, good, or that nobody could judge), because a judge that is sure of the usual
turn may be lost on the rare one. Whole dialogues are drawn in whole groups of siblings first: advantages
exist only among them.
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
from mapo.measure.potential import zone_distance
from mapo.measure.reward import REWARDS, Distance, Measure
from mapo.measure.rubric import Rubric
from mapo.runs.claim import read_manifest
from mapo.runs.contents import read_rubric
from mapo.runs.kind import Kind, kind_in_manifest
from mapo.scenarios.scenario import Scenario, scenario_digest
from mapo.store import TESTS, BadLine, RunDir, read_dialogues
from mapo.types import Dialogue, Levels, PotentialState, Turn, Vector

THIRDS = ("early", "middle", "late")


@dataclass(frozen=True, slots=True)
class Talk:
    """A recorded dialogue, whose run it is of, and the person it was with; `reward` is what its turns are
    measured by."""

    run: str
    dialogue: Dialogue
    scenario: Scenario
    rubric: Rubric
    reward: str = "idr"
    distance: Distance = "zone"

    @property
    def id(self) -> str:
        step = "" if self.dialogue.step is None else f"{self.dialogue.step}/"
        return f"{self.run}/{step}{self.dialogue.id}"

    @property
    def group(self) -> str:
        """Siblings share it: of one run, step and scenario."""
        return f"{self.run}/{self.dialogue.step}/{self.dialogue.group or self.dialogue.scenario}"


@dataclass(frozen=True)
class Moment:
    """One turn of a recorded dialogue, counted from 1: the reply to be judged and all that was said
    before."""

    talk: Talk
    turn: int

    @property
    def id(self) -> str:
        return f"{self.talk.id}@{self.turn}"

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.talk.dialogue.turns[: self.turn]

    @property
    def reply(self) -> str:
        return self.turns[-1].reply.text

    @property
    def stratum(self) -> tuple[str, str]:
        third = THIRDS[min(2, 3 * (self.turn - 1) // len(self.talk.dialogue.turns))]
        levels = self.turns[-1].levels
        moved = 0.0 if levels is None else sum(self.talk.rubric.step(levels))
        return (
            third,
            "unscored" if levels is None else "harm" if moved < 0 else "good" if moved else "nothing",
        )

    @cached_property
    def before(self) -> Vector:
        """The position before this reply, by the record's own levels."""
        position = list(self.talk.dialogue.start)
        for turn in self.turns[:-1]:
            if turn.levels is not None:
                step = self.talk.rubric.step(turn.levels)
                position = [p + v for p, v in zip(position, step, strict=True)]
        return tuple(position)

    def reward(self, levels: Levels) -> float:
        """What the turn would have earned by these levels, all before it being as recorded."""
        rubric, before = self.talk.rubric, self.before
        after = tuple(p + v for p, v in zip(before, rubric.step(levels), strict=True))
        measure = Measure(rubric, self.talk.distance)
        return REWARDS[self.talk.reward](measure, _at(before, rubric), _at(after, rubric), None)


def _at(position: Vector, rubric: Rubric) -> PotentialState:
    """As far as a reward looks at it."""
    return PotentialState(
        0, position, zone_distance(position, rubric), in_zone=False, norm=0.0, projection=0.0
    )


def strata_of(talks: Sequence[Talk]) -> Counter[tuple[str, str]]:
    """How many turns of each stratum there are."""
    return Counter(
        Moment(talk, at).stratum for talk in talks for at in range(1, len(talk.dialogue.turns) + 1)
    )


def weights_of(moments: Sequence[Moment], strata: Mapping[tuple[str, str], int]) -> list[float]:
    """How many recorded turns each of these stands for: its stratum's size / how many of it are here. Rare
    strata are asked about as often as common ones, and would count for as much without it."""
    here = Counter(moment.stratum for moment in moments)
    return [strata[m.stratum] / here[m.stratum] if m.stratum in strata else 1.0 for m in moments]


def read_talks(root: Path, scenarios: Mapping[str, Scenario], name: str = "") -> tuple[list[Talk], list[str]]:
    """The finished dialogues of a run of `mapo eval empa` or `mapo train`, and what of them cannot be
    used."""
    found: dict[str, Talk] = {}
    problems: list[str] = []
    run = name or root.resolve().name
    versions = _versions(root)
    for file in dialogue_files(root):
        part = file.parent.name if file.parent.name in TESTS else ""
        for item in read_dialogues(file):
            if isinstance(item, BadLine):
                problems.append(str(item))
            elif item.usable and item.turns:
                scenario = scenarios.get(item.scenario)
                if scenario is None or versions.get(item.scenario, "") not in ("", scenario_digest(scenario)):
                    other = "is another one now" if scenario else "is not there"
                    problems.append(f"{file}: scenario '{item.scenario}' {other}; its dialogues are left out")
                    continue
                rubric = rubric_of(item, root)
                if rubric is None:
                    problems.append(
                        f"{file}: no rubric '{item.rubric}' in the run; its dialogues are left out"
                    )
                    continue
                talk = Talk(f"{run}/{part}" if part else run, item, scenario, rubric)
                found[talk.id] = talk
    if not found:
        of = domain_in(root)
        raise InputError(
            f"no dialogue in it can be judged again{f': {problems[0]}' if problems else ''}",
            where=str(root),
            fix="A run of mapo eval empa or mapo train, --scenarios with its people"
            f" and --domain with the folder of its domain{f' ({of})' if of else ''}",
        )
    return list(found.values()), list(dict.fromkeys(problems))


def domain_in(root: Path) -> str | None:
    """The domain that a run's records name, which is that of their rubric; a name, never a path."""
    records = (item for file in dialogue_files(root) for item in read_dialogues(file))
    return next((item.rubric for item in records if not isinstance(item, BadLine)), None)


def rubric_of(dialogue: Dialogue, root: Path) -> Rubric | None:
    """The rubric a run was judged by: its own copy, or that of a domain which is shipped or was named. What a
    record says is a name to look up, never a path to go to."""
    own, problem = read_rubric(RunDir(root).rubric, dialogue.rubric)
    if problem:
        raise RubricError(problem, where=str(RunDir(root).rubric), fix="Restore it from the run's first copy")
    return own or (Rubric.load(dialogue.rubric) if known_folder(dialogue.rubric) else None)


def dialogue_files(root: Path) -> list[Path]:
    """Dialogue files: played in training, or the whole of an evaluation; a training's tests too."""
    if not root.is_dir():
        raise InputError("no such folder", where=str(root), fix="Is it spelt as `ls` shows it?")
    run = RunDir(root)
    folders = [run.dialogues, *map(run.eval_of, TESTS)]
    return [file for folder in folders if folder.is_dir() for file in sorted(folder.rglob("*.jsonl"))]


def _versions(root: Path) -> dict[str, str]:
    """The scenarios' versions as the manifest of an evaluation has them; elsewhere nobody wrote them down."""
    path = RunDir(root).manifest
    told: Any = read_manifest(path) if path.exists() else {}
    known = told.get("scenarios") if kind_in_manifest(told) is Kind.EMPA else None
    return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}


def choose_turns(talks: Sequence[Talk], n: int, seed: int = 0) -> list[Moment]:
    """`n` turns, one stratum after the other until they are used up."""
    moments = [Moment(talk, at) for talk in talks for at in range(1, len(talk.dialogue.turns) + 1)]
    random.Random(f"{seed}/turns").shuffle(moments)  # noqa: S311 (a sample, no secret)
    strata: dict[tuple[str, str], list[Moment]] = {}
    for moment in moments:
        strata.setdefault(moment.stratum, []).append(moment)
    order = [strata[key] for key in sorted(strata)]
    chosen: list[Moment] = []
    while len(chosen) < min(n, len(moments)):
        for stratum in order:
            if stratum and len(chosen) < n:
                chosen.append(stratum.pop())
    return chosen


def choose_dialogues(talks: Sequence[Talk], n: int, seed: int = 0) -> list[Talk]:
    """About `n` whole dialogues: whole groups of siblings while they fit, then single ones."""
    groups: dict[str, list[Talk]] = {}
    for talk in talks:
        groups.setdefault(talk.group, []).append(talk)
    order = sorted(groups)
    random.Random(f"{seed}/dialogues").shuffle(order)  # noqa: S311 (a sample, no secret)
    siblings = [groups[key] for key in order if len(groups[key]) > 1]
    chosen: list[Talk] = []
    for group in siblings:
        if len(chosen) + len(group) <= n:
            chosen += group
    rest = [talk for key in order for talk in groups[key] if talk not in chosen and len(groups[key]) == 1]
    return chosen + rest[: max(0, n - len(chosen))] or [talk for group in siblings for talk in group][:n]
