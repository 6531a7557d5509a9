"""What the answers of a ranking judge show.

Scores count as in training: minus the mean of their call. Intervals are bootstrapped over groups of
dialogues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from mapo.errors import RecordError
from mapo.evals.items import REMOVE_LINE, ItemLine
from mapo.judges.audit.ranking.comparisons import AGAIN, BROKEN, RISES, UNCHANGED, Comparison, RankQuestion
from mapo.measure.stats import Floats, Interval, bootstrap, reportable
from mapo.store import RunDir

Rows = Mapping[str, Floats]
"""Sums by group, from which a statistic of all groups is computed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval; `n` samples of `groups` groups of dialogues."""

    value: float
    interval: Interval | None
    n: int
    groups: int


@dataclass(frozen=True, slots=True)
class RankFindings:
    """Measurements of one ranking judge; None where there was nothing to measure.

    consistency: correlation of the scores of the same replies in two different orders.
    noise: the same for two answers to the same request.
    position: score in the last place minus that in the first, in standard deviations between replies.
    levels: share of pairs that it orders as the recorded levels do; broken: share of replies that it scores
    lower when their words are shuffled. Ties count half.
    gains: change of a reply's score by worthless additions, in standard deviations between replies.
    """

    judge: str
    asked: int
    unscored: int
    missing: int
    deviation: float
    consistency: Estimate | None
    noise: Estimate | None
    position: Estimate | None
    levels: Estimate | None
    broken: Estimate | None
    gains: Mapping[str, Estimate] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Answers = dict[str, dict[tuple[str, int], Floats]]
"""Comparison -> (probe, repeat) -> centred scores in the order of its dialogues."""


def measure_ranking(
    judge: str, questions: Sequence[RankQuestion], lines: Mapping[str, ItemLine]
) -> RankFindings:
    """Return what the answers of one judge show."""
    own = [question for question in questions if question.judge == judge]
    comparisons = {question.comparison.name: question.comparison for question in own}
    answers: Answers = {name: {} for name in comparisons}
    unscored = missing = skipped = 0
    for question in own:
        line = lines.get(question.id)
        if line is None or line.get("error") is not None:
            missing += 1
        elif "skipped" in line:
            skipped += 1
        elif (scores := _scores(line, question)) is None:
            unscored += 1
        else:
            answers[question.comparison.name][question.probe, question.repeat] = scores - scores.mean()
    plain = {name: _plain(answers[name]) for name in comparisons}
    spread = [row for rows in plain.values() if len(rows) for row in (rows.mean(axis=0) ** 2).tolist()]
    deviation = float(np.sqrt(np.mean(spread))) if spread else 0.0
    each = list(comparisons.values())
    return RankFindings(
        judge=judge,
        asked=len(own) - missing - skipped,
        unscored=unscored,
        missing=missing,
        deviation=deviation,
        consistency=_correlation(each, lambda c: list(combinations(plain[c.name], 2))),
        noise=_correlation(each, lambda c: _first_two(answers[c.name])),
        position=_position(each, answers, deviation),
        levels=_ratio(each, lambda c: _ordered_as_recorded(c, plain[c.name])),
        broken=_ratio(each, lambda c: _lowered(c, answers)),
        gains=_gains(each, answers, deviation),
    )


def _scores(line: ItemLine, question: RankQuestion) -> Floats | None:
    scores = line.get("scores")
    if scores is None:
        return None
    known = isinstance(scores, list) and len(scores) == len(question.comparison.turns)
    if not known or not all(type(score) in (int, float) and 0 <= score <= 1 for score in scores):
        where = f"{RunDir.items.name}, {question.id}"
        raise RecordError("the recorded scores do not fit the comparison", where=where, fix=REMOVE_LINE)
    return np.array(scores, dtype=np.float64)


def _plain(answers: Mapping[tuple[str, int], Floats]) -> Floats:
    """Return [repeat, reply] of the unmodified replies."""
    return np.array([scores for (probe, _), scores in answers.items() if probe == UNCHANGED])


def _first_two(answers: Mapping[tuple[str, int], Floats]) -> list[tuple[Floats, Floats]]:
    keys = (UNCHANGED, 0), (AGAIN, 0)
    return [(answers[keys[0]], answers[keys[1]])] if all(key in answers for key in keys) else []


def _correlation(
    comparisons: Sequence[Comparison], pairs: Callable[[Comparison], Sequence[tuple[Floats, Floats]]]
) -> Estimate | None:
    """Return the correlation of centred scores, sum xy / sqrt(sum xx * sum yy)."""
    rows, n = dict[str, Floats](), 0
    for each in comparisons:
        for x, y in pairs(each):
            # Symmetric: which of the two answers came first means nothing.
            row = np.array([x @ y, (x @ x + y @ y) / 2])
            rows[each.group] = rows.get(each.group, np.zeros(2)) + row
            n += 1
    return _estimate(rows, n)


def _position(comparisons: Sequence[Comparison], answers: Answers, deviation: float) -> Estimate | None:
    """Return the slope of a reply's score over its place (0 first, 1 last), within replies."""
    rows, n = dict[str, Floats](), 0
    for each in comparisons:
        repeats = [key for key in answers[each.name] if key[0] == UNCHANGED]
        if len(repeats) < 2 or not deviation:
            continue
        scores = np.array([answers[each.name][key] for key in repeats])
        places = np.array([np.argsort(RankQuestion("", each, *key).order) for key in repeats])
        places = places / (places.shape[1] - 1)
        places, scores = places - places.mean(axis=0), scores - scores.mean(axis=0)
        row = np.array([(places * scores).sum() / deviation, (places**2).sum()])
        rows[each.group] = rows.get(each.group, np.zeros(2)) + row
        n += len(repeats)
    return _estimate(rows, n)


def _ratio(
    comparisons: Sequence[Comparison],
    values: Callable[[Comparison], Sequence[float]],
    unit: float = 1.0,
) -> Estimate | None:
    """Return the mean of the values of all comparisons, in units of `unit`."""
    rows, n = dict[str, Floats](), 0
    for each in comparisons if unit else ():
        for value in values(each):
            rows[each.group] = rows.get(each.group, np.zeros(2)) + np.array([value / unit, 1.0])
            n += 1
    return _estimate(rows, n)


def _ordered_as_recorded(comparison: Comparison, plain: Floats) -> list[float]:
    """Return 1 for each pair of replies in the order of the recorded movement, 0.5 for a tie, 0 otherwise."""
    if not len(plain):
        return []
    means, movements = plain.mean(axis=0), comparison.movements
    return [
        0.5 + 0.5 * float(np.sign((means[a] - means[b]) * (x - y)))
        for a, b in combinations(range(len(means)), 2)
        if (x := movements[a]) is not None and (y := movements[b]) is not None and x != y
    ]


def _gains(comparisons: Sequence[Comparison], answers: Answers, deviation: float) -> dict[str, Estimate]:
    gains = {
        probe: _ratio(comparisons, partial(_gain, answers=answers, probe=probe), deviation) for probe in RISES
    }
    return {probe: gain for probe, gain in gains.items() if gain is not None}


def _gain(comparison: Comparison, answers: Answers, probe: str) -> list[float]:
    """Return the change of the target's score, against the unmodified replies in the same order."""
    own, at = answers[comparison.name], comparison.target
    unmodified = [own[key][at] for key in ((UNCHANGED, 0), (AGAIN, 0)) if key in own]
    if not unmodified or (probe, 0) not in own:
        return []
    return [float(own[probe, 0][at] - np.mean(unmodified))]


def _lowered(comparison: Comparison, answers: Answers) -> list[float]:
    return [0.5 - 0.5 * float(np.sign(change)) for change in _gain(comparison, answers, BROKEN)]


def _estimate(rows: Rows, n: int) -> Estimate | None:
    """Return the ratio of the two summed columns; None if the second is 0."""
    table = np.array(list(rows.values()), dtype=np.float64)
    if not n or not table[:, 1].sum():
        return None

    def ratio(sums: Floats) -> Floats:
        return np.asarray(sums[..., :1] / np.where(sums[..., 1:] == 0, np.nan, sums[..., 1:]))

    ends = bootstrap(table, ratio)
    interval = None if ends is None else reportable(*ends[0], rows=len(table))
    return Estimate(float(ratio(table.sum(axis=0))[0]), interval, n, len(table))
