"""What each role learns and how it is measured: judge, user and director."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mapo.errors import InputError
from mapo.judges.sample import Recording
from mapo.local_model.role_file import Role
from mapo.measure.calibration import Calibration, fit
from mapo.measure.rubric import Rubric
from mapo.roles.agreement import Judgement, agreement, judgements_of
from mapo.roles.examples import (
    Encoder,
    added_examples,
    director_examples,
    judge_examples,
    reason_examples,
    turn_name,
    user_examples,
)
from mapo.roles.learning import Predictions
from mapo.roles.packing import Example
from mapo.sandbox.readout import LAYOUT
from mapo.scoring.health import health


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Recordings that were not trained on, their examples, and what the model predicts for these."""

    recordings: Sequence[Recording]
    examples: Sequence[Example]
    predictions: Predictions


class RoleKind(Protocol):
    """One role: its examples, calibration and measures."""

    @property
    def name(self) -> Role: ...

    def examples(self, recording: Recording, /) -> list[Example]:
        """Return what the role did in a dialogue."""

    def added(self, recording: Recording, others: Sequence[str], /) -> list[Example]:
        """Return further examples that are only trained on. `others` are replies in other scenarios."""

    def calibrate(self, parts: Sequence[HeldOut], /) -> Calibration:
        """Fit the calibration."""

    def measure(self, part: HeldOut, calibration: Calibration, /) -> dict[str, Any]:
        """Return the agreement with the recordings, as plain data."""

    def problem(self, recordings: Sequence[Recording], /) -> str:
        """Return why these recordings cannot teach the role; empty if they can."""


@dataclass(frozen=True, slots=True)
class JudgeKind:
    """A judge whose levels are read out."""

    encoder: Encoder
    rubric: Rubric
    additions: float = 0.15
    reasons: int = 0
    seed: int = 0
    layout: int = LAYOUT
    name: Role = "judge"

    def examples(self, recording: Recording, /) -> list[Example]:
        return judge_examples(recording, self.encoder, self.layout)

    def added(self, recording: Recording, others: Sequence[str], /) -> list[Example]:
        more = added_examples(recording, self.encoder, others, self.additions, self.seed, self.layout)
        return more + reason_examples(recording, self.encoder, self.reasons, self.seed, self.layout)

    def calibrate(self, parts: Sequence[HeldOut], /) -> Calibration:
        judged = [judgement for part in parts for judgement in self._judgements(part)]
        places = range(len(judged[0].levels))
        logprobs = [np.array([j.logprobs[k] for j in judged]) for k in places]
        return fit(logprobs, [[j.levels[k] for j in judged] for k in places])

    def measure(self, part: HeldOut, calibration: Calibration, /) -> dict[str, Any]:
        return agreement(self._judgements(part), calibration, self.rubric)

    def _judgements(self, part: HeldOut) -> list[Judgement]:
        names = [example.name for example in part.examples]
        return judgements_of(part.recordings, names, part.predictions.reads, self.rubric)

    def problem(self, recordings: Sequence[Recording], /) -> str:
        judged = sum(turn.levels is not None for r in recordings for turn in r.dialogue.turns)
        return "" if judged else "the recordings hold no judgements"


@dataclass(frozen=True, slots=True)
class UserKind:
    """A user whose lines are written."""

    encoder: Encoder
    name: Role = "user"

    def examples(self, recording: Recording, /) -> list[Example]:
        return user_examples(recording, self.encoder)

    def added(self, *_: object) -> list[Example]:
        return []

    def calibrate(self, *_: object) -> Calibration:
        return Calibration()

    def measure(self, part: HeldOut, _: Calibration, /) -> dict[str, Any]:
        tokens, total = int(part.predictions.tokens.sum()), float(part.predictions.text.sum())
        measured = {example.name for example in part.examples}
        characters = sum(
            len(turn.user)
            for r in part.recordings
            for number, turn in enumerate(r.dialogue.turns, 1)
            if turn_name(r, number) in measured
        )
        scenarios = {r.scenario.id: r.scenario for r in part.recordings}
        return {
            "lines": len(part.examples),
            "dialogues": len(part.recordings),
            "perplexity": math.exp(-total / tokens) if tokens else None,
            "bits_per_character": -total / math.log(2) / characters if characters else None,
            "recorded_health": health([r.dialogue for r in part.recordings], scenarios).as_json(),
        }

    def problem(self, recordings: Sequence[Recording], /) -> str:
        long = any(len(r.dialogue.turns) > 1 for r in recordings)
        return "" if long else "no recording has a second user message"


@dataclass(frozen=True, slots=True)
class DirectorKind:
    """A director whose act is read out."""

    encoder: Encoder
    name: Role = "director"

    def examples(self, recording: Recording, /) -> list[Example]:
        return director_examples(recording, self.encoder)

    def added(self, *_: object) -> list[Example]:
        return []

    def calibrate(self, *_: object) -> Calibration:
        return Calibration()

    def measure(self, part: HeldOut, _: Calibration, /) -> dict[str, Any]:
        pairs = list(zip(part.examples, part.predictions.reads, strict=True))
        recorded = [example.options[0][example.answers[0]] for example in part.examples]
        most_common = Counter(recorded).most_common(1)[0][0]
        correct = [int(np.argmax(places[0])) == example.answers[0] for example, places in pairs]
        likelihood = [places[0][example.answers[0]] for example, places in pairs]
        return {
            "acts": len(pairs),
            "dialogues": len(part.recordings),
            "accuracy": float(np.mean(correct)),
            "majority": float(np.mean([token == most_common for token in recorded])),
            "log_loss": -float(np.mean(likelihood)),
        }

    def problem(self, recordings: Sequence[Recording], /) -> str:
        acts = sum(turn.direction is not None for r in recordings for turn in r.dialogue.turns[1:])
        return "" if acts else "the recordings hold no acts of a director"


def make_kind(
    role: str,
    encoder: Encoder,
    rubric: Rubric,
    *,
    additions: float,
    reasons: int,
    seed: int,
    layout: int = LAYOUT,
) -> RoleKind:
    """Return the role of that name."""
    if role == "judge":
        return JudgeKind(encoder, rubric, additions, reasons, seed, layout)
    if role == "user":
        return UserKind(encoder)
    if role == "director":
        return DirectorKind(encoder)
    raise InputError(f"unknown role '{role}'", where="--role", fix="Use judge, user or director")
