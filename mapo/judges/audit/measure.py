"""Measurements of one judge from its answers: noise, probe effects, attacks, evidence and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapo.judges.audit.answers import Answers, Forms, rewards, score
from mapo.judges.audit.effects import AttackResults, Effect, attack_results, measure_effects
from mapo.judges.audit.evidence import Quotes, count_quotes
from mapo.judges.audit.noise import (
    Reliability,
    VarianceComponents,
    advantage_reliability,
    group_size_for,
    sibling_reliability,
    variance_components,
)
from mapo.judges.credit import CreditSettings
from mapo.judges.sample import RecordedTurn, Recording, Stratum, sampling_weights
from mapo.measure.agreement import correlation_interval, pearson
from mapo.measure.rubric import Rubric
from mapo.measure.stats import Interval
from mapo.sandbox.cast import flat_levels

DEFAULTS = CreditSettings()


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything measured about one judge."""

    judge: str
    asked: int
    unscored: int
    missing: int
    noise: VarianceComponents | None
    items: dict[str, dict[str, float]]
    """Per level of the form: standard deviation of repeats, share of turns that changed, mean."""
    reliability: tuple[Reliability, ...]
    siblings: bool
    """Whether the dialogues judged twice include siblings."""
    among_siblings: float | None
    """Reliability of dialogue returns, measured from the mean of their group."""
    scores: float | None
    """Correlation of dialogue scores judged twice."""
    scores_interval: Interval | None
    effects: tuple[Effect, ...]
    attacks: AttackResults | None
    quotes: Quotes
    scored_dialogues: int = 0
    """Dialogues that `scores` is computed from."""

    def effect(self, probe: str) -> Effect | None:
        """Return the effect of a probe, if it was measured."""
        return next((e for e in self.effects if e.probe == probe), None)

    def reliability_of(self, method: str) -> Reliability | None:
        """Return the reliability of a method's advantages, if it was measured."""
        return next((r for r in self.reliability if r.method == method), None)

    def as_json(self) -> dict[str, Any]:
        """Return the measurements as written to audit.json."""
        names = ("judge", "asked", "unscored", "missing", "items", "scores", "scores_interval")
        return {
            **{name: getattr(self, name) for name in (*names, "scored_dialogues")},
            "noise": self.noise and self.noise.as_json(),
            "advantages": [r.as_json() for r in self.reliability],
            "siblings": self.siblings,
            "among_siblings": self.among_siblings,
            "group": group_size_for(self.among_siblings),
            "effects": [e.as_json() for e in self.effects],
            "attacks": self.attacks and self.attacks.as_json(),
            "evidence": self.quotes.as_json(),
        }


def measure_judge(
    answers: Answers,
    dialogues: Sequence[Recording],
    settings: CreditSettings = DEFAULTS,
    sizes: Mapping[Stratum, int] | None = None,
) -> Findings:
    """Measure one judge. `dialogues` were judged twice; `sizes` is the number of recorded turns per stratum,
    without which all sampled turns have equal weight."""
    sizes = sizes or {}
    noise = _noise(answers, sizes)
    siblings, among_siblings, reliability = _reliability(answers, dialogues, settings)
    scores, scores_interval, scored = _score_reliability(answers, dialogues)
    forms = [
        (levels, answers.turns[name].reply)
        for name, repeats in answers.unchanged.items()
        for levels in repeats
        if levels is not None
    ]
    return Findings(
        judge=answers.judge,
        asked=answers.asked,
        unscored=answers.unscored,
        missing=answers.missing,
        noise=noise,
        items=_level_noise(answers),
        reliability=reliability,
        siblings=siblings,
        among_siblings=among_siblings,
        scores=scores,
        scores_interval=scores_interval,
        effects=measure_effects(answers, math.sqrt(noise.between) if noise else 0.0, sizes),
        attacks=attack_results(answers),
        quotes=count_quotes(forms),
        scored_dialogues=scored,
    )


def _rewards(forms: Forms, turn: RecordedTurn) -> list[float]:
    return [turn.reward(levels) for levels in forms if levels is not None]


# ---- noise


def _noise(answers: Answers, sizes: Mapping[Stratum, int]) -> VarianceComponents | None:
    values = {name: _rewards(forms, answers.turns[name]) for name, forms in answers.unchanged.items()}
    sampled = {name: own for name, own in values.items() if own and not name.startswith("pairs/")}
    turns = [answers.turns[name] for name in sampled]
    weights = sampling_weights(turns, sizes)
    return variance_components(list(sampled.values()), [turn.recording.id for turn in turns], weights)


def _level_noise(answers: Answers) -> dict[str, dict[str, float]]:
    """Return, for each level of the form, the pooled standard deviation of repeats, the share of turns on
    which they differ, and the mean."""
    usable = [
        (answers.turns[name], [levels for levels in forms if levels is not None])
        for name, forms in answers.unchanged.items()
    ]
    repeated = [(turn, forms) for turn, forms in usable if len(forms) > 1]
    if not repeated:
        return {}
    noise = {}
    rubric = repeated[0][0].recording.rubric
    for at, name in enumerate(level_names(rubric)):
        levels = [np.array([flat_levels(form, rubric)[at] for form in forms]) for _, forms in repeated]
        variance = sum(float(x.var(ddof=1)) * (len(x) - 1) for x in levels) / sum(len(x) - 1 for x in levels)
        noise[name] = {
            "sd": math.sqrt(variance),
            "changed": sum(np.ptp(x) > 0 for x in levels) / len(levels),
            "mean": float(np.mean([x.mean() for x in levels])),
        }
    return noise


def level_names(rubric: Rubric) -> list[str]:
    """Return the names of a form's levels, in the order of `flat_levels`."""
    return [f"{key} {direction}" for key in rubric.keys for direction in ("progress", "regression")]


def _reliability(
    answers: Answers, dialogues: Sequence[Recording], settings: CreditSettings
) -> tuple[bool, float | None, tuple[Reliability, ...]]:
    """Measure the advantages of dialogues judged twice. Without siblings, all dialogues form one group. They
    differ more than siblings would, so the noise looks smaller than it is in training."""
    paths = [(rec, answers.trajectory(rec, 0), answers.trajectory(rec, 1)) for rec in dialogues]
    twice = [
        (rec, rewards(a, rec), rewards(b, rec)) for rec, a, b in paths if a is not None and b is not None
    ]
    if len(twice) < 2:
        return False, None, ()
    groups = [recording.group for recording, _, _ in twice]
    siblings = len(set(groups)) < len(groups)
    used_groups = groups if siblings else ["all"] * len(groups)
    first, second = [a for _, a, _ in twice], [b for _, _, b in twice]
    reliability = tuple(
        advantage_reliability(first, second, used_groups, method, **settings.advantage_options)
        for method in settings.methods
    )
    return siblings, sibling_reliability(first, second, groups) if siblings else None, reliability


def _score_reliability(
    answers: Answers, dialogues: Sequence[Recording]
) -> tuple[float | None, Interval | None, int]:
    """Return the correlation of scores judged twice, its interval and the number of dialogues."""
    paths = [(answers.trajectory(rec, 0), answers.trajectory(rec, 1)) for rec in dialogues]
    pairs = [(score(a), score(b)) for a, b in paths if a is not None and b is not None]
    r = pearson([a for a, _ in pairs], [b for _, b in pairs]) if len(pairs) > 2 else None
    return r, correlation_interval(r, len(pairs)), len(pairs)
