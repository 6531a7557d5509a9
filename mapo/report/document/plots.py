"""The plots of a report: each function returns what draws given numbers onto a pair of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from mapo.report.document.numbers import Point
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

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo", "---")
_ABREAST = 3
"""Names in a row of the legend of stacked shares."""

Draw = Callable[[Any], None]


def curves(
    lines: Mapping[str, Sequence[Point]],
    ylabel: str,
    xlabel: str = "step",
    *,
    points: Mapping[str, Sequence[Point]] | None = None,
    limits: tuple[float, float] | None = None,
    looks: Mapping[str, Look] | None = None,
) -> Draw:
    """Lines with bands for their intervals; `points` are dots beside them, in the same colours. `looks` are
    those of lines with a fixed look; the others get theirs by position."""

    def draw(axes: Any) -> None:
        named = len({*lines, *(points or {})}) > 1
        for i, (name, line) in enumerate(lines.items()):
            own = (looks or {}).get(name, look(i))
            axes.plot(
                [p.x for p in line],
                [p.y for p in line],
                color=own.colour,
                linestyle=own.line,
                marker=own.marker if len(line) < 2 else "",
                markersize=4,
                label=legend_text(name, f"{i + 1}"),
            )
            known = [(p.x, p.low, p.high) for p in line if p.low is not None]
            if len(known) > 1:
                at, low, high = zip(*known, strict=True)
                axes.fill_between(at, low, high, color=own.colour, alpha=0.18, linewidth=0)
        for k, (name, dots) in enumerate((points or {}).items()):
            i = list(lines).index(name) if name in lines else len(lines) + k
            own = (looks or {}).get(name, look(i))
            axes.plot(
                [p.x for p in dots],
                [p.y for p in dots],
                own.marker,
                color=own.colour,
                markersize=4.5,
                label=None if name in lines else legend_text(name, f"{i + 1}"),
            )
        label_axes(axes, xlabel, ylabel, whole=xlabel in ("step", "turn"))
        if limits:
            axes.set_ylim(*limits)
        if named:
            axes.legend()

    return draw


def stacked(shares: Mapping[str, Sequence[Point]], ylabel: str) -> Draw:
    """Shares of endings that add up to one, a bar per step."""

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
                label=name,
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
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=_ABREAST, **tight)

    return draw


def room_above(names: int) -> float:
    """Inches above the axes for the legend of so many stacked shares."""
    return 0.16 + 0.19 * -(-names // _ABREAST)


def distribution(table: Any, ylabel: str, limits: tuple[float, float], colour: str = LOOKS[0].colour) -> Draw:
    """Quantiles by turn (`quantiles_by_turn`): the median, the middle half, and nine tenths."""

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
        room = 0.06 * ((high_end - low_end) or 1.0)
        axes.set_ylim(low_end - room, high_end + 4 * room)

    return draw


class Ways(NamedTuple):
    """Dialogues of one scenario: (along, aside) each, drawn alike."""

    look: Look
    ways: Sequence[tuple[Sequence[float], Sequence[float]]]


def paths(sides: Sequence[Ways], limits: tuple[float, float, float]) -> Draw:
    """One scenario's dialogues in the state space; the goal is the cross at the origin."""

    def draw(axes: Any) -> None:
        axes.axhline(0, color=FAINT, linewidth=0.7)
        for own, ways in sides:
            for along, aside in ways:
                axes.plot(along, aside, color=own.colour, linestyle=own.line, linewidth=1.1, alpha=0.85)
                axes.plot(along[-1:], aside[-1:], own.marker, color=own.colour, markersize=3.5)
        axes.plot([-1], [0], ".", color=FAINT, markersize=6)
        axes.plot([0], [0], "+", color=INK, markersize=9, markeredgewidth=1.4)
        left, right, top = limits
        axes.set_xlim(left, right)
        axes.set_ylim(-0.06 * top, top)
        axes.tick_params(labelsize=8)
        axes.locator_params(nbins=4)

    return draw


def bars(
    values: Sequence[tuple[str, Sequence[Point | None]]], series_names: Sequence[str], xlabel: str
) -> Draw:
    """Groups of dots with intervals, one row a name: scores of several models side by side."""

    def draw(axes: Any) -> None:
        for row, (_, found) in enumerate(values):
            for i, point in enumerate(found):
                if point is None:
                    continue
                y = row + (i - (len(found) - 1) / 2) * 0.7 / max(1, len(found))
                low, high = point.low, point.high
                reach = (
                    None
                    if low is None or high is None
                    else [[max(0.0, point.y - low)], [max(0.0, high - point.y)]]
                )
                axes.errorbar(
                    [point.y],
                    [y],
                    xerr=reach,
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
        axes.set_xlabel(xlabel)
        if len(series_names) > 1:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return draw


def room_for(names: Sequence[str]) -> float:
    """Inches beside the axes for such names."""
    return min(2.0, 0.35 + 0.068 * max((min(len(name), 40) for name in names), default=0))


def _first(values: Sequence[tuple[str, Sequence[Point | None]]], i: int) -> int:
    return next(row for row, (_, found) in enumerate(values) if found[i] is not None)
