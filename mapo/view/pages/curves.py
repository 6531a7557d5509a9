"""The viewer's figures as plain data for Plotly. Colours and line styles are those of `show.figures`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import combinations
from typing import Any, NamedTuple

from mapo.runs.contents import endings_by_step, number
from mapo.show.figures import COLOURS, ENDINGS, FAINT, LOOKS, Look, look, looks_of, rgba
from mapo.text import printable
from mapo.view.index import queries

_HATCH = {"fillmode": "overlay", "size": 7, "solidity": 0.25, "fgcolor": "rgba(255,255,255,0.55)"}
_IN_PAIRS = {"training", "validation", "to the start", "to the sampler", "sampled", "trained"}
POINTS = 1500
"""Points a line shows; longer ones are thinned."""

Trace = dict[str, Any]
Steps = Sequence[Mapping[str, Any]]

PLOTS = {
    "reward": ("Reward of a turn", "mean reward"),
    "epm_q": ("EPM-Q", "EPM-Q"),
    "grad_norm": ("Gradient norm", "norm"),
    "entropy": ("Entropy", "nats a token"),
    "kl": ("KL divergence", "nats a token"),
    "clip": ("Clip fraction", "share of tokens"),
    "speed": ("Tokens a second", "tokens / s"),
    "length": ("Dialogue length", "turns"),
    "endings": ("Endings", "share of dialogues"),
    "unscored": ("Unscored turns", "share of turns"),
}
"""The figures of a training run: key -> title, what is on the vertical axis."""


LABEL = 80
"""Characters of a name that a figure shows."""
AROUND = 28
"""Characters of a name around a radar."""


def label(text: str, most: int = LABEL) -> str:
    """A name as a figure shows it: Plotly takes some markup in texts for markup."""
    shown = printable(text)
    return escape(shown if len(shown) <= most else f"{shown[: most - 1]}…", quote=False)


def distinct(labels: Sequence[str]) -> list[str]:
    """Labels that were cut may be alike, and Plotly would lay them onto one place: those get a number."""
    found: list[str] = []
    for each in labels:
        n, shown = 1, each
        while shown in found:
            n, shown = n + 1, f"{each} ({n + 1})"
        found.append(shown)
    return found


class PlottedRun(NamedTuple):
    key: str
    name: str
    method: str
    steps: Steps


def run_figures(db: sqlite3.Connection, runs: Sequence[PlottedRun]) -> dict[str, Any]:
    """Return all figures of one run, or of several laid over each other."""
    traces: dict[str, list[Trace]] = {key: [] for key in PLOTS}
    looks = looks_of([run.method for run in runs]) if len(runs) > 1 else [LOOKS[0]]
    for (key, name, _, steps), own in zip(runs, looks, strict=True):
        look = _Lines(own, label(name) if len(runs) > 1 else "")
        traces["reward"] += _reward(db, key, steps, look)
        traces["epm_q"] += _epm_q(db, key, steps, look)
        traces["grad_norm"] += look.line(_column(steps, "grad_norm"), "gradient norm")
        traces["entropy"] += look.line(_column(steps, "entropy"), "entropy")
        traces["kl"] += look.line(_column(steps, "kl_start"), "to the start")
        other = "kl_old" if any("kl_old" in step for step in steps) else "kl"
        traces["kl"] += look.line(_column(steps, other), "to the sampler", second=True)
        traces["clip"] += look.line(_column(steps, "clip_fraction"), "clipped")
        traces["speed"] += look.line(_column(steps, "sampled_per_s"), "sampled")
        traces["speed"] += look.line(_column(steps, "trained_per_s"), "trained", second=True)
        traces["length"] += look.line(_column(steps, "turns"), "turns a dialogue")
        traces["unscored"] += look.line(_column(steps, "unscored"), "unscored")
        traces["endings"] += _endings(db, key, steps, look, alone=len(runs) == 1)
    return {
        key: {"data": found, "layout": _layout(key, found, stacked=key == "endings" and len(runs) == 1)}
        for key, found in traces.items()
        if found
    }


class _Lines:
    """The lines of one run. Looks tell runs apart; in a figure of a single run, its first line from its
    second."""

    def __init__(self, look: Look, name: str) -> None:
        self.look, self.name = look, name

    def _look(self, second: bool) -> tuple[Look, str]:
        """Return the look of a line and its dash. Of several runs, the second line keeps the run's colour and
        gets another dash."""
        if not self.name:
            return LOOKS[second], LOOKS[second].dash
        at = LOOKS.index(self.look) + 2 * second
        return self.look, LOOKS[at % len(LOOKS)].dash

    def _named(self, label: str) -> str:
        """The run, where there are several; and what the line is, where a figure has two of them."""
        if not self.name:
            return label
        return f"{self.name}: {label}" if label in _IN_PAIRS else self.name

    def line(self, points: Sequence[tuple[float, float]], label: str, *, second: bool = False) -> list[Trace]:
        if not points:
            return []
        points = _thinned(points)
        look, dash = self._look(second)
        return [
            {
                "type": "scatter",
                "mode": "lines+markers" if len(points) < 60 else "lines",
                "name": self._named(label),
                "x": [x for x, _ in points],
                "y": [y for _, y in points],
                "line": {"color": look.colour, "dash": dash, "width": 2},
                "marker": {"size": 6, "symbol": look.symbol},
            }
        ]

    def band(self, means: Mapping[int, queries.Mean], label: str, *, second: bool = False) -> list[Trace]:
        """A line in its 95 % interval."""
        lines = self.line([(step, m[0]) for step, m in means.items()], label, second=second)
        sure = [(step, m[1], m[2]) for step, m in means.items() if m[1] is not None]
        if not lines or len(sure) < 2:
            return lines
        sure = _thinned(sure)
        look, _ = self._look(second)
        shade = {
            "type": "scatter",
            "mode": "lines",
            "x": [s for s, _, _ in sure] + [s for s, _, _ in reversed(sure)],
            "y": [high for _, _, high in sure] + [low for _, low, _ in reversed(sure)],
            "fill": "toself",
            "fillcolor": rgba(look.colour, 0.16),
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
            "name": f"{label}, 95 % interval",
        }
        return [shade, *lines]


def _reward(db: sqlite3.Connection, key: str, steps: Steps, look: _Lines) -> list[Trace]:
    """The mean over turns as the run wrote it; of a step that is still being played, as far as it is."""
    means = queries.means_by_step(db, key, "train", "reward")
    for step, mean in _column(steps, "reward"):
        _, low, high, n = means.get(int(step), (0.0, None, None, 0))
        means[int(step)] = (mean, low, high, n)
    return look.band(dict(sorted(means.items())), "reward")


def _epm_q(db: sqlite3.Connection, key: str, steps: Steps, look: _Lines) -> list[Trace]:
    means = queries.means_by_step(db, key, "train", "epm_q")
    found = look.band(means, "training") if means else look.line(_column(steps, "score"), "training")
    held = queries.means_by_step(db, key, "validation", "epm_q")
    return found + look.band(held, "validation", second=True)


def _endings(db: sqlite3.Connection, key: str, lines: Steps, look: _Lines, *, alone: bool) -> list[Trace]:
    """As the run wrote them; of a step that is still being played, as far as it is."""
    by = _both(endings_by_step(lines), queries.endings_by_step(db, key))
    totals: dict[int, float] = {}
    for counts in by.values():
        for step, n in counts.items():
            totals[step] = totals.get(step, 0) + n
    steps = sorted(totals)
    if not alone:
        won = by.get("success", {})
        return look.line([(s, won.get(s, 0) / totals[s]) for s in steps], "success")
    return [
        {
            "type": "bar",
            "name": ending,
            "x": steps,
            "y": [by[ending].get(s, 0) / totals[s] for s in steps],
            "marker": {"color": colour, "pattern": {**_HATCH, "shape": "/" if i % 2 else ""}},
            "showlegend": True,
        }
        for i, (ending, colour) in enumerate(ENDINGS.items())
        if ending in by
    ]


def _both(
    written: Mapping[str, Mapping[int, float]], played: Mapping[str, Mapping[int, float]]
) -> dict[str, dict[int, float]]:
    """What was written of a step, else what was found of it."""
    known = {step for counts in written.values() for step in counts}
    found = {ending: dict(counts) for ending, counts in written.items()}
    for ending, counts in played.items():
        more = {step: n for step, n in counts.items() if step not in known}
        if more:
            found.setdefault(ending, {}).update(more)
    return found


def _column(steps: Steps, name: str) -> list[tuple[float, float]]:
    found = [(line["step"], number(line.get(name))) for line in steps]
    return [(step, value) for step, value in found if value is not None]


def _thinned(points: Sequence[Any]) -> list[Any]:
    every = max(1, -(-len(points) // POINTS))
    return [*points[::every], *(points[-1:] if (len(points) - 1) % every else [])]


def _layout(key: str, traces: Sequence[Trace], *, stacked: bool) -> dict[str, Any]:
    steps = [x for trace in traces for x in trace["x"]]
    few = max(steps) - min(steps) <= 12
    upwards: dict[str, Any] = {"title": {"text": PLOTS[key][1]}}
    if key in ("grad_norm", "entropy", "clip", "speed", "length", "unscored", "endings"):
        upwards["rangemode"] = "tozero"
    if key == "endings" and not stacked:
        upwards["title"] = {"text": "share that succeed"}
    if key in ("unscored", "clip") and not any(y for trace in traces for y in trace["y"]):
        upwards["range"] = [0, 0.05]  # else a line at zero would be drawn as if 100 % were near
    return {
        "xaxis": {"title": {"text": "step"}, **({"dtick": 1} if few else {})},
        "yaxis": upwards,
        **({"barmode": "stack", "bargap": 0.15} if stacked else {}),
    }


# ---- the path of a dialogue


Path = Sequence[Sequence[float]]


def path_figures(
    axes: Sequence[str], path: Path, others: Sequence[tuple[str, Path]], zone: float
) -> dict[str, Any]:
    """The way through the space of deficits: by its three deepest axes at the start, and by pairs of axes."""
    figures: dict[str, Any] = {}
    axes = [label(axis) for axis in axes]
    others = [(label(name), way) for name, way in others]
    if len(axes) >= 3:
        start = path[0] if path else [0.0] * len(axes)
        deepest = sorted(sorted(range(len(axes)), key=lambda i: start[i])[:3])
        figures["space"] = _space(axes, deepest, path, others)
    for a, b in list(combinations(range(len(axes)), 2))[:15]:
        figures[f"pair_{a}_{b}"] = _pair(axes, (a, b), path, others, zone)
    return figures


def _space(
    axes: Sequence[str], chosen: Sequence[int], path: Path, others: Sequence[tuple[str, Path]]
) -> dict[str, Any]:
    def trace(name: str, way: Path, **look: Any) -> Trace:
        x, y, z = ([p[i] for p in way] for i in chosen)
        return {"type": "scatter3d", "name": name, "x": x, "y": y, "z": z, **look}

    data = [
        trace(name, way, mode="lines", line={"color": FAINT, "width": 2}, opacity=0.6) for name, way in others
    ]
    marker = {"size": 4, "color": COLOURS[0]}
    text = _turn_names(path)
    line = {"color": COLOURS[0], "width": 5}
    data.append(trace("this dialogue", path, mode="lines+markers", line=line, marker=marker, text=text))
    goal = {"size": 6, "color": COLOURS[2], "symbol": "diamond"}
    data.append(trace("nothing more needed", [[0.0] * len(axes)], mode="markers", marker=goal))
    scene = {f"{n}axis": {"title": {"text": axes[i]}} for n, i in zip("xyz", chosen, strict=True)}
    return {"data": data, "layout": {"scene": scene}}


def _pair(
    axes: Sequence[str], pair: tuple[int, int], path: Path, others: Sequence[tuple[str, Path]], zone: float
) -> dict[str, Any]:
    a, b = pair

    def trace(name: str, way: Path, **look: Any) -> Trace:
        return {"type": "scatter", "name": name, "x": [p[a] for p in way], "y": [p[b] for p in way], **look}

    data = [
        trace(name, way, mode="lines", line={"color": FAINT, "width": 1, "dash": "dot"}, opacity=0.8)
        for name, way in others
    ]
    look = {"line": {"color": COLOURS[0], "width": 2.5}, "marker": {"size": 7, "color": COLOURS[0]}}
    data.append(trace("this dialogue", path, mode="lines+markers", text=_turn_names(path), **look))
    goal = {"size": 11, "color": COLOURS[2], "symbol": "diamond"}
    data.append(trace("nothing more needed", [[0.0] * len(axes)], mode="markers", marker=goal))
    box = {"type": "rect", "x0": -zone, "x1": zone, "y0": -zone, "y1": zone, "layer": "below"}
    box |= {"line": {"width": 0}, "fillcolor": rgba(COLOURS[2], 0.18)}
    layout = {"xaxis": {"title": {"text": axes[a]}}, "yaxis": {"title": {"text": axes[b]}}, "shapes": [box]}
    return {"data": data, "layout": {**layout, "showlegend": False}}


def _turn_names(path: Path) -> list[str]:
    return ["start", *(f"turn {i}" for i in range(1, len(path)))]


# ---- benchmarks


def radar(groups: Sequence[str], sets: Sequence[tuple[str, Callable[[str], float | None]]]) -> dict[str, Any]:
    """One closed line a set over the groups, from 0 to wherever its values reach."""
    data: list[Trace] = []
    around = distinct([label(group, AROUND) for group in groups])
    for i, (name, value) in enumerate(sets):
        values = [value(group) for group in groups]
        own = look(i)
        line = {"color": own.colour, "dash": own.dash, "width": 2}
        data.append(
            {
                "type": "scatterpolar",
                "name": label(name),
                "theta": [*around, around[0]],
                "r": [*values, values[0]],
                "line": line,
                "marker": {"symbol": own.symbol, "size": 6},
                "mode": "lines+markers",
            }
        )
    return {"data": data, "layout": {"polar": {"radialaxis": {"rangemode": "tozero", "nticks": 5}}}}
