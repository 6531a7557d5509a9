"""How far a judge's readout agrees with the recorded judge, on dialogues that it was not trained on.

The step of a turn is the sum of its step vector. The recorded step comes from the recorded levels, the
predicted one is the expectation under the predicted probabilities. Correlations within dialogues leave out
what a judge can guess from the policy or the person alone. Levels are compared after calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapo.judges.audit.answers import trajectory_of
from mapo.judges.sample import Recording
from mapo.measure.agreement import kappa_interval, pearson, pooled_kappa, quadratic_kappa, spearman
from mapo.measure.calibration import Calibration
from mapo.measure.epmq import composite, indices
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.roles.examples import magnitudes, turn_name
from mapo.sandbox.readout import levels_from
from mapo.types import Levels

MIN_TURNS = 8
"""Judged turns of a dialogue from which on its own correlation counts."""
BINS = 10
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Recorded levels (as magnitudes) and predicted log-probabilities of one turn."""

    recording: Recording
    number: int
    levels: tuple[int, ...]
    logprobs: tuple[tuple[float, ...], ...]

    @property
    def reply(self) -> str:
        """The reply that was judged."""
        return self.recording.dialogue.turns[self.number - 1].reply.text


def agreement(judgements: Sequence[Judgement], calibration: Calibration, rubric: Rubric) -> dict[str, Any]:
    """Return every measure of agreement, as plain data for the report."""
    probabilities = [calibration.apply(j.logprobs) for j in judgements]
    predicted = np.array([calibration.levels(p) for p in probabilities])
    recorded = np.array([j.levels for j in judgements])
    steps, truth = step_sums(probabilities, recorded, rubric)
    names = [f"{axis.key} {side}" for axis in rubric.axes for side in ("progress", "regression")]
    places = {
        name: _place(recorded[:, k], predicted[:, k], np.array([p[k] for p in probabilities]))
        for k, name in enumerate(names)
    }
    kappas = [own["kappa"] for own in places.values() if own["kappa"] is not None]
    dialogues = [j.recording.id for j in judgements]
    forms = {
        (j.recording.id, j.number): levels_from(p, rubric, calibration)
        for j, p in zip(judgements, probabilities, strict=True)
    }
    return {
        "turns": len(judgements),
        "dialogues": len(set(dialogues)),
        "places": places,
        "kappa": float(np.mean(kappas)) if kappas else None,
        "pooled_kappa": _pooled(recorded, predicted, dialogues),
        "correlation": pearson(steps.tolist(), truth.tolist()),
        "within": within(steps, truth, dialogues),
        "curve": curve(probabilities, recorded),
        "policies": policies(judgements, steps, truth, forms),
        "length": _length_bias(judgements, steps - truth),
        "explained_by_policy": {
            "recorded": explained([j.recording.dialogue.model for j in judgements], truth),
            "predicted": explained([j.recording.dialogue.model for j in judgements], steps),
        },
        "endings": endings(judgements, forms),
    }


def step_sums(
    probabilities: Sequence[Sequence[Sequence[float]]], recorded: NDArray[Any], rubric: Rubric
) -> tuple[Floats, Floats]:
    """Return the expected and the recorded step of every turn, summed over the axes."""
    tables = [np.array(t) for axis in rubric.axes for t in (axis.progress, axis.regression)]
    expected = [np.array([p[k] for p in probabilities]) @ table for k, table in enumerate(tables)]
    truth = [table[recorded[:, k]] for k, table in enumerate(tables)]
    return np.sum(expected, axis=0), np.sum(truth, axis=0).astype(np.float64)


def within(steps: Floats, truth: Floats, dialogues: Sequence[str]) -> float | None:
    """Return the mean correlation of steps inside single dialogues, None if no dialogue is long enough."""
    names = np.array(dialogues)
    own = [
        r
        for name in dict.fromkeys(dialogues)
        if (names == name).sum() >= MIN_TURNS
        and (r := pearson(steps[names == name].tolist(), truth[names == name].tolist())) is not None
    ]
    return float(np.mean(own)) if own else None


def explained(groups: Sequence[str], values: Floats) -> float | None:
    """Return the share of the variance of `values` that lies between groups (eta squared)."""
    total = float(((values - values.mean()) ** 2).sum())
    if total < 1e-12:
        return None
    names = np.array(groups)
    means = {name: float(values[names == name].mean()) for name in set(groups)}
    between = sum((means[name] - float(values.mean())) ** 2 for name in groups)
    return between / total


def curve(
    probabilities: Sequence[Sequence[Sequence[float]]], recorded: NDArray[Any]
) -> list[dict[str, float]]:
    """Return the calibration curve over all places and levels: mean probability, observed share and
    number."""
    p = np.concatenate([list(row[k]) for row in probabilities for k in range(len(row))])
    y = np.concatenate(
        [
            np.arange(len(row[k])) == levels[k]
            for row, levels in zip(probabilities, recorded, strict=True)
            for k in range(len(row))
        ]
    )
    return [
        {"predicted": float(p[own].mean()), "observed": float(y[own].mean()), "n": int(own.sum())}
        for b in range(BINS)
        if (own := np.minimum((p * BINS).astype(int), BINS - 1) == b).any()
    ]


def calibration_error(probabilities: Floats, levels: NDArray[Any]) -> float:
    """Return the expected calibration error of one place: |share - probability| over bins, weighted by size;
    the mean over levels. Over all levels together, even probabilities would always be right."""
    p, y = probabilities, np.arange(probabilities.shape[1]) == levels[:, None]
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    gaps = [abs(np.where(bins == b, p - y, 0.0).sum(axis=0)) for b in range(BINS)]
    return float(np.sum(gaps) / p.size)


def _place(recorded: NDArray[Any], predicted: NDArray[Any], probabilities: Floats) -> dict[str, Any]:
    counts = np.bincount(recorded, minlength=probabilities.shape[1])
    return {
        "accuracy": float((recorded == predicted).mean()),
        "majority": float(counts.max() / counts.sum()),
        "kappa": quadratic_kappa(recorded.tolist(), predicted.tolist()),
        "calibration_error": calibration_error(probabilities, recorded),
        "recorded": (counts / counts.sum()).tolist(),
        "predicted": (np.bincount(predicted, minlength=len(counts)) / len(predicted)).tolist(),
    }


def _pooled(recorded: NDArray[Any], predicted: NDArray[Any], dialogues: Sequence[str]) -> dict[str, Any]:
    value = pooled_kappa(recorded.T.tolist(), predicted.T.tolist())
    return {
        "kappa": value,
        "interval": kappa_interval(recorded.astype(float), predicted.astype(float), dialogues),
    }


def _length_bias(judgements: Sequence[Judgement], errors: Floats) -> float | None:
    """Return the correlation of the error of the predicted step with the logarithm of the reply's length."""
    return pearson([float(np.log1p(len(j.reply))) for j in judgements], errors.tolist())


# ---- policies and dialogues

Forms = Mapping[tuple[str, int], Levels]
"""Predicted forms by recording and turn."""


def policies(judgements: Sequence[Judgement], steps: Floats, truth: Floats, forms: Forms) -> dict[str, Any]:
    """Return the mean step and EPM-Q of every policy by both judges, and how well their orders agree."""
    models = np.array([j.recording.dialogue.model for j in judgements])
    recordings = {j.recording.id: j.recording for j in judgements}
    rows = {}
    for model in sorted(set(models.tolist())):
        own = [r for r in recordings.values() if r.dialogue.model == model]
        rows[model] = {
            "turns": int((models == model).sum()),
            "recorded": float(truth[models == model].mean()),
            "predicted": float(steps[models == model].mean()),
            "epmq_recorded": _epmq([_trajectory(r, None) for r in own]),
            "epmq_predicted": _epmq([_trajectory(r, forms) for r in own]),
        }
    columns = {name: [row[name] for row in rows.values()] for name in next(iter(rows.values()))}
    return {
        "rows": rows,
        "spearman": spearman(columns["recorded"], columns["predicted"]),
        "epmq_spearman": spearman(columns["epmq_recorded"], columns["epmq_predicted"]),
        "epmq_error": float(
            np.mean(np.abs(np.array(columns["epmq_recorded"]) - np.array(columns["epmq_predicted"])))
        ),
    }


def endings(judgements: Sequence[Judgement], forms: Forms) -> dict[str, Any]:
    """Return how often the first ending by the predicted levels is the one by the recorded levels."""
    recordings = list({j.recording.id: j.recording for j in judgements}.values())
    pairs = [(ending_by(r, _forms(r, None)), ending_by(r, _forms(r, forms))) for r in recordings]
    same = sum(a == b for a, b in pairs)
    return {"dialogues": len(pairs), "same": same / len(pairs)}


def _trajectory(recording: Recording, forms: Forms | None) -> Trajectory:
    return trajectory_of(recording, _forms(recording, forms))


def _forms(recording: Recording, forms: Forms | None) -> list[Levels | None]:
    if forms is None:
        return [turn.levels for turn in recording.dialogue.turns]
    return [forms.get((recording.id, n)) for n in range(1, len(recording.dialogue.turns) + 1)]


def _epmq(trajectories: Sequence[Trajectory]) -> float:
    return composite([indices(trajectory) for trajectory in trajectories]).epm_q


def ending_by(recording: Recording, forms: Sequence[Levels | None]) -> str:
    """Return why a dialogue ends by these forms; "open" if it does not end within them."""
    dialogue = recording.dialogue
    path = Trajectory(recording.rubric, dialogue.start, dialogue.profile, goal=dialogue.goal)
    for levels in forms:
        path.judge(levels)
        if ending := path.ending():
            return ending.reason.value
    return "open"


def judgements_of(
    recordings: Sequence[Recording],
    names: Sequence[str],
    predicted: Sequence[Sequence[Sequence[float]]],
    rubric: Rubric,
) -> list[Judgement]:
    """Join predictions, by the names of their turns, with the recorded levels."""
    turns = {
        turn_name(r, n): (r, n, turn.levels)
        for r in recordings
        for n, turn in enumerate(r.dialogue.turns, 1)
        if turn.levels is not None
    }
    joined = []
    for name, logprobs in zip(names, predicted, strict=True):
        recording, number, levels = turns[name]
        joined.append(Judgement(recording, number, magnitudes(levels, rubric), tuple(map(tuple, logprobs))))
    return joined
