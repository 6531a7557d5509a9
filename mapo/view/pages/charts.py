"""Charts as plain data for Plotly. Colours and line styles come from `mapo.show.figures`, as in reports."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import combinations
from typing import Any, NamedTuple

from mapo.measure.axes import REGRESSION
from mapo.runs.contents import endings_by_step, number
from mapo.scoring.reference import reference_lines
from mapo.scripted.world import World
from mapo.show.figures import COLOURS, ENDINGS, FAINT, LOOKS, Look, look, looks_of, rgba
from mapo.text import printable
from mapo.types import ending_label
from mapo.view.index import queries

_HATCH = {"fillmode": "overlay", "size": 7, "solidity": 0.25, "fgcolor": "rgba(255,255,255,0.55)"}
_PAIRED = {
    "user at fault",
    "masked",
    "kappa",
    "correlation of steps",
    "training",
    "validation",
    "from start",
    "from sampler",
    "sampled",
    "trained",
}
"""Lines that share a chart with a second line of the same run."""
POINTS = 1500
"""Points per line; longer lines are thinned."""

Trace = dict[str, Any]
Steps = Sequence[Mapping[str, Any]]

PLOTS = {
    "reward": ("Reward per turn", "mean reward"),
    "epm_q": ("EPM-Q", "EPM-Q (points)"),
    "axes": ("Reward per axis, and regression", "mean per turn"),
    "regressed": ("Turns with regression", "share of turns"),
    "grad_norm": ("Gradient norm", "norm, before clipping"),
    "entropy": ("Entropy", "nats per token"),
    "kl": ("KL divergence", "nats per token"),
    "clip": ("Clip fraction", "share of tokens"),
    "speed": ("Tokens per second", "tokens / s"),
    "length": ("Turns per dialogue", "mean turns"),
    "endings": ("Endings", "share of dialogues"),
    "unscored": ("Unscored turns", "share of turns"),
    "check": ("Agreement with the judge of spot checks", "kappa, correlation"),
    "faults": ("Turns with a fault of the user", "share of turns"),
}
"""The charts of a training run: key -> title, label of the y axis."""
AXES = 12
"""Axes in a chart."""
LABEL = 80
"""Characters of a name in a chart."""
RADAR_LABEL = 28
"""Characters of a name around a radar chart."""


def label(text: str, most: int = LABEL) -> str:
    """Return a name for a chart, escaped because Plotly interprets some markup."""
    shown = printable(text)
    return escape(shown if len(shown) <= most else f"{shown[: most - 1]}…", quote=False)


def distinct(labels: Sequence[str]) -> list[str]:
    """Number labels that are equal after shortening; Plotly would draw them at one position."""
    unique: list[str] = []
    for each in labels:
        n, shown = 1, each
        while shown in unique:
            n, shown = n + 1, f"{each} ({n + 1})"
        unique.append(shown)
    return unique


class PlottedRun(NamedTuple):
    key: str
    name: str
    method: str
    steps: Steps
    world: World | None = None
    """The test world, if the people were scripted."""


def run_figures(db: sqlite3.Connection, runs: Sequence[PlottedRun]) -> dict[str, Any]:
    """Return all charts of one run, or of several runs overlaid."""
    traces: dict[str, list[Trace]] = {key: [] for key in PLOTS}
    looks = looks_of([run.method for run in runs]) if len(runs) > 1 else [LOOKS[0]]
    names = distinct([label(run.name) for run in runs])
    for (key, _, _, steps, _), own, name in zip(runs, looks, names, strict=True):
        look = _Lines(own, name if len(runs) > 1 else "")
        traces["reward"] += _reward(db, key, steps, look)
        traces["epm_q"] += _epm_q(db, key, steps, look)
        harm = _column(steps, REGRESSION)
        traces["axes"] += _axes(steps, harm) if len(runs) == 1 else look.line(harm, REGRESSION)
        traces["regressed"] += look.line(_column(steps, "regressed"), "turns with regression")
        traces["grad_norm"] += look.line(_column(steps, "grad_norm"), "gradient norm")
        traces["entropy"] += look.line(_column(steps, "entropy"), "entropy")
        traces["kl"] += look.line(_column(steps, "kl_start"), "from start")
        other = "kl_old" if any("kl_old" in step for step in steps) else "kl"
        traces["kl"] += look.line(_column(steps, other), "from sampler", second=True)
        traces["clip"] += look.line(_column(steps, "clip_fraction"), "clipped")
        traces["speed"] += look.line(_column(steps, "sampled_per_s"), "sampled")
        traces["speed"] += look.line(_column(steps, "trained_per_s"), "trained", second=True)
        traces["length"] += look.line(_column(steps, "turns"), "turns per dialogue")
        traces["unscored"] += look.line(_column(steps, "unscored"), "unscored")
        traces["check"] += look.band(_kappa(steps), "kappa")
        correlation = _column(steps, "check", "window", "correlation")
        traces["check"] += look.line(correlation, "correlation of steps", second=True)
        at_fault = _column(steps, "faults", "turns", "user")
        if any(share for _, share in at_fault):
            traces["faults"] += look.line(at_fault, "user at fault")
        traces["faults"] += look.line(_column(steps, "masked_faults"), "masked", second=True)
        traces["endings"] += _endings(db, key, steps, look, alone=len(runs) == 1)
    worlds = {run.world for run in runs if run.world}
    figures = {}
    for key, lines in traces.items():
        if not lines:
            continue
        layout = _layout(key, lines, stacked=key == "endings" and len(runs) == 1)
        if key == "epm_q" and len(worlds) == 1:
            steps_drawn = [x for trace in lines for x in trace["x"]]
            lines += reference_traces(worlds.pop(), min(steps_drawn), max(steps_drawn))
        figures[key] = {"data": lines, "layout": layout}
    return figures


def reference_traces(world: World | None, first: object, last: object) -> list[Trace]:
    """Return the reference scores of a test world as dotted lines from x=`first` to x=`last`."""
    if isinstance(first, int | float) and first == last:
        first, last = first - 0.5, first + 0.5
    scores = reference_lines(world)
    highest = max((score.epm_q for score in scores), default=0.0)
    return [
        {
            "type": "scatter",
            "mode": "lines+text",
            "name": f"{label(score.label)} {score.epm_q:.0f}",
            "x": [first, last],
            "y": [score.epm_q, score.epm_q],
            "text": ["", f"{label(score.label)} {score.epm_q:.0f}"],
            "textposition": "bottom left" if score.epm_q < highest else "top left",
            "textfont": {"color": FAINT, "size": 11},
            "line": {"color": FAINT, "dash": "dot", "width": 1.5},
            "hoverinfo": "name",
            "cliponaxis": False,
            "showlegend": False,
        }
        for score in scores
    ]


class _Lines:
    """The lines of one run. Looks distinguish runs, or the two lines of a single run."""

    def __init__(self, look: Look, name: str) -> None:
        self.look, self.name = look, name

    def _look(self, second: bool) -> tuple[Look, str]:
        """Return the look of a line and its dash. With several runs, the second line keeps the run's colour
        and gets another dash."""
        if not self.name:
            return LOOKS[second], LOOKS[second].dash
        at = LOOKS.index(self.look) + 2 * second
        return self.look, LOOKS[at % len(LOOKS)].dash

    def _named(self, label: str) -> str:
        """Return the name in the legend: the run if there are several, and the line if a chart has two."""
        if not self.name:
            return label
        return f"{self.name}: {label}" if label in _PAIRED else self.name

    def line(self, points: Sequence[tuple[float, float]], label: str, *, second: bool = False) -> list[Trace]:
        if not points:
            return []
        points = _thinned(points)
        look, dash = self._look(second)
        return [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": self._named(label),
                "x": [x for x, _ in points],
                "y": [y for _, y in points],
                "line": {"color": look.colour, "dash": dash, "width": 2},
                "marker": {
                    "size": 6,
                    "symbol": f"{look.symbol}-open" if second and self.name else look.symbol,
                    **({"maxdisplayed": 12} if len(points) >= 30 else {}),
                },
            }
        ]

    def band(self, means: Mapping[int, queries.Mean], label: str, *, second: bool = False) -> list[Trace]:
        """Return a line with its 95 % interval as a band."""
        lines = self.line([(step, m[0]) for step, m in means.items()], label, second=second)
        ends = [(step, m[1], m[2]) for step, m in means.items() if m[1] is not None]
        if not lines or len(ends) < 2:
            return lines
        ends = _thinned(ends)
        look, _ = self._look(second)
        shade = {
            "type": "scatter",
            "mode": "lines",
            "x": [s for s, _, _ in ends] + [s for s, _, _ in reversed(ends)],
            "y": [high for _, _, high in ends] + [low for _, low, _ in reversed(ends)],
            "fill": "toself",
            "fillcolor": rgba(look.colour, 0.16),
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
            "name": f"{label}, 95 % interval",
        }
        return [shade, *lines]


def _reward(db: sqlite3.Connection, key: str, steps: Steps, look: _Lines) -> list[Trace]:
    """Return the recorded mean over turns; for the current step, the mean over finished dialogues."""
    means = queries.means_by_step(db, key, "train", "reward")
    for step, mean in _column(steps, "reward"):
        _, low, high, n = means.get(int(step), (0.0, None, None, 0))
        means[int(step)] = (mean, low, high, n)
    return look.band(dict(sorted(means.items())), "reward")


def _epm_q(db: sqlite3.Connection, key: str, steps: Steps, look: _Lines) -> list[Trace]:
    means = queries.means_by_step(db, key, "train", "epm_q")
    training = look.band(means, "training") if means else look.line(_column(steps, "score"), "training")
    validation = queries.means_by_step(db, key, "validation", "epm_q")
    return training + look.band(validation, "validation", second=True)


def _axes(steps: Steps, harm: Sequence[tuple[float, float]]) -> list[Trace]:
    """Return the reward of each axis and regression, as the run recorded them."""
    recorded = [(line["step"], line.get("axis_rewards")) for line in steps]
    rows = [(step, row) for step, row in recorded if isinstance(row, dict)]
    names = list(dict.fromkeys(key for _, row in rows for key in list(row)[:AXES]))[:AXES]
    lines = {
        label(key): [(step, value) for step, row in rows if (value := number(row.get(key))) is not None]
        for key in names
    }
    lines = {**{name: points for name, points in lines.items() if points}, REGRESSION: list(harm)}
    return [
        t for i, (name, points) in enumerate(lines.items()) for t in _Lines(look(i), name).line(points, "")
    ]


def _endings(db: sqlite3.Connection, key: str, lines: Steps, look: _Lines, *, alone: bool) -> list[Trace]:
    """Return the endings as the run recorded them; for the current step, of the finished dialogues."""
    by = _merged(endings_by_step(lines), queries.endings_by_step(db, key))
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
            "name": ending_label(ending),
            "x": steps,
            "y": [by[ending].get(s, 0) / totals[s] for s in steps],
            "marker": {"color": colour, "pattern": {**_HATCH, "shape": "/" if i % 2 else ""}},
            "showlegend": True,
        }
        for i, (ending, colour) in enumerate(ENDINGS.items())
        if ending in by
    ]


def _merged(
    recorded: Mapping[str, Mapping[int, float]], played: Mapping[str, Mapping[int, float]]
) -> dict[str, dict[int, float]]:
    """Combine the recorded counts with those of steps that have none yet."""
    known = {step for counts in recorded.values() for step in counts}
    merged = {ending: dict(counts) for ending, counts in recorded.items()}
    for ending, counts in played.items():
        more = {step: n for step, n in counts.items() if step not in known}
        if more:
            merged.setdefault(ending, {}).update(more)
    return merged


def _column(steps: Steps, *names: str) -> list[tuple[float, float]]:
    """Return a metric by step: the value at a path of names, where it is a number."""
    points = []
    for line in steps:
        value: Any = line
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if (y := number(value)) is not None:
            points.append((line["step"], y))
    return points


def _kappa(steps: Steps) -> dict[int, queries.Mean]:
    """Return the kappa of spot checks by step, with its interval and the number of checked turns."""
    low, high, n = (dict(_column(steps, "check", "window", key)) for key in ("low", "high", "answered"))
    return {
        int(step): (kappa, low.get(step), high.get(step), int(n.get(step, 0)))
        for step, kappa in _column(steps, "check", "window", "kappa")
    }


def _thinned(points: Sequence[Any]) -> list[Any]:
    every = max(1, -(-len(points) // POINTS))
    return [*points[::every], *(points[-1:] if (len(points) - 1) % every else [])]


def _layout(key: str, traces: Sequence[Trace], *, stacked: bool) -> dict[str, Any]:
    steps = [x for trace in traces for x in trace["x"]]
    few = max(steps) - min(steps) <= 12
    yaxis: dict[str, Any] = {"title": {"text": PLOTS[key][1]}}
    if key in ("grad_norm", "entropy", "clip", "speed", "length", "unscored", "endings", "regressed"):
        yaxis["rangemode"] = "tozero"
    if key == "endings" and not stacked:
        yaxis["title"] = {"text": "share ending in success"}
    if key in ("unscored", "clip", "regressed") and not any(y for trace in traces for y in trace["y"]):
        yaxis["range"] = [0, 0.05]  # otherwise the axis of a line at zero would reach 100 %
    return {
        "xaxis": {"title": {"text": "step"}, **({"dtick": 1} if few else {})},
        "yaxis": yaxis,
        **({"barmode": "stack", "bargap": 0.15} if stacked else {}),
    }


# ---- the trajectory of a dialogue


States = Sequence[Sequence[float]]


def trajectory_figures(
    axes: Sequence[str], states: States, others: Sequence[tuple[str, States]], zone: float
) -> dict[str, Any]:
    """Return the trajectory on the three axes with the largest deficit at the start, and on pairs of axes."""
    figures: dict[str, Any] = {}
    axes = [label(axis) for axis in axes]
    others = [(label(name), other) for name, other in others]
    if len(axes) >= 3:
        start = states[0] if states else [0.0] * len(axes)
        deepest = sorted(sorted(range(len(axes)), key=lambda i: start[i])[:3])
        figures["space"] = _space(axes, deepest, states, others)
    ends = _shared_range([states, *(other for _, other in others)], zone)
    for a, b in list(combinations(range(len(axes)), 2))[:15]:
        figures[f"pair_{a}_{b}"] = _pair(axes, (a, b), states, others, zone, ends)
    return figures


def _shared_range(trajectories: Sequence[States], zone: float) -> list[float]:
    """Return one range for all axes of all pairs, so that distances can be compared between charts."""
    values = [x for states in trajectories for state in states for x in state]
    low, high = min([-zone, *values]), max([zone, *values])
    margin = 0.12 * (high - low)
    return [low - margin, high + margin]


def _space(
    axes: Sequence[str], chosen: Sequence[int], states: States, others: Sequence[tuple[str, States]]
) -> dict[str, Any]:
    def trace(name: str, points: States, **look: Any) -> Trace:
        x, y, z = ([p[i] for p in points] for i in chosen)
        return {"type": "scatter3d", "name": name, "x": x, "y": y, "z": z, **look}

    data = [
        trace(name, other, mode="lines", line={"color": FAINT, "width": 2}, opacity=0.6)
        for name, other in others
    ]
    marker = {"size": 4, "color": COLOURS[0]}
    text = _turn_names(states)
    line = {"color": COLOURS[0], "width": 5}
    data.append(trace("this dialogue", states, mode="lines+markers", line=line, marker=marker, text=text))
    first = {"size": 7, "color": COLOURS[1], "symbol": "square"}
    data.append(trace("start", states[:1], mode="markers", marker=first))
    goal = {"size": 6, "color": COLOURS[2], "symbol": "diamond"}
    data.append(trace("goal", [[0.0] * len(axes)], mode="markers", marker=goal))
    scene = {
        f"{n}axis": {"title": {"text": axes[i]}, "nticks": 5} for n, i in zip("xyz", chosen, strict=True)
    }
    return {"data": data, "layout": {"scene": scene}}


def _pair(
    axes: Sequence[str],
    pair: tuple[int, int],
    states: States,
    others: Sequence[tuple[str, States]],
    zone: float,
    ends: list[float],
) -> dict[str, Any]:
    a, b = pair

    def trace(name: str, points: States, **look: Any) -> Trace:
        x, y = [p[a] for p in points], [p[b] for p in points]
        return {"type": "scatter", "name": name, "x": x, "y": y, **look}

    data = [
        trace(name, other, mode="lines", line={"color": FAINT, "width": 1.5}, opacity=0.7)
        for name, other in others
    ]
    look = {"line": {"color": COLOURS[0], "width": 2.5}, "marker": {"size": 7, "color": COLOURS[0]}}
    data.append(trace("this dialogue", states, mode="lines+markers", text=_turn_names(states), **look))
    first = {"size": 11, "color": COLOURS[1], "symbol": "square"}
    named = {"mode": "markers+text", "textfont": {"size": 11}, "cliponaxis": False}
    beside = {"textposition": _label_side(states, a)}
    data.append(trace("start", states[:1], marker=first, text=["start"], **named, **beside))
    goal = {"size": 11, "color": COLOURS[2], "symbol": "diamond"}
    below = {"textposition": "bottom center"}
    data.append(trace("goal", [[0.0] * len(axes)], marker=goal, text=["goal"], **named, **below))
    box = {"type": "rect", "x0": -zone, "x1": zone, "y0": -zone, "y1": zone, "layer": "below"}
    box |= {"line": {"width": 0}, "fillcolor": rgba(COLOURS[2], 0.18)}
    layout = {
        "xaxis": {"title": {"text": axes[a]}, "range": ends},
        "yaxis": {"title": {"text": axes[b]}, "range": ends},
        "shapes": [box],
    }
    return {"data": data, "layout": {**layout, "showlegend": False}}


def _label_side(states: States, a: int) -> str:
    """Return the side of the start that the trajectory does not go to."""
    moved = states[-1][a] - states[0][a] if states else 0.0
    return "bottom left" if moved > 0 else "bottom right"


def _turn_names(states: States) -> list[str]:
    return ["start", *(f"turn {i}" for i in range(1, len(states)))]


# ---- benchmarks


def radar(
    groups: Sequence[str],
    sets: Sequence[tuple[str, Callable[[str], float | None]]],
    world: World | None = None,
) -> dict[str, Any]:
    """Return one closed line per set over the groups; `world` is the test world they were measured in."""
    data: list[Trace] = []
    around = distinct([label(group, RADAR_LABEL) for group in groups])
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
    data += [
        {
            "type": "scatterpolar",
            "name": f"{label(score.label)} {score.epm_q:.0f}",
            "theta": [*around, around[0]],
            "r": [score.epm_q] * (len(around) + 1),
            "line": {"color": FAINT, "dash": "dot", "width": 1.5},
            "mode": "lines",
        }
        for score in reference_lines(world)
    ]
    return {"data": data, "layout": {"polar": {"radialaxis": {"rangemode": "tozero", "nticks": 5}}}}
