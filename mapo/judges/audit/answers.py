"""What the judges answered, in the shape that is measured: forms by turn, by probe and by repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mapo.evals.items import Line
from mapo.judges.audit.ask import Question, levels_in
from mapo.judges.audit.probes import PLAIN
from mapo.judges.sample import Moment, Talk
from mapo.measure.epmq import indices, weigh
from mapo.measure.potential import Trajectory
from mapo.measure.reward import rewards_of
from mapo.sandbox.cast import flat
from mapo.store import RunDir
from mapo.types import Levels

RECORDED = "recorded"
"""The name of the judge whose levels are in the records."""

Forms = list[Levels | None]
"""By repeat; None where the judge gave no form."""


@dataclass(slots=True)
class Answers:
    """One judge's: `by_probe[probe][moment id]` are its forms."""

    judge: str
    moments: dict[str, Moment] = field(default_factory=dict)
    by_probe: dict[str, dict[str, Forms]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """The number of each turn that was probed."""
    asked: int = 0
    unscored: int = 0
    missing: int = 0
    """Questions without an answer: their endpoint failed."""

    @property
    def plain(self) -> dict[str, Forms]:
        return self.by_probe.get(PLAIN, {})

    def first(self) -> dict[str, Levels]:
        """The first form of every turn as it was."""
        return {name: forms[0] for name, forms in self.plain.items() if forms and forms[0] is not None}

    def path(self, talk: Talk, repeat: int) -> Trajectory | None:
        """A whole dialogue by this judge's levels, whatever its ending would have been; None where the judge
        was not asked about all of it."""
        names = [Moment(talk, turn).id for turn in range(1, len(talk.dialogue.turns) + 1)]
        forms = [self.plain.get(name, []) for name in names]
        if not all(len(own) > repeat for own in forms):
            return None
        return path_of(talk, [own[repeat] for own in forms])


def answers_of(questions: Sequence[Question], lines: Mapping[str, Line]) -> dict[str, Answers]:
    found: dict[str, Answers] = {}
    for question in questions:
        mine = found.setdefault(question.judge, Answers(question.judge))
        line = lines.get(question.id)
        if line is None:
            mine.missing += 1
            continue
        if "skipped" in line:
            continue
        levels = levels_in(line, question.moment.talk.rubric, f"{RunDir.items.name}, {question.id}")
        mine.asked += 1
        mine.unscored += levels is None
        mine.moments[question.moment.id] = question.moment
        if question.probe != PLAIN:
            mine.numbers[question.moment.id] = question.number
        mine.by_probe.setdefault(question.probe, {}).setdefault(question.moment.id, []).append(levels)
    return found


def recorded(judge: Answers) -> Answers:
    """The record's own levels of the same turns, as if one more judge had been asked."""
    own = Answers(RECORDED, moments=judge.moments)
    own.by_probe[PLAIN] = {
        name: [judge.moments[name].turns[-1].levels]
        for name in judge.plain
        if judge.moments[name].turns[-1].levels is not None
    }
    return own


def path_of(talk: Talk, forms: Sequence[Levels | None]) -> Trajectory:
    dialogue = talk.dialogue
    path = Trajectory(
        talk.rubric,
        dialogue.start,
        dialogue.profile,
        min_turns=dialogue.min_turns,
        max_turns=dialogue.max_turns,
    )
    for levels in forms:
        path.judge(levels)
    return path


def rewards(path: Trajectory, talk: Talk) -> list[float | None]:
    return rewards_of(path, talk.reward, distance=talk.distance)


def score(path: Trajectory) -> float:
    """EPM-Q of one dialogue."""
    return float(weigh(np.array(indices(path)))[3])


def total(levels: Levels, moment: Moment) -> int:
    """The sum of all levels of a form."""
    return sum(flat(levels, moment.talk.rubric))
