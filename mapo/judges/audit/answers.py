"""Judge answers arranged for measuring: forms by probe, turn and repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mapo.evals.items import ItemLine
from mapo.judges.audit.probes import UNCHANGED
from mapo.judges.audit.questions import AuditQuestion, levels_in
from mapo.judges.sample import RecordedTurn, Recording
from mapo.measure.epmq import indices, weigh
from mapo.measure.potential import Trajectory
from mapo.measure.reward import RecordedReward, rewards_of
from mapo.sandbox.cast import flat_levels
from mapo.store import RunDir
from mapo.types import Levels

RECORDED = "recorded"
"""Name of the judge whose levels are in the records."""

Forms = list[Levels | None]
"""Forms by repeat; None for a form that could not be parsed."""


@dataclass(slots=True)
class Answers:
    """All answers of one judge. `by_probe[probe][turn id]` holds its forms."""

    judge: str
    turns: dict[str, RecordedTurn] = field(default_factory=dict)
    by_probe: dict[str, dict[str, Forms]] = field(default_factory=dict)
    variants: dict[str, int] = field(default_factory=dict)
    """Variant number of each probed turn."""
    asked: int = 0
    unscored: int = 0
    missing: int = 0
    """Questions without an answer, because their endpoint failed."""

    @property
    def unchanged(self) -> dict[str, Forms]:
        """Forms for the turns as recorded, by turn id."""
        return self.by_probe.get(UNCHANGED, {})

    def first(self) -> dict[str, Levels]:
        """Return the first form for each unchanged turn."""
        return {name: forms[0] for name, forms in self.unchanged.items() if forms and forms[0] is not None}

    def trajectory(self, recording: Recording, repeat: int) -> Trajectory | None:
        """Return the trajectory of a whole dialogue by this judge's levels, without ending it early; None if
        the judge was not asked about every turn."""
        forms = [self.unchanged.get(turn.id, []) for turn in recording.turns]
        if not all(len(repeats) > repeat for repeats in forms):
            return None
        return trajectory_of(recording, [repeats[repeat] for repeats in forms])


def answers_by_judge(questions: Sequence[AuditQuestion], lines: Mapping[str, ItemLine]) -> dict[str, Answers]:
    """Sort the answered questions by judge."""
    by_judge: dict[str, Answers] = {}
    for question in questions:
        answers = by_judge.setdefault(question.judge, Answers(question.judge))
        line = lines.get(question.id)
        if line is None:
            answers.missing += 1
            continue
        if "skipped" in line:
            continue
        turn = question.turn
        levels = levels_in(line, turn.recording.rubric, f"{RunDir.items.name}, {question.id}")
        answers.asked += 1
        answers.unscored += levels is None
        answers.turns[turn.id] = turn
        if question.probe != UNCHANGED:
            answers.variants[turn.id] = question.variant
        answers.by_probe.setdefault(question.probe, {}).setdefault(turn.id, []).append(levels)
    return by_judge


def recorded_answers(judge: Answers) -> Answers:
    """Return the recorded levels of the turns that `judge` answered, as answers of one more judge."""
    answers = Answers(RECORDED, turns=judge.turns)
    recorded = {name: judge.turns[name].history[-1].levels for name in judge.unchanged}
    answers.by_probe[UNCHANGED] = {name: [levels] for name, levels in recorded.items() if levels is not None}
    return answers


def trajectory_of(recording: Recording, forms: Sequence[Levels | None]) -> Trajectory:
    """Return the trajectory that these forms give a recorded dialogue."""
    dialogue = recording.dialogue
    trajectory = Trajectory(
        recording.rubric,
        dialogue.start,
        dialogue.profile,
        goal=dialogue.goal,
        min_turns=dialogue.min_turns,
        max_turns=dialogue.max_turns,
    )
    for levels in forms:
        trajectory.judge(levels)
    return trajectory


def rewards(trajectory: Trajectory, recording: Recording) -> list[float | None]:
    """Return the rewards of a trajectory by the recording's reward."""
    gamma = RecordedReward.read(recording.dialogue.reward).gamma
    return rewards_of(trajectory, recording.reward, distance=recording.distance, gamma=gamma)


def score(trajectory: Trajectory) -> float:
    """Return the EPM-Q of one dialogue."""
    return float(weigh(np.array(indices(trajectory)))[3])


def level_sum(levels: Levels, turn: RecordedTurn) -> int:
    """Return the sum of all levels of a form."""
    return sum(flat_levels(levels, turn.recording.rubric))
