"""A classifier that tells simulated messages from real ones, judged on dialogues it was not trained on.

Logistic regression with an L2 penalty on hashed character n-grams. Messages of the same group (person or
scenario) are in the same fold, so that it cannot recognise a story. The area under the ROC curve (AUC) is the
probability that a random simulated message gets a higher score than a random real one: 0.5 if they cannot be
told apart.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SIZE = 2048
"""Number of hashed features."""
LONGEST = 400
"""Characters used of a message."""
PENALTY = 1e-3
STEPS = 150
FOLDS = 5


def ngram_rows(messages: Sequence[str]) -> Floats:
    """Return [message, feature]: counts of 1- to 3-grams, damped and scaled to length 1."""
    rows = np.zeros((len(messages), SIZE))
    for row, message in zip(rows, messages, strict=True):
        text = " ".join(message.split())[:LONGEST]
        for n in (1, 2, 3):
            for at in range(len(text) - n + 1):
                row[zlib.crc32(text[at : at + n].encode("utf-8", "replace")) % SIZE] += 1
    rows = np.log1p(rows)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def fit(rows: Floats, simulated: NDArray[np.bool_]) -> Floats:
    """Return the weights, the intercept last, that minimise the class-balanced log loss plus the penalty.

    Accelerated gradient descent: rows have length sqrt(2) with the intercept, so the loss is 1/2-smooth.
    """
    x = np.hstack([rows, np.ones((len(rows), 1))])
    weight = np.where(simulated, 0.5 / simulated.sum(), 0.5 / (~simulated).sum())
    penalty = np.full(x.shape[1], PENALTY)
    penalty[-1] = 0.0
    w, ahead = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for step in range(STEPS):
        error = (1 / (1 + np.exp(-(x @ ahead))) - simulated) * weight
        previous, w = w, ahead - (x.T @ error + penalty * ahead) / (0.5 + PENALTY)
        ahead = w + step / (step + 3) * (w - previous)
    return w


def held_out_scores(
    messages: Sequence[str], simulated: NDArray[np.bool_], groups: Sequence[str], seed: int = 0
) -> Floats:
    """Return the score of each message from a classifier that was trained without its group."""
    rows, fold = ngram_rows(messages), fold_of(simulated, groups, seed)
    scores = np.zeros(len(rows))
    for k in range(FOLDS):
        here = fold == k
        if here.any():
            w = fit(rows[~here], simulated[~here])
            scores[here] = rows[here] @ w[:-1] + w[-1]
    return scores


def fold_of(simulated: NDArray[np.bool_], groups: Sequence[str], seed: int = 0) -> NDArray[np.intp]:
    """Return the fold of each message. The groups of each side are dealt out evenly; one that both sides have
    is in one fold, or the classifier would learn which side told its story.
    """
    number: dict[str, int] = {}
    for side in (False, True):
        names = sorted({groups[at] for at in np.flatnonzero(simulated == side).tolist()} - number.keys())
        random.Random(f"{seed}/{side}").shuffle(names)  # noqa: S311 (not a secret)
        number |= {name: n % FOLDS for n, name in enumerate(names)}
    return np.array([number[group] for group in groups], dtype=np.intp)


def auc(scores: Floats, simulated: NDArray[np.bool_], weights: Floats | None = None) -> float:
    """Return the AUC; ties count half. `weights` says how often each message counts."""
    w = np.ones(len(scores)) if weights is None else weights
    values, at = np.unique(scores, return_inverse=True)
    real = np.bincount(at, w * ~simulated, len(values))
    fake = np.bincount(at, w * simulated, len(values))
    below = np.cumsum(real) - real
    return float((fake * (below + real / 2)).sum() / (real.sum() * fake.sum()))
