"""The paper's experiments: which models are trained and tested, and the figures the paper reports for them.

Figures are the EMPA scores and passes (of 30 cases) of arXiv:2603.06194. Where the paper gives no figure, the
row has none. Two experiments report slightly different scores for the same training (8B, turn only: 36.1 and
34.0); each row has the figure of its own experiment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from mapo.errors import InputError

SIZES = ("7b", "8b", "14b", "32b")
MODELS = {
    "7b": "Qwen2.5-7B-Instruct",
    "8b": "Qwen3-8B",
    "14b": "Qwen3-14B",
    "32b": "Qwen3-32B",
}
METHOD_NAMES = {"mapo": "MAPO", "grpo": "GRPO", "turn": "turn only", "batch": "batch only"}


@dataclass(frozen=True, slots=True)
class Training:
    """One training of the paper. `judge` replaces the judge of the config."""

    size: str
    method: str = "mapo"
    reward: str = "idr"
    turn_weight: float = 0.5
    judge: str | None = None

    @property
    def name(self) -> str:
        """A name for folders, the same in every experiment that needs this training."""
        parts = [self.size, self.method]
        parts += [self.reward] * (self.reward != "idr")
        parts += [f"w{self.turn_weight:g}"] * (self.turn_weight != 0.5)
        parts += [f"judge-{safe_name(self.judge)}"] * bool(self.judge)
        return "-".join(parts)

    @property
    def settings(self) -> list[str]:
        """The settings in which this training differs from the config of its size."""
        settings = [f'advantage.method="{self.method}"', f'reward.name="{self.reward}"']
        if self.turn_weight != 0.5:
            settings.append(f"advantage.turn_weight={self.turn_weight:g}")
        if self.judge:
            settings.append(f"roles.judge.model={_toml_string(self.judge)}")
        return settings


@dataclass(frozen=True, slots=True)
class Published:
    """A result of the paper: its score, or a range of scores, and passes of 30."""

    low: float | None = None
    high: float | None = None
    passes: int | None = None

    @staticmethod
    def of(score: float, passes: int | None = None) -> Published:
        return Published(score, score, passes)

    @property
    def text(self) -> str:
        """The score or range for a table."""
        if self.low is None or self.high is None:
            return "-"
        return f"{self.low:.1f}" if self.low == self.high else f"{self.low:.1f} to {self.high:.1f}"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: a model to test, trained or as it is, and what the paper reports for it.

    `judge` is the judge of the test, if it is not the usual one.
    """

    size: str
    label: str
    training: Training | None
    published: Published = Published()
    judge: str | None = None

    @property
    def model(self) -> str:
        """The name of the tested model, for folders."""
        return self.training.name if self.training else f"{self.size}-base"

    @property
    def test(self) -> str:
        """The name of the test, for folders."""
        return f"{self.model}-judged-by-{safe_name(self.judge)}" if self.judge else self.model


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment of the paper. `figures` is whether it also draws the figures of its runs."""

    name: str
    title: str
    rows: tuple[Row, ...]
    figures: bool = False


def table1(size: str) -> list[Row]:
    """Return the main comparison: the base model, GRPO and MAPO."""
    base, grpo, mapo = {
        "7b": ((15.7, 0), (28.0, 1), (58.9, 9)),
        "8b": ((13.3, 0), (33.0, 5), (41.6, 8)),
        "14b": ((53.5, 12), (55.4, 12), (67.8, 20)),
        "32b": ((68.9, 19), (73.9, 22), (84.3, 26)),
    }[size]
    return [
        Row(size, "base model", None, Published.of(*base)),
        Row(size, "GRPO", Training(size, "grpo"), Published.of(*grpo)),
        Row(size, "MAPO", Training(size), Published.of(*mapo)),
    ]


def granularity(size: str) -> list[Row]:
    """Return the comparison of mixed, batch-level and turn-level advantages."""
    scores = {"7b": (58.9, 50.8, 54.5), "8b": (41.5, 38.5, 36.1)}.get(size)
    published = [Published.of(score) for score in scores] if scores else [Published()] * 3
    methods = (("mixed (MAPO)", "mapo"), ("batch only", "batch"), ("turn only", "turn"))
    return [
        Row(size, label, Training(size, method), figure)
        for (label, method), figure in zip(methods, published, strict=True)
    ]


def reward(size: str) -> list[Row]:
    """Return the comparison of absolute and incremental distance rewards."""
    scores = {("batch", "adr"): 18.2, ("batch", "idr"): 38.5, ("turn", "adr"): 31.5, ("turn", "idr"): 34.0}
    return [
        Row(
            size,
            f"{METHOD_NAMES[method]}, {name}",
            Training(size, method, name),
            Published.of(score) if size == "8b" else Published(),
        )
        for (method, name), score in scores.items()
    ]


def weights(size: str) -> list[Row]:
    """Return the sweep of the turn weight; its ends are the turn-only and batch-only trainings."""
    trainings = {
        0.0: Training(size, "batch"),
        0.25: Training(size, turn_weight=0.25),
        0.5: Training(size),
        0.75: Training(size, turn_weight=0.75),
        1.0: Training(size, "turn"),
    }
    return [Row(size, f"turn weight {weight:g}", training) for weight, training in trainings.items()]


def judges(size: str, names: Sequence[str]) -> list[Row]:
    """Return MAPO tested by each judge, and MAPO trained with each judge."""
    ranges = {"8b": (41.1, 43.5), "14b": (68.0, 69.1), "32b": (83.4, 84.2)}
    published = Published(*ranges.get(size, (None, None)))
    tested = [Row(size, f"tested by {name}", Training(size), published, judge=name) for name in names]
    return tested + [Row(size, f"trained with {name}", Training(size, judge=name)) for name in names]


TITLES = {
    "table1": "Base model, GRPO and MAPO",
    "granularity": "Turn-level, batch-level and mixed advantages",
    "reward": "Absolute and incremental distance reward",
    "weights": "The weight of the turn-level advantage",
    "judges": "Testing and training with other judges",
    "figures": "Learning curves, gradient norms and trajectories",
}
REPORTED_SIZES = {
    "table1": SIZES,
    "granularity": ("7b", "8b"),
    "reward": ("8b",),
    "weights": ("8b",),
    "judges": ("8b", "14b", "32b"),
    "figures": ("7b", "8b"),
}
"""The sizes for which the paper reports an experiment; for the weights, the size of its other ablations."""


def experiment(name: str, sizes: Sequence[str], judge_names: Sequence[str] = ()) -> Experiment:
    """Return an experiment on models of these sizes, by default those of the paper."""
    if name not in TITLES:
        raise InputError(f"there is no experiment '{name}'", fix=f"Use one of: {', '.join(TITLES)}")
    if unknown := [size for size in sizes if size not in SIZES]:
        raise InputError(f"--model is '{unknown[0]}'", fix=f"Use one of: {', '.join(SIZES)}")
    if name == "judges" and not judge_names:
        raise InputError("the experiment 'judges' needs judges", fix="Name them: --judges NAME,NAME,NAME")
    if name != "judges" and judge_names:
        raise InputError("--judges belongs to the experiment 'judges'", fix="Leave it out")
    rows: list[Row] = []
    for size in sizes or REPORTED_SIZES[name]:
        if name == "judges":
            rows += judges(size, judge_names)
        elif name == "figures":
            both = [*table1(size), *granularity(size)]
            rows += {row.test: row for row in both}.values()
        else:
            makers = {"table1": table1, "granularity": granularity, "reward": reward, "weights": weights}
            rows += makers[name](size)
    return Experiment(name, TITLES[name], tuple(rows), figures=name == "figures")


def safe_name(text: str | None) -> str:
    """Return a text as part of a file name. Texts that differ have names that differ."""
    text = text or "none"
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).strip("-").lower()
    return name if name == text else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}".strip("-")


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
