"""Figures: the colours that reports and the viewer share, and everything that needs matplotlib.

The palette is Okabe and Ito's, which colour-blind readers can tell apart; line styles and markers repeat the
distinction. An ending of a dialogue and a training method look the same everywhere. matplotlib is imported
only when something is drawn, and the same numbers give the same file.

Names of runs and scenarios come from files. A name that the fonts at hand cannot write is drawn as a number.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mapo.errors import InputError, install_hint
from mapo.store import write_atomic
from mapo.text import clip

# ---- colours and line styles

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DARK_COLOURS = ("#4aa8e0", "#f08a3c", "#2fc79b", "#e09cc2", "#f0b83c", "#8fd0f5")
"""The same hues for a dark background."""
INK, FAINT = "#111111", "#8a8a8a"


class Look(NamedTuple):
    """How one line of a figure is drawn, by matplotlib and by Plotly."""

    colour: str
    line: Any
    marker: str
    dash: str
    symbol: str


_LINES = (
    ("-", "o", "solid", "circle"),
    ("--", "s", "dash", "square"),
    ("-.", "^", "dashdot", "triangle-up"),
    (":", "D", "dot", "diamond"),
    ((0, (8, 2, 1.5, 2)), "v", "longdashdot", "triangle-down"),
    ((0, (8, 3)), "P", "longdash", "cross"),
)
LOOKS = tuple(Look(COLOURS[i % 6], *_LINES[(i + i // 6) % 6]) for i in range(18))
"""The first six differ in colour and line; after that, colours return with other lines."""
BEFORE, AFTER = LOOKS[1], LOOKS[0]
"""Dialogues before and after training."""
METHODS = dict(
    zip(
        (
            *("mapo", "turn", "batch", "grpo", "reinforce++", "reinforce++_turn"),
            *("kevin", "rloo", "rloo_turn", "turn_gae", "mt_grpo", "gigpo", "gdpo"),
        ),
        LOOKS,
        strict=False,
    )
)
ENDINGS = {
    "success": COLOURS[2],
    "timeout": COLOURS[0],
    "stagnation": COLOURS[4],
    "failure": COLOURS[1],
    "director": COLOURS[5],
    "length": COLOURS[3],
    "user": "#f0e442",
    "broken": "#777777",
    "unfinished": "#aaaaaa",
}
"""Colours of the endings of dialogues, in the order in which they are stacked."""


def look(i: int) -> Look:
    """Return the look of the i-th line of a figure."""
    return LOOKS[i % len(LOOKS)]


def looks_of(methods: Sequence[str]) -> list[Look]:
    """Return one look per line: that of its method if each line has a method of its own, else by position."""
    if len({*methods}) == len(methods) and {*methods} <= {*METHODS}:
        return [METHODS[method] for method in methods]
    return [look(i) for i in range(len(methods))]


def rgba(colour: str, alpha: float) -> str:
    """Return a "#rrggbb" colour as CSS with transparency."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},{alpha})"


# ---- panels and pictures


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `draw` puts numbers that are already known onto them."""

    title: str
    draw: Callable[[Any], None]
    left: float = 0.68
    """Inches for the labels beside the axes."""
    above: float = 0.1
    """Inches for a legend above them."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels with a caption. On a page the panels flow; in a file, called `name`, they form a grid."""

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 2
    small: bool = False
    key: Sequence[tuple[Look, str]] = ()
    """Look and meaning of the lines, for panels too small for a legend."""
    labels: tuple[str, str] = ("", "")
    """Shared labels of the x and y axes, for panels too small for labels."""


_SIZE, _SMALL = (3.7, 2.5), (2.3, 2.0)
_STYLE: Any = {
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
    "svg.hashsalt": "mapo",  # ids in an SVG are random otherwise
}


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def require_matplotlib() -> None:
    if not can_draw():
        raise InputError("figures need matplotlib", fix=install_hint("figures"))


@contextmanager
def style(svg_text: str = "path") -> Iterator[None]:
    """Apply our style while a figure is built and saved. `svg_text` is matplotlib's svg.fonttype."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "font.family": [*fonts()], "svg.fonttype": svg_text}):
        yield


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Any:
    """Return an empty figure of that size in inches, without a window or a global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def save(figure: Any, folder: Path, name: str, kinds: Sequence[str]) -> list[Path]:
    """Write NAME.KIND for each kind (png, pdf, svg). Call it within `style`."""
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    for path, kind in zip(paths, kinds, strict=True):
        write_atomic(path, _encoded(figure, kind))
    return paths


def save_picture(picture: Picture, folder: Path, kinds: Sequence[str] = ("png", "pdf", "svg")) -> list[Path]:
    """Write NAME.png, NAME.pdf and NAME.svg of a picture."""
    with style():
        return save(_whole(picture), folder, picture.name, kinds)


def _whole(picture: Picture) -> Any:
    """Return all panels of a picture in one figure, each with its title."""
    panels, columns = picture.panels, min(picture.columns, len(picture.panels))
    rows = -(-len(panels) // columns)
    width, height = _SMALL if picture.small else _SIZE
    figure = new_figure(width * columns, height * rows + 0.3 * bool(picture.key))
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number, (panel, axes) in enumerate(zip(panels, grid, strict=False), 1):
        try:
            panel.draw(axes)
        except Exception:  # noqa: BLE001 (a panel that fails must not cost the others)
            axes.clear()
            axes.text(0.5, 0.5, "cannot be drawn", ha="center", transform=axes.transAxes)
        title = drawable(panel.title, str(number), 26 if picture.small else 40)
        axes.set_title(title, pad=6 + 72 * max(0.0, panel.above - 0.1))
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    across, up = picture.labels
    if across:
        figure.supxlabel(across, fontsize=9)
        figure.supylabel(up, fontsize=9)
    if picture.key:
        add_key(figure, picture.key, "upper")
    return figure


def add_key(figure: Any, key: Sequence[tuple[Look, str]], where: str, columns: int = 0) -> None:
    """Add one legend for all axes, outside of them: where is "upper" or "lower"."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D(
            [],
            [],
            color=shown.colour,
            linestyle=shown.line,
            marker=shown.marker,
            markersize=4,
            label=legend_text(text, str(number)),
        )
        for number, (shown, text) in enumerate(key, 1)
    ]
    figure.legend(handles=lines, loc=f"outside {where} center", ncols=columns or len(lines), frameon=False)


def label_axes(axes: Any, xlabel: str, ylabel: str, *, whole: bool = False) -> None:
    """Label the axes; `whole` keeps the ticks of the x axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=whole, min_n_ticks=1))


def _encoded(figure: Any, kind: str) -> bytes:
    import matplotlib

    out = io.BytesIO()
    undated = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None}}
    if kind == "pdf":
        matplotlib.rcParams["pdf.fonttype"] = 3 if _holds_chinese(figure) else 42
    figure.savefig(out, format=kind, dpi=200, metadata=undated.get(kind))
    return out.getvalue()


def _holds_chinese(figure: Any) -> bool:
    """Return whether a figure needs a Chinese font. Most are OpenType with PostScript outlines, which
    matplotlib can embed in a PDF only as drawn glyphs (type 3)."""
    from matplotlib.text import Text

    return any(c > "\u2e7f" for text in figure.findobj(Text) for c in text.get_text())


# ---- a panel in an HTML page

PAGE_COLOURS = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(COLOURS)},
}
"""A page replaces these by its own colours, so that dark mode and print work."""


def panel_svg(panel: Panel, *, small: bool = False) -> str:
    """Return one panel as an <svg> element in the page's colours, its words as text. The page shows the
    title."""
    width, height = _SMALL if small else _SIZE
    left, below = (0.34, 0.26) if small else (panel.left, 0.46)
    with style("none"):
        # Fixed margins: computing them takes twice the time, and on a page labels may overflow.
        figure = new_figure(width, height, layout=None)
        axes = figure.add_axes(
            (left / width, below / height, 1 - (left + 0.1) / width, 1 - (below + panel.above) / height)
        )
        for part in (figure, axes):
            part.patch.set_visible(False)  # the page's background shows through
        panel.draw(axes)
        svg = _svg(figure)
    return _for_page(svg)


def _svg(figure: Any) -> str:
    return _encoded(figure, "svg").decode()


def _for_page(svg: str) -> str:
    """Drop prolog, metadata and ids that only editors use, and take the page's colours."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', body)
    body = f'<svg {view[0] if view else ""} role="img">{body[body.index(">") + 1 :]}'
    body = re.sub(r'<g id="[^"]+_[0-9]+">', "<g>", body)
    body = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: {PAGE_COLOURS.get(m[2], m[2])}", body)
    return re.sub(r"\s*\n\s*", "\n", body).strip()


# ---- text in figures

_CJK_FILES = re.compile(
    r"(NotoSansCJK|SourceHanSans|wqy-|DroidSansFallback).*(?<!Bold)\.(ttc|ttf|otf)$", re.I
)
_CJK = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Microsoft YaHei", "PingFang SC"),
    *("SimHei", "Hiragino Sans GB", "Arial Unicode MS"),
)


@lru_cache
def fonts() -> tuple[str, ...]:
    """Return DejaVu Sans, which comes with matplotlib, and a Chinese font if one is installed."""
    from matplotlib import font_manager

    known = font_manager.fontManager
    if not {font.name for font in known.ttflist} & {*_CJK}:  # matplotlib caches its list of fonts
        for path in font_manager.findSystemFonts():
            if _CJK_FILES.search(Path(path).name):
                known.addfont(path)
    there = {font.name for font in known.ttflist}
    return ("DejaVu Sans", *[name for name in _CJK if name in there][:1])


@lru_cache
def glyphs() -> frozenset[int]:
    """Return the code points that `fonts` can draw."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    found: set[int] = set()
    for name in fonts():
        found |= set(FT2Font(font_manager.findfont(name)).get_charmap())
    return frozenset(found)


def drawable(text: str, fallback: str, limit: int = 40) -> str:
    """Return `text`, cut if it is long, or `fallback` if the fonts lack one of its characters."""
    wide = any(c > "\u2e7f" for c in text[:limit])  # Chinese characters take the room of two
    shown = " ".join(clip(text, limit // 2 if wide else limit).split())
    return shown if shown and all(ord(c) in glyphs() for c in shown) else fallback


def legend_text(text: str, fallback: str) -> str:
    """Return `drawable` text for a legend, which leaves out labels that begin with an underscore."""
    shown = drawable(text, fallback)
    return f" {shown}" if shown.startswith("_") else shown
