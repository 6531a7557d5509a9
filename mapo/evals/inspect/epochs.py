"""Epochs of a task: each is one run of the whole benchmark, and their scores are averaged.

Inspect's own reducers average the values of a sample and keep only the metadata of its first epoch. A
headline score needs the metadata of all samples of an epoch, so the reducer here keeps the metadata of every
epoch.
"""

from __future__ import annotations

from typing import Any

from inspect_ai import Epochs
from inspect_ai.scorer import SampleScore, Score, ScoreReducer, mean_score, score_reducer

_ALL = "mapo_epochs"


@score_reducer(name="mapo_epochs")
def all_epochs() -> ScoreReducer:
    """Reduce to the mean of the values and the metadata of every scored epoch."""

    def reduce(scores: list[Score]) -> Score:
        metadata = [score.metadata for score in scores if score.metadata]
        return mean_score()(scores).model_copy(update={"metadata": {_ALL: metadata}})

    return reduce


def one_epoch() -> Epochs:
    """Return the default of one epoch; inspect's --epochs overrides it."""
    return Epochs(1, [all_epochs()])


def by_epoch(scores: list[SampleScore]) -> list[list[dict[str, Any]]]:
    """Return the metadata of the samples of each epoch, with the sample id; one empty epoch without
    samples."""
    samples = [
        [{"id": str(s.sample_id), **metadata} for metadata in (s.score.metadata or {}).get(_ALL, ())]
        for s in scores
    ]
    epochs = max(map(len, samples), default=0)
    return [[sample[i] for sample in samples if i < len(sample)] for i in range(max(1, epochs))]


def averaged(epochs: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each score over epochs; NaN if an epoch lacks it."""
    names = dict.fromkeys(name for scores in epochs for name in scores)
    return {name: sum(e.get(name, float("nan")) for e in epochs) / len(epochs) for name in names}
