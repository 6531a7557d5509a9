"""Answers -> what there is to know about a judge: noise, effects of the probes, agreement, evidence,
failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mapo.audit.agreement import pearson
from mapo.audit.answers import Answers, Forms, rewards, score, total
from mapo.audit.evidence import Quotes, quotes
from mapo.audit.noise import (
    Components,
    Reliability,
    components,
    group_for,
    reliability_of,
    sibling_reliability,
)
from mapo.audit.probes import LANGUAGE, LANGUAGE_PROBE, PROBES, attack_on
from mapo.audit.sample import Moment, Talk, weights_of
from mapo.audit.terms import Terms
from mapo.evals.stats import Floats, Interval, bootstrap, holm, sign_flip, told, wilson
from mapo.sandbox.cast import flat
from mapo.sandbox.rubric import Rubric

METHODS = ("mapo", "turn", "batch", "grpo")
DEFAULTS = Terms()


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


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything about one judge."""

    judge: str
    asked: int
    unscored: int
    missing: int
    noise: Components | None
    items: dict[str, dict[str, float]]
    reliability: tuple[Reliability, ...]
    siblings: bool
    among_siblings: float | None
    """Reliability of what dialogues earn in all, measured from their group's mean."""
    scores: float | None
    """Correlation of whole dialogues' scores when they are judged twice."""
    effects: tuple[Effect, ...]
    attacks: Taken | None
    quotes: Quotes

    def effect(self, probe: str) -> Effect | None:
        return next((e for e in self.effects if e.probe == probe), None)

    def as_json(self) -> dict[str, Any]:
        return {
            **{
                key: getattr(self, key)
                for key in ("judge", "asked", "unscored", "missing", "items", "scores")
            },
            "noise": self.noise and self.noise.as_json(),
            "advantages": [r.as_json() for r in self.reliability],
            "siblings": self.siblings,
            "among_siblings": self.among_siblings,
            "group": group_for(self.among_siblings),
            "effects": [asdict(e) for e in self.effects],
            "attacks": self.attacks and asdict(self.attacks),
            "evidence": self.quotes.as_json(),
        }


def findings(
    answers: Answers,
    dialogues: Sequence[Talk],
    terms: Terms = DEFAULTS,
    strata: Mapping[tuple[str, str], int] | None = None,
) -> Findings:
    """`strata` are the sizes of those that turns were drawn from; without them all turns count alike."""
    strata = strata or {}
    noise = _components(answers, strata)
    siblings, among, reliability = _reliability(answers, dialogues, terms)
    judged = [
        (levels, answers.moments[name].reply)
        for name, forms in answers.plain.items()
        for levels in forms
        if levels is not None
    ]
    return Findings(
        judge=answers.judge,
        asked=answers.asked,
        unscored=answers.unscored,
        missing=answers.missing,
        noise=noise,
        items=_items(answers),
        reliability=reliability,
        siblings=siblings,
        among_siblings=among,
        scores=_score_reliability(answers, dialogues),
        effects=_effects(answers, math.sqrt(noise.between) if noise else 0.0, strata),
        attacks=_attacks(answers),
        quotes=quotes(judged),
    )


def _rewards(forms: Forms, moment: Moment) -> list[float]:
    return [moment.reward(levels) for levels in forms if levels is not None]


# ---- noise


def _components(answers: Answers, strata: Mapping[tuple[str, str], int]) -> Components | None:
    values = {name: _rewards(forms, answers.moments[name]) for name, forms in answers.plain.items()}
    asked = {name: own for name, own in values.items() if own and not name.startswith("pairs/")}
    moments = [answers.moments[name] for name in asked]
    weights = weights_of(moments, strata)
    return components(list(asked.values()), [moment.talk.id for moment in moments], weights)


def _items(answers: Answers) -> dict[str, dict[str, float]]:
    """For each level of the form: how far repeats stray (pooled standard deviation), and on how many
    turns."""
    repeated = [
        (answers.moments[name], [levels for levels in forms if levels is not None])
        for name, forms in answers.plain.items()
    ]
    asked = [(moment, forms) for moment, forms in repeated if len(forms) > 1]
    if not asked:
        return {}
    found = {}
    rubric = asked[0][0].talk.rubric
    for at, name in enumerate(item_names(rubric)):
        own = [np.array([flat(form, rubric)[at] for form in forms]) for _, forms in asked]
        spread = sum(float(x.var(ddof=1)) * (len(x) - 1) for x in own) / sum(len(x) - 1 for x in own)
        found[name] = {
            "sd": math.sqrt(spread),
            "changed": sum(np.ptp(x) > 0 for x in own) / len(own),
            "mean": float(np.mean([x.mean() for x in own])),
        }
    return found


def item_names(rubric: Rubric) -> list[str]:
    return [f"{key} {side}" for key in rubric.keys for side in ("progress", "regression")]


def _reliability(
    answers: Answers, dialogues: Sequence[Talk], terms: Terms
) -> tuple[bool, float | None, tuple[Reliability, ...]]:
    """Advantages of dialogues judged twice. Where there are no siblings, all dialogues stand in for them:
    they differ more than siblings do, so the noise counts for less than it would in training."""
    twice = [(talk, answers.path(talk, 0), answers.path(talk, 1)) for talk in dialogues]
    both = [
        (talk, rewards(a, talk), rewards(b, talk)) for talk, a, b in twice if a is not None and b is not None
    ]
    if len(both) < 2:
        return False, None, ()
    groups = [talk.group for talk, _, _ in both]
    siblings = len(set(groups)) < len(groups)
    named = groups if siblings else ["all"] * len(groups)
    first, second = [a for _, a, _ in both], [b for _, _, b in both]
    found = tuple(reliability_of(first, second, named, method, **terms.credit) for method in METHODS)
    return siblings, sibling_reliability(first, second, groups) if siblings else None, found


def _score_reliability(answers: Answers, dialogues: Sequence[Talk]) -> float | None:
    twice = [(answers.path(talk, 0), answers.path(talk, 1)) for talk in dialogues]
    both = [(score(a), score(b)) for a, b in twice if a is not None and b is not None]
    return pearson([a for a, _ in both], [b for _, b in both]) if len(both) > 2 else None


# ---- probes


def _effects(answers: Answers, spread: float, strata: Mapping[tuple[str, str], int]) -> tuple[Effect, ...]:
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
    )


def _attacks(answers: Answers) -> Taken | None:
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
