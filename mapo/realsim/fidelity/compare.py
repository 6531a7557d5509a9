"""The fidelity of simulated users: how they differ from real ones, and whether they can be told apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapo.errors import InputError
from mapo.measure.stats import bootstrap
from mapo.realsim.fidelity.discriminator import auc, held_out_scores
from mapo.realsim.fidelity.features import FEATURES, feature_rows
from mapo.realsim.fidelity.reading import UserMessages
from mapo.sandbox.faults.manners import script_of
from mapo.show.tables import Cell, NumberCell, Table, interval_text

SCHEMA = "mapo.fidelity/1"
FEWEST = 20
"""Dialogues of each side below which nothing is reported."""
FEW = 100
"""Dialogues below which the report says that intervals are wide."""
MOST_MESSAGES = 2000
"""Messages of each side that the classifier uses, drawn at random."""
RESAMPLES = 500

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class FeatureDifference:
    """Means of both sides, and their difference in standard deviations (simulated minus real)."""

    name: str
    real: float
    simulated: float
    effect: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The comparison. `score` is 2 * (1 - AUC), between 0 (always told apart) and 1 (never)."""

    real: int
    simulated: int
    auc: float
    auc_interval: Interval
    features: tuple[FeatureDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        return _score(self.auc)

    @property
    def score_interval(self) -> Interval:
        low, high = self.auc_interval
        return _score(high), _score(low)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "score": self.score,
            "score_interval": self.score_interval,
            **asdict(self),
        }


def _score(area: float) -> float:
    return min(1.0, max(0.0, 2 * (1 - area)))


def compare_users(real: Sequence[UserMessages], simulated: Sequence[UserMessages], seed: int = 0) -> Fidelity:
    """Compare simulated with real users. Raises InputError if there are too few dialogues of either."""
    for name, users in (("real", real), ("simulated", simulated)):
        groups = len({user.group for user in users})
        if groups < FEWEST:
            raise InputError(
                f"{len(users)} {name} dialogues of {groups} people or scenarios are too few",
                fix=f"Give dialogues of at least {FEWEST}",
            )
    area, interval = _told_apart(real, simulated, seed)
    return Fidelity(
        real=len(real),
        simulated=len(simulated),
        auc=area,
        auc_interval=interval,
        features=_differences(real, simulated),
        notes=tuple(_notes(real, simulated)),
    )


def _differences(
    real: Sequence[UserMessages], simulated: Sequence[UserMessages]
) -> tuple[FeatureDifference, ...]:
    """Return Cohen's d of each feature, with bootstrap intervals over dialogues."""
    values = feature_rows([user.messages for user in (*real, *simulated)])
    side = np.repeat([1.0, 0.0], [len(real), len(simulated)])
    strata = ["real"] * len(real) + ["simulated"] * len(simulated)
    result = []
    for name, x in zip(FEATURES, values.T, strict=True):
        rows = np.column_stack([side, side * x, side * x * x, 1 - side, (1 - side) * x, (1 - side) * x * x])
        ends = bootstrap(rows, _cohens_d, strata=strata)
        (effect,) = _cohens_d(rows.mean(axis=0))
        interval = None if ends is None else (float(ends[0][0]), float(ends[0][1]))
        result.append(
            FeatureDifference(
                name, float(x[side == 1].mean()), float(x[side == 0].mean()), float(effect), interval
            )
        )
    return tuple(result)


def _cohens_d(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (mean_s - mean_r) / sqrt((var_s + var_r) / 2) from the mean rows; 0 if nothing varies."""
    n_r, x_r, xx_r, n_s, x_s, xx_s = np.moveaxis(rows, -1, 0)
    mean_r, mean_s = x_r / n_r, x_s / n_s
    variance = (xx_r / n_r - mean_r**2 + xx_s / n_s - mean_s**2) / 2
    flat = variance <= 1e-12
    d = (mean_s - mean_r) / np.sqrt(np.where(flat, 1.0, variance))
    return np.asarray(np.where(flat, 0.0, d))[..., None]


def _told_apart(
    real: Sequence[UserMessages], simulated: Sequence[UserMessages], seed: int
) -> tuple[float, Interval]:
    """Return the classifier's AUC and its 95 % interval, over resampled groups of each side.

    The classifier is not trained again for each resample, so with few groups the interval is too narrow: in
    random halves of 30 scenarios, the AUC varied 1.4 times as much.
    """
    real_messages = _messages(real, seed)
    groups, texts = zip(*real_messages, *_messages(simulated, seed), strict=True)
    is_simulated = np.arange(len(texts)) >= len(real_messages)
    scores = held_out_scores(texts, is_simulated, groups, seed)
    rng = np.random.default_rng(seed)
    names: dict[tuple[bool, str], int] = {}
    keys = [names.setdefault((bool(s), g), len(names)) for s, g in zip(is_simulated, groups, strict=True)]
    sides = np.array([key[0] for key in names])
    areas = []
    for _ in range(RESAMPLES):
        times = np.zeros(len(names))
        for side in (False, True):
            members = np.flatnonzero(sides == side)
            drawn = members[rng.integers(0, len(members), len(members))]
            times += np.bincount(drawn, minlength=len(names))
        areas.append(auc(scores, is_simulated, times[keys]))
    low, high = np.percentile(areas, [2.5, 97.5])
    return auc(scores, is_simulated), (float(low), float(high))


def _messages(users: Sequence[UserMessages], seed: int) -> list[tuple[str, str]]:
    """Return (group, message) of at most MOST_MESSAGES messages."""
    every = [(user.group, message) for user in users for message in user.messages]
    if len(every) > MOST_MESSAGES:
        every = random.Random(seed).sample(every, MOST_MESSAGES)  # noqa: S311 (not a secret)
    return every


def _notes(real: Sequence[UserMessages], simulated: Sequence[UserMessages]) -> list[str]:
    notes = ["Topics count as well: compare users who talk about similar things."]
    if min(len(real), len(simulated)) < FEW:
        notes.append(f"Fewer than {FEW} dialogues: the classifier learns little, and the score is too high.")
    scripts = [_script(users) for users in (real, simulated)]
    if scripts[0] != scripts[1]:
        notes.append(f"The real messages are mostly {scripts[0]}, the simulated ones {scripts[1]}.")
    lengths = [fmean(len(user.messages) for user in users) for users in (real, simulated)]
    if max(lengths) > 2 * min(lengths):
        notes.append("One side has dialogues twice as long, which changes several features by itself.")
    return notes


def _script(users: Sequence[UserMessages]) -> str:
    texts = [" ".join(user.messages) for user in users]
    scripts = [script_of(text) or "unknown" for text in texts]
    return max(set(scripts), key=scripts.count)


def tables(fidelity: Fidelity) -> list[Table]:
    """Return the report as tables."""
    sizes = f"{fidelity.real} real and {fidelity.simulated} simulated dialogues"
    area = NumberCell(f"{fidelity.auc:.3f}", interval_text(fidelity.auc_interval, ".3f"))
    score = NumberCell(f"{fidelity.score:.2f}", interval_text(fidelity.score_interval, ".2f"))
    rows: list[list[Cell]] = [
        [
            each.name,
            f"{each.real:.3g}",
            f"{each.simulated:.3g}",
            NumberCell(f"{each.effect:+.2f}", interval_text(each.interval, "+.2f")),
        ]
        for each in sorted(fidelity.features, key=lambda each: -abs(each.effect))
    ]
    return [
        Table(
            ["", "value"],
            [["fidelity, 2 (1 - AUC)", score], ["AUC of telling messages apart", area]],
            title=f"Fidelity of simulated users ({sizes})",
            note="AUC 0.5: a classifier cannot tell simulated from real messages. 95 % intervals.",
        ),
        Table(
            ["feature", "real", "simulated", "difference"],
            rows,
            title="How they differ",
            note=" ".join(["Differences in standard deviations between dialogues.", *fidelity.notes]),
        ),
    ]
