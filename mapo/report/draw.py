"""Numbers onto axes, and axes into files: matplotlib, imported only when something is drawn.

Colours are Okabe and Ito's, told apart by colour-blind people; line styles and markers repeat the message.
On the page a panel is an SVG of its own whose colours are the page's (so dark mode and print work) and whose
words are text. In files a picture is one figure: PNG, PDF and SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mapo.errors import InputError
from mapo.report.blocks import Panel, Picture, clean
from mapo.report.numbers import Point
from mapo.store import write_atomic

INK, FAINT = "#111111", "#8a8a8a"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
BEFORE, AFTER = COLOURS[1], COLOURS[0]
ON_PAGE = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(COLOURS)},
}
_CJK = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Microsoft YaHei", "PingFang SC"),
    *("SimHei", "Hiragino Sans GB", "Arial Unicode MS"),
)
_RULES = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "text.parse_math", "legend.frameon"), False),
    **dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize"), 9),
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "mapo",  # the same numbers give the same file
    "pdf.fonttype": 42,
}
_SIZE, _SMALL = (3.7, 2.5), (2.3, 2.0)


def can_draw() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


# ---- a picture on a page, and in files


def inline(panel: Panel, *, small: bool = False) -> str:
    """One panel as an <svg> element for a page; its title stands beside it, as text."""
    import matplotlib
    from matplotlib.figure import Figure

    wide, high = _SMALL if small else _SIZE
    left, below = (0.34, 0.26) if small else (panel.left, 0.46)
    rules = _rules("none")
    with matplotlib.rc_context(rules):
        # Margins are given, not found out: that takes twice the time, and a page lets ink flow over.
        figure = Figure(figsize=(wide, high))
        axes = figure.add_axes(
            (left / wide, below / high, 1 - (left + 0.1) / wide, 1 - (below + panel.above) / high)
        )
        _plain(figure, [axes])
        panel.draw(axes)
        svg = _saved(figure, "svg").decode()
    return _for_page(svg)


def _for_page(svg: str) -> str:
    """Without prolog, metadata and ids that only editors use; in the page's colours."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', body)
    body = f'<svg {view[0] if view else ""} role="img">{body[body.index(">") + 1 :]}'
    body = re.sub(r'<g id="[a-z0-9]+_[0-9]+">', "<g>", body)
    body = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: {ON_PAGE.get(m[2], m[2])}", body)
    return re.sub(r"\s*\n\s*", "\n", body).strip()


def save(picture: Picture, folder: Path, kinds: Sequence[str] = ("png", "pdf", "svg")) -> list[Path]:
    """NAME.png, NAME.pdf and NAME.svg of a picture."""
    need_matplotlib()
    import matplotlib

    paths = []
    with matplotlib.rc_context(_rules("path")):
        figure = whole(picture)
        for kind in kinds:
            paths.append(folder / f"{picture.name}.{kind}")
            write_atomic(paths[-1], _saved(figure, kind))
    return paths


def need_matplotlib() -> None:
    if not can_draw():
        raise InputError(
            "figures need matplotlib", fix="pip install matplotlib, or pip install 'mapo[train]'"
        )


def whole(picture: Picture) -> Any:
    """All panels of a picture in one figure, each with its title."""
    from matplotlib.figure import Figure

    panels, columns = picture.panels, min(picture.columns, len(picture.panels))
    rows = -(-len(panels) // columns)
    wide, high = _SMALL if picture.small else _SIZE
    figure = Figure(figsize=(wide * columns, high * rows + 0.3 * bool(picture.key)), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, (panel, axes) in enumerate(zip(panels, grid, strict=False), 1):
        panel.draw(axes)
        axes.set_title(drawable(panel.title, str(number)), pad=6 + 72 * max(0.0, panel.above - 0.1))
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    across, up = picture.labels
    if across:
        figure.supxlabel(across, fontsize=9)
        figure.supylabel(up, fontsize=9)
    if picture.key:
        _key(figure, picture.key)
    return figure


def _plain(figure: Any, grid: Sequence[Any]) -> None:
    """No ground of its own: the page's shows through."""
    for thing in (figure, *grid):
        thing.patch.set_visible(False)


def _rules(words: str) -> Any:
    return {**_RULES, "font.family": [*_fonts()], "svg.fonttype": words}


def _key(figure: Any, key: Sequence[tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, label=_label(text, "")) for colour, text in key]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)


def _saved(figure: Any, kind: str) -> bytes:
    out = io.BytesIO()
    dates = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None}}
    figure.savefig(out, format=kind, dpi=200, metadata=dates.get(kind))
    return out.getvalue()


# ---- words in figures


@lru_cache
def _fonts() -> tuple[str, ...]:
    """DejaVu, which comes with matplotlib, and a Chinese font where one is installed."""
    from matplotlib import font_manager

    there = {font.name for font in font_manager.fontManager.ttflist}
    return ("DejaVu Sans", *[name for name in _CJK if name in there][:1])


@lru_cache
def _glyphs() -> frozenset[int]:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    found: set[int] = set()
    for name in _fonts():
        found |= set(FT2Font(font_manager.findfont(name)).get_charmap())
    return frozenset(found)


def drawable(text: str, instead: str) -> str:
    """`text` if the fonts at hand have all its signs and it is short; a stand-in rather than boxes."""
    told = " ".join(clean(text, 40).split())
    return told if told and all(ord(c) in _glyphs() for c in told) else instead


def _label(text: str, instead: str) -> str:
    """For a legend, which would leave out what begins with an underscore."""
    told = drawable(text, instead)
    return f" {told}" if told.startswith("_") else told


# ---- what can be drawn

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
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)

    return draw


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
