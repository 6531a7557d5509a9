"""Agreement of two judges on the same turns, or of one judge with itself (see `measure/agreement.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mapo.judges.audit.answers import Answers, score
from mapo.judges.audit.measure import level_names
from mapo.judges.sample import RecordedTurn, Recording
from mapo.measure.agreement import (
    correlation_interval,
    kappa_interval,
    mean_cosine,
    pooled_kappa,
    quadratic_kappa,
    spearman,
)
from mapo.measure.stats import Interval
from mapo.sandbox.cast import flat_levels
from mapo.types import Levels


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of judges `a` and `b` on the same turns: kappa per level and over all levels, cosine of the
    step vectors on turns that both moved, rank correlation of dialogue scores, and the mean difference of
    rewards (`milder`: positive if `a` gives more)."""

    a: str
    b: str
    turns: int
    kappas: dict[str, float | None]
    kappa: float | None
    interval: Interval | None
    cosine: float | None
    moved: int
    dialogues: int
    ranks: float | None
    milder: float
    ranks_interval: Interval | None = None
    clusters: int = 0
    """Dialogues that the turns come from."""


def agreement(a: Answers, b: Answers, dialogues: Sequence[Recording]) -> Agreement | None:
    """Compare the first answers of two judges; None if they have no turn in common."""
    return _agreement(a.judge, b.judge, a.first(), b.first(), a.turns, _score_pairs(a, b, dialogues, 0))


def self_agreement(judge: Answers, dialogues: Sequence[Recording]) -> Agreement | None:
    """Compare a judge's first answers with its second: an upper bound for agreement with other judges."""
    second = {
        name: forms[1] for name, forms in judge.unchanged.items() if len(forms) > 1 and forms[1] is not None
    }
    pairs = _score_pairs(judge, judge, dialogues, 1)
    return _agreement(judge.judge, f"{judge.judge}, again", judge.first(), second, judge.turns, pairs)


def _score_pairs(
    a: Answers, b: Answers, dialogues: Sequence[Recording], repeat: int
) -> list[tuple[float, float]]:
    pairs = [(a.trajectory(recording, 0), b.trajectory(recording, repeat)) for recording in dialogues]
    return [(score(x), score(y)) for x, y in pairs if x is not None and y is not None]


def _agreement(
    a: str,
    b: str,
    first: Mapping[str, Levels],
    second: Mapping[str, Levels],
    turns: Mapping[str, RecordedTurn],
    scores: Sequence[tuple[float, float]],
) -> Agreement | None:
    common = [name for name in first if name in second]
    if not common:
        return None
    rubric = turns[common[0]].recording.rubric
    x = np.array([flat_levels(first[name], rubric) for name in common], dtype=np.float64)
    y = np.array([flat_levels(second[name], rubric) for name in common], dtype=np.float64)
    kappas = {
        name: quadratic_kappa(x[:, at].tolist(), y[:, at].tolist())
        for at, name in enumerate(level_names(rubric))
    }
    steps = [[rubric.step(form[name]) for name in common] for form in (first, second)]
    cosine, moved = mean_cosine(*steps)
    ranks = spearman([s for s, _ in scores], [s for _, s in scores])
    clusters = [turns[name].recording.id for name in common]
    gaps = [turns[name].reward(first[name]) - turns[name].reward(second[name]) for name in common]
    return Agreement(
        a,
        b,
        turns=len(common),
        kappas=kappas,
        kappa=pooled_kappa(x.T.tolist(), y.T.tolist()),
        interval=kappa_interval(x, y, clusters),
        cosine=cosine,
        moved=moved,
        dialogues=len(scores),
        ranks=ranks,
        milder=sum(gaps) / len(gaps),
        ranks_interval=correlation_interval(ranks, len(scores), of_ranks=True),
        clusters=len(set(clusters)),
    )
