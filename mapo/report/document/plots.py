"""Numbers onto axes. What is plotted is what it was given; nothing is computed here.

Colours are Okabe and Ito's, told apart by colour-blind people; line styles and markers repeat the message.
Names of runs and scenarios come from files: a name the fonts at hand cannot write is drawn as its number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mapo.report.data.numbers import Point
from mapo.text import clip

INK, FAINT = "#111111", "#8a8a8a"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
BEFORE, AFTER = COLOURS[1], COLOURS[0]
_CJK_FILES = re.compile(
    r"(NotoSansCJK|SourceHanSans|wqy-|DroidSansFallback).*(?<!Bold)\.(ttc|ttf|otf)$", re.I
)
_CJK = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Microsoft YaHei", "PingFang SC"),
    *("SimHei", "Hiragino Sans GB", "Arial Unicode MS"),
)
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
) -> Draw:
    """Lines with bands for their intervals; `points` are dots beside them, of the same colours."""

    def draw(axes: Any) -> None:
        named = len({*lines, *(points or {})}) > 1
        for i, (name, line) in enumerate(lines.items()):
            colour = COLOURS[i % len(COLOURS)]
            x, y = [p.x for p in line], [p.y for p in line]
            marker = MARKERS[i % len(MARKERS)] if len(line) < 2 else ""
            axes.plot(
                x,
                y,
                color=colour,
                linestyle=STYLES[i % len(STYLES)],
                marker=marker,
                markersize=4,
                label=_label(name, f"{i + 1}"),
            )
            known = [(p.x, p.low, p.high) for p in line if p.low is not None]
            if len(known) > 1:
                at, low, high = zip(*known, strict=True)
                axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        for k, (name, dots) in enumerate((points or {}).items()):
            i = list(lines).index(name) if name in lines else len(lines) + k
            axes.plot(
                [p.x for p in dots],
                [p.y for p in dots],
                MARKERS[i % len(MARKERS)],
                color=COLOURS[i % len(COLOURS)],
                markersize=4.5,
                label=None if name in lines else _label(name, f"{i + 1}"),
            )
        _frame(axes, xlabel, ylabel, whole=xlabel in ("step", "turn"))
        if limits:
            axes.set_ylim(*limits)
        if named:
            axes.legend()

    return draw


def stacked(shares: Mapping[str, Sequence[Point]], ylabel: str) -> Draw:
    """Shares that add up, a bar a step."""

    def draw(axes: Any) -> None:
        xs = sorted({p.x for line in shares.values() for p in line})
        base = dict.fromkeys(xs, 0.0)
        gap = min((b - a for a, b in pairwise(xs)), default=1.0)
        for i, (name, line) in enumerate(shares.items()):
            x, y = [p.x for p in line], [p.y for p in line]
            hatch = ("", "///", "...", "\\\\\\", "xxx", "+++")[i % 6]
            axes.bar(
                x,
                y,
                bottom=[base[p.x] for p in line],
                width=0.85 * gap,
                color=COLOURS[i % len(COLOURS)],
                label=_label(name, f"{i + 1}"),
                hatch=hatch,
                edgecolor=INK,
                linewidth=0,
                alpha=0.85,
            )
            for p in line:
                base[p.x] += p.y
        _frame(axes, "step", ylabel, whole=True)
        axes.set_ylim(0, 1)
        axes.grid(visible=False)
        tight = {"columnspacing": 1, "handlelength": 1.4}
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=_ABREAST, **tight)

    return draw


def room_above(names: int) -> float:
    """Inches above the axes for the legend of so many stacked shares."""
    return 0.16 + 0.19 * -(-names // _ABREAST)


def distribution(table: Any, ylabel: str, limits: tuple[float, float], colour: str = COLOURS[0]) -> Draw:
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
        _frame(axes, "turn", ylabel, whole=True)
        low_end, high_end = limits
        room = 0.06 * ((high_end - low_end) or 1.0)
        axes.set_ylim(low_end - room, high_end + 4 * room)

    return draw


class Ways(NamedTuple):
    """Dialogues of one scenario: (along, aside) each, drawn in one colour."""

    colour: str
    ways: Sequence[tuple[Sequence[float], Sequence[float]]]


def paths(sides: Sequence[Ways], limits: tuple[float, float, float]) -> Draw:
    """One scenario's dialogues in the state space; the goal is the cross at the origin."""

    def draw(axes: Any) -> None:
        axes.axhline(0, color=FAINT, linewidth=0.7)
        for colour, ways in sides:
            at = COLOURS.index(colour)
            for along, aside in ways:
                axes.plot(along, aside, color=colour, linestyle=STYLES[at], linewidth=1.1, alpha=0.85)
                axes.plot(along[-1:], aside[-1:], MARKERS[at], color=colour, markersize=3.5)
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
                    fmt=MARKERS[i % 6],
                    color=COLOURS[i % 6],
                    capsize=2.5,
                    markersize=5,
                    label=_label(series_names[i], f"{i + 1}") if row == _first(values, i) else None,
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


def _frame(axes: Any, xlabel: str, ylabel: str, *, whole: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=whole, min_n_ticks=1))


# ---- words in figures


@lru_cache
def fonts() -> tuple[str, ...]:
    """DejaVu, which comes with matplotlib, and a Chinese font where one is installed."""
    from matplotlib import font_manager

    known = font_manager.fontManager
    if not {font.name for font in known.ttflist} & {*_CJK}:  # matplotlib may have listed fonts long ago
        for path in font_manager.findSystemFonts():
            if _CJK_FILES.search(Path(path).name):
                known.addfont(path)
    there = {font.name for font in known.ttflist}
    return ("DejaVu Sans", *[name for name in _CJK if name in there][:1])


@lru_cache
def glyphs() -> frozenset[int]:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    found: set[int] = set()
    for name in fonts():
        found |= set(FT2Font(font_manager.findfont(name)).get_charmap())
    return frozenset(found)


def drawable(text: str, instead: str, most: int = 40) -> str:
    """`text`, cut if it is long, if the fonts at hand have all its signs; a stand-in rather than boxes."""
    wide = any(c > "\u2e7f" for c in text[:most])  # Chinese signs take the room of two
    told = " ".join(clip(text, most // 2 if wide else most).split())
    return told if told and all(ord(c) in glyphs() for c in told) else instead


def _label(text: str, instead: str) -> str:
    """For a legend, which would leave out what begins with an underscore."""
    told = drawable(text, instead)
    return f" {told}" if told.startswith("_") else told
