"""Answers -> what there is to know about a judge: noise, effects of the probes, agreement, evidence,
failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mapo.judges.audit.answers import Answers, Forms, rewards, score
from mapo.judges.audit.effects import Effect, Taken, attacks_on, effects_of
from mapo.judges.audit.evidence import Quotes, quotes
from mapo.judges.audit.noise import (
    Components,
    Reliability,
    components,
    group_for,
    reliability_of,
    sibling_reliability,
)
from mapo.judges.sample import Moment, Talk, weights_of
from mapo.judges.terms import Terms
from mapo.measure.agreement import correlation_interval, pearson
from mapo.measure.rubric import Rubric
from mapo.measure.stats import Interval
from mapo.sandbox.cast import flat

METHODS = ("mapo", "turn", "batch", "grpo")
DEFAULTS = Terms()


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
    """Correlation of whole dialogues' scores when they are judged twice; and its interval."""
    scores_interval: Interval | None
    effects: tuple[Effect, ...]
    attacks: Taken | None
    quotes: Quotes

    def effect(self, probe: str) -> Effect | None:
        return next((e for e in self.effects if e.probe == probe), None)

    def as_json(self) -> dict[str, Any]:
        return {
            **{
                key: getattr(self, key)
                for key in ("judge", "asked", "unscored", "missing", "items", "scores", "scores_interval")
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
    scores, scores_interval = _score_reliability(answers, dialogues)
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
        scores=scores,
        scores_interval=scores_interval,
        effects=effects_of(answers, math.sqrt(noise.between) if noise else 0.0, strata),
        attacks=attacks_on(answers),
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


def _score_reliability(answers: Answers, dialogues: Sequence[Talk]) -> tuple[float | None, Interval | None]:
    twice = [(answers.path(talk, 0), answers.path(talk, 1)) for talk in dialogues]
    both = [(score(a), score(b)) for a, b in twice if a is not None and b is not None]
    r = pearson([a for a, _ in both], [b for _, b in both]) if len(both) > 2 else None
    return r, correlation_interval(r, len(both))
