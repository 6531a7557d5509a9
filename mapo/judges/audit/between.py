"""Two judges on the same turns, or one judge twice: how far they agree. The measures are in
`agreement.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mapo.judges.audit.answers import Answers, score
from mapo.judges.audit.measure import item_names
from mapo.judges.sample import Moment, Talk
from mapo.measure.agreement import (
    correlation_interval,
    kappa_interval,
    mean_cosine,
    pooled_kappa,
    quadratic_kappa,
    spearman,
)
from mapo.measure.stats import Interval
from mapo.sandbox.cast import flat
from mapo.types import Levels


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two judges on the same turns: kappa of each level and of all of them, cosine of the steps over the
    turns that both moved, rank correlation of whole dialogues' scores, and by how much `a` rewards more."""

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
    """Dialogues that the turns are of."""


def agreement(a: Answers, b: Answers, dialogues: Sequence[Talk]) -> Agreement | None:
    """None where they have no turn in common."""
    return _agreement(a.judge, b.judge, a.first(), b.first(), a.moments, _score_pairs(a, b, dialogues, 0))


def with_itself(judge: Answers, dialogues: Sequence[Talk]) -> Agreement | None:
    """A judge's first answers against its second: no other judge can be expected to agree with it more."""
    second = {
        name: forms[1] for name, forms in judge.plain.items() if len(forms) > 1 and forms[1] is not None
    }
    pairs = _score_pairs(judge, judge, dialogues, 1)
    return _agreement(judge.judge, f"{judge.judge}, again", judge.first(), second, judge.moments, pairs)


def _score_pairs(a: Answers, b: Answers, dialogues: Sequence[Talk], repeat: int) -> list[tuple[float, float]]:
    paths = [(a.path(talk, 0), b.path(talk, repeat)) for talk in dialogues]
    return [(score(x), score(y)) for x, y in paths if x is not None and y is not None]


def _agreement(
    a: str,
    b: str,
    first: Mapping[str, Levels],
    second: Mapping[str, Levels],
    moments: Mapping[str, Moment],
    scores: Sequence[tuple[float, float]],
) -> Agreement | None:
    common = [name for name in first if name in second]
    if not common:
        return None
    rubric = moments[common[0]].talk.rubric
    x = np.array([flat(first[name], rubric) for name in common], dtype=np.float64)
    y = np.array([flat(second[name], rubric) for name in common], dtype=np.float64)
    kappas = {
        item: quadratic_kappa(x[:, at].tolist(), y[:, at].tolist())
        for at, item in enumerate(item_names(rubric))
    }
    steps = [[rubric.step(form[name]) for name in common] for form in (first, second)]
    cosine, moved = mean_cosine(*steps)
    ordered = spearman([s for s, _ in scores], [s for _, s in scores])
    of = [moments[name].talk.id for name in common]
    gaps = [moments[name].reward(first[name]) - moments[name].reward(second[name]) for name in common]
    return Agreement(
        a,
        b,
        turns=len(common),
        kappas=kappas,
        kappa=pooled_kappa(x.T.tolist(), y.T.tolist()),
        interval=kappa_interval(x, y, of),
        cosine=cosine,
        moved=moved,
        dialogues=len(scores),
        ranks=ordered,
        milder=sum(gaps) / len(gaps),
        ranks_interval=correlation_interval(ordered, len(scores), of_ranks=True),
        clusters=len(set(of)),
    )
