"""Several epochs of a task: each is a run of the whole benchmark, and their scores are averaged.

Inspect's own reducers average a sample's value and keep the first epoch's metadata, but a headline is made
of the metadata of all samples at once. So ours keeps every epoch's, and the metrics take them one by one.
"""

from __future__ import annotations

from typing import Any

from inspect_ai import Epochs
from inspect_ai.scorer import SampleScore, Score, ScoreReducer, mean_score, score_reducer

_ALL = "mapo_epochs"


@score_reducer(name="mapo_epochs")
def all_epochs() -> ScoreReducer:
    """The mean of the values, and the metadata of every epoch that was scored."""

    def reduce(scores: list[Score]) -> Score:
        kept = [score.metadata for score in scores if score.metadata]
        return mean_score()(scores).model_copy(update={"metadata": {_ALL: kept}})

    return reduce


def once() -> Epochs:
    """One epoch, unless inspect is told otherwise."""
    return Epochs(1, [all_epochs()])


def by_epoch(scores: list[SampleScore]) -> list[list[dict[str, Any]]]:
    """For each epoch its samples' metadata, with the sample's id; one empty epoch for no samples."""
    kept = [
        [{"id": str(s.sample_id), **found} for found in (s.score.metadata or {}).get(_ALL, ())]
        for s in scores
    ]
    last = max(map(len, kept), default=0)
    return [[found[at] for found in kept if at < len(found)] for at in range(max(1, last))]


def averaged(epochs: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each score; NaN where one epoch has none."""
    names = dict.fromkeys(name for found in epochs for name in found)
    return {name: sum(e.get(name, float("nan")) for e in epochs) / len(epochs) for name in names}
