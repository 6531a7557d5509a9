"""Plots: each function returns a function that draws the given numbers onto matplotlib axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from mapo.report.document.numbers import Point
from mapo.scoring.reference import reference_lines
from mapo.scripted.world import World
from mapo.show.figures import (
    ENDINGS,
    FAINT,
    INK,
    LOOKS,
    Look,
    drawable,
    label_axes,
    legend_text,
    look,
)
from mapo.types import ending_label

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo", "---", "**")
_LEGEND_COLUMNS = 3
"""Columns of the legend of stacked shares."""

Draw = Callable[[Any], None]
References = Sequence[tuple[str, float]]
"""Names and values of reference scores."""


def curves(
    lines: Mapping[str, Sequence[Point]],
    ylabel: str,
    xlabel: str = "step",
    *,
    points: Mapping[str, Sequence[Point]] | None = None,
    limits: tuple[float, float] | None = None,
    looks: Mapping[str, Look] | None = None,
    references: References = (),
) -> Draw:
    """Draw lines with interval bands, and `points` as dots in the same colours. `looks` fixes the look of
    some lines; the others get one by position."""

    def draw(axes: Any) -> None:
        named = len({*lines, *(points or {})}) > 1
        for i, (name, line) in enumerate(lines.items()):
            style = (looks or {}).get(name, look(i))
            axes.plot(
                [p.x for p in line],
                [p.y for p in line],
                color=style.colour,
                linestyle=style.line,
                marker=style.marker if len(line) < 2 else "",
                markersize=4,
                label=legend_text(name, f"{i + 1}"),
            )
            known = [(p.x, p.low, p.high) for p in line if p.low is not None]
            if len(known) > 1:
                at, low, high = zip(*known, strict=True)
                axes.fill_between(at, low, high, color=style.colour, alpha=0.18, linewidth=0)
        for k, (name, dots) in enumerate((points or {}).items()):
            i = list(lines).index(name) if name in lines else len(lines) + k
            style = (looks or {}).get(name, look(i))
            axes.plot(
                [p.x for p in dots],
                [p.y for p in dots],
                style.marker,
                color=style.colour,
                markersize=4.5,
                label=None if name in lines else legend_text(name, f"{i + 1}"),
            )
        label_axes(axes, xlabel, ylabel, whole=xlabel in ("step", "turn"))
        if limits:
            axes.set_ylim(*limits)
        _draw_references(axes, references)
        if named:
            axes.legend()

    return draw


def stacked(shares: Mapping[str, Sequence[Point]], ylabel: str) -> Draw:
    """Draw shares of endings as stacked bars, one per step."""

    def draw(axes: Any) -> None:
        xs = sorted({p.x for line in shares.values() for p in line})
        base = dict.fromkeys(xs, 0.0)
        gap = min((b - a for a, b in pairwise(xs)), default=1.0)
        for name, hatch in zip(ENDINGS, _HATCHES, strict=True):
            line = shares.get(name, ())
            if not line:
                continue
            axes.bar(
                [p.x for p in line],
                [p.y for p in line],
                bottom=[base[p.x] for p in line],
                width=0.85 * gap,
                color=ENDINGS[name],
                label=ending_label(name),
                hatch=hatch,
                edgecolor=INK,
                linewidth=0,
                alpha=0.85,
            )
            for p in line:
                base[p.x] += p.y
        label_axes(axes, "step", ylabel, whole=True)
        axes.set_ylim(0, 1)
        axes.grid(visible=False)
        tight = {"columnspacing": 1, "handlelength": 1.4}
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=_LEGEND_COLUMNS, **tight)

    return draw


def legend_height(names: int) -> float:
    """Return the height in inches of a legend with this many stacked shares."""
    return 0.16 + 0.19 * -(-names // _LEGEND_COLUMNS)


def distribution(table: Any, ylabel: str, limits: tuple[float, float], colour: str = LOOKS[0].colour) -> Draw:
    """Draw quantiles by turn (`quantiles_by_turn`): median, 25-75 % and 5-95 % bands."""

    def draw(axes: Any) -> None:
        turns = range(1, len(table) + 1)
        if len(table):
            _, low, q1, middle, q3, high = table.T
            axes.fill_between(turns, low, high, color=colour, alpha=0.15, linewidth=0, label="5–95 %")
            axes.fill_between(turns, q1, q3, color=colour, alpha=0.3, linewidth=0, label="25–75 %")
            axes.plot(turns, middle, color=colour, marker="o", markersize=3.5, label="median")
            axes.legend(ncols=3, loc="upper center", columnspacing=1, handlelength=1.4)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        label_axes(axes, "turn", ylabel, whole=True)
        low_end, high_end = limits
        margin = 0.06 * ((high_end - low_end) or 1.0)
        axes.set_ylim(low_end - margin, high_end + 4 * margin)

    return draw


class ScenarioPaths(NamedTuple):
    """Projected trajectories of one scenario, (along, away) each, drawn in the same look."""

    look: Look
    trajectories: Sequence[tuple[Sequence[float], Sequence[float]]]


def paths(sides: Sequence[ScenarioPaths], limits: tuple[float, float, float]) -> Draw:
    """Draw the trajectories of one scenario; the goal is the cross at the origin, the start the dot at -1."""

    def draw(axes: Any) -> None:
        axes.axhline(0, color=FAINT, linewidth=0.7)
        for style, trajectories in sides:
            for along, away in trajectories:
                axes.plot(along, away, color=style.colour, linestyle=style.line, linewidth=1.1, alpha=0.85)
                axes.plot(along[-1:], away[-1:], style.marker, color=style.colour, markersize=3.5)
        axes.plot([-1], [0], ".", color=FAINT, markersize=6)
        axes.plot([0], [0], "+", color=INK, markersize=9, markeredgewidth=1.4)
        left, right, top = limits
        axes.set_xlim(left, right)
        axes.set_ylim(-0.06 * top, top)
        axes.tick_params(labelsize=8)
        axes.locator_params(nbins=4)

    return draw


def references_of(world: World | None) -> References:
    """Return the reference scores of a test world, and none for other worlds."""
    return [(f"{score.label} {score.epm_q:.0f}", score.epm_q) for score in reference_lines(world)]


def _draw_references(axes: Any, references: References, *, upright: bool = False) -> None:
    """Draw reference scores as dotted lines with their names: across the axes, or upright."""
    for name, value in references:
        line = axes.axvline if upright else axes.axhline
        line(value, color=FAINT, linestyle=":", linewidth=1.0)
        if upright:
            place = {
                "xy": (value, 0.02),
                "xycoords": ("data", "axes fraction"),
                "rotation": 90,
                "ha": "left",
            }
        else:
            place = {"xy": (0.99, value), "xycoords": ("axes fraction", "data"), "ha": "right"}
        offset = (1, 0) if upright else (0, 2)
        axes.annotate(
            name, xytext=offset, textcoords="offset points", va="bottom", fontsize=7, color=FAINT, **place
        )


def bars(
    values: Sequence[tuple[str, Sequence[Point | None]]],
    series_names: Sequence[str],
    xlabel: str,
    references: References = (),
) -> Draw:
    """Draw scores with intervals, one row per name and one dot per series."""

    def draw(axes: Any) -> None:
        for row, (_, found) in enumerate(values):
            for i, point in enumerate(found):
                if point is None:
                    continue
                y = row + (i - (len(found) - 1) / 2) * 0.7 / max(1, len(found))
                low, high = point.low, point.high
                error = (
                    None
                    if low is None or high is None
                    else [[max(0.0, point.y - low)], [max(0.0, high - point.y)]]
                )
                axes.errorbar(
                    [point.y],
                    [y],
                    xerr=error,
                    fmt=look(i).marker,
                    color=look(i).colour,
                    capsize=2.5,
                    markersize=5,
                    label=legend_text(series_names[i], f"{i + 1}") if row == _first(values, i) else None,
                )
        axes.set_yticks(
            range(len(values)), [drawable(name, f"{i + 1}") for i, (name, _) in enumerate(values)]
        )
        axes.set_ylim(len(values) - 0.5, -0.5)
        _draw_references(axes, references, upright=True)
        axes.set_xlabel(xlabel)
        if len(series_names) > 1:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return draw


def label_width(names: Sequence[str]) -> float:
    """Return the width in inches needed for these labels."""
    return min(2.0, 0.35 + 0.068 * max((min(len(name), 40) for name in names), default=0))


def _first(values: Sequence[tuple[str, Sequence[Point | None]]], i: int) -> int:
    return next(row for row, (_, found) in enumerate(values) if found[i] is not None)
