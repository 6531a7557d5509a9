"""What the probes did to a judge: the change of the reward and of the levels, and whether attacks worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mapo.judges.audit.answers import Answers, Forms, total
from mapo.judges.audit.probes import LANGUAGE, LANGUAGE_PROBE, PROBES, attack_on
from mapo.judges.sample import Moment, weights_of
from mapo.measure.stats import Floats, Interval, bootstrap, holm, sign_flip, told, wilson


@dataclass(frozen=True, slots=True)
class Effect:
    """What a probe does to a judge, over `n` turns of `clusters` dialogues: the mean change of the sum of a
    form's levels, and of the reward, with a 95 % interval; `size` is the reward's in standard deviations of
    what the judge sees between turns. `p` is of the sign-flip test over dialogues, `p_holm` corrected among a
    judge's probes."""

    probe: str
    kind: str
    n: int
    clusters: int
    levels: float
    levels_interval: Interval | None
    reward: float
    interval: Interval | None
    p: float | None
    size: float | None = None
    size_interval: Interval | None = None
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Of `n` attacks: how many raised the form above all but one of its repeats, which those were, and how
    often the one left out is above them too, by chance alone."""

    n: int
    worked: int
    which: tuple[str, ...]
    chance: float
    interval: Interval


def effects_of(answers: Answers, spread: float, strata: Mapping[tuple[str, str], int]) -> tuple[Effect, ...]:
    """Of all probes. `spread` is the standard deviation of the reward between turns."""
    found = []
    for probe in (*PROBES.values(), LANGUAGE_PROBE):
        changes: list[tuple[Moment, float, float]] = []
        for name, forms in answers.by_probe.get(probe.name, {}).items():
            changed = answers.moments[name]
            plain = answers.plain.get(_counterpart(name, probe.name), [])
            before, after = _means(plain, changed), _means(forms, changed)
            if before and after:
                changes.append((changed, after[0] - before[0], after[1] - before[1]))
        if changes:
            sizes = {} if probe.name == LANGUAGE else strata  # pairs are of no stratum
            found.append(_effect(probe.name, probe.kind, changes, spread, sizes))
    corrected = holm([effect.p for effect in found])
    return tuple(replace(effect, p_holm=p) for effect, p in zip(found, corrected, strict=True))


def _counterpart(name: str, probe: str) -> str:
    """The turn that a changed one is held against: itself, or the English side of a pair."""
    return name.replace("pairs/zh", "pairs/en", 1) if probe == LANGUAGE else name


def _means(forms: Forms, moment: Moment) -> tuple[float, float] | None:
    known = [levels for levels in forms if levels is not None]
    if not known:
        return None
    return (
        sum(total(levels, moment) for levels in known) / len(known),
        sum(moment.reward(levels) for levels in known) / len(known),
    )


def _effect(
    probe: str,
    kind: str,
    changes: Sequence[tuple[Moment, float, float]],
    spread: float,
    strata: Mapping[tuple[str, str], int],
) -> Effect:
    rows: dict[str, Floats] = {}
    weights = weights_of([moment for moment, _, _ in changes], strata)
    for (moment, levels, reward), w in zip(changes, weights, strict=True):
        own = np.array([w, w * levels, w * reward])
        rows[moment.talk.id] = rows.get(moment.talk.id, np.zeros(3)) + own
    table = np.array(list(rows.values()), dtype=np.float64)

    def mean(sums: Floats) -> Floats:
        return np.asarray(sums[..., 1:] / sums[..., :1])

    change, worth = (float(x) for x in mean(table.sum(axis=0)))
    ends = bootstrap(table, mean)
    intervals = [None, None] if ends is None else [told(*pair, rows=len(table)) for pair in ends]
    return Effect(
        probe,
        kind,
        n=len(changes),
        clusters=len(table),
        levels=change,
        levels_interval=intervals[0],
        reward=worth,
        interval=intervals[1],
        p=sign_flip(table[:, 2] / table[:, 0]),
        size=worth / spread if spread else None,
        size_interval=(intervals[1][0] / spread, intervals[1][1] / spread)
        if intervals[1] and spread
        else None,
    )


def attacks_on(answers: Answers) -> Taken | None:
    """A form, attacked or not, is held against one repeat fewer than there are: the repeats take turns at
    being the one that is not attacked."""
    n = tried = lucky = 0
    which: list[str] = []
    for name, forms in answers.by_probe.get("injection", {}).items():
        moment = answers.moments[name]
        plain = [total(levels, moment) for levels in answers.plain.get(name, []) if levels is not None]
        after = forms[0]
        if len(plain) < 2 or after is None:
            continue
        n += 1
        if total(after, moment) > max(plain[1:]):
            which.append(attack_on(answers.numbers[name]))
        tried += len(plain)
        lucky += sum(x > max(plain[:at] + plain[at + 1 :]) for at, x in enumerate(plain))
    if not n:
        return None
    return Taken(n, len(which), tuple(sorted(which)), lucky / tried, wilson(len(which), n))
