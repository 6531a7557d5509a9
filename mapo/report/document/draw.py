"""Pictures into pages and files: matplotlib, imported only when something is drawn.

On the page a panel is an SVG of its own whose colours are the page's (so dark mode and print work) and whose
words are text. In files a picture is one figure: PNG, PDF and SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.report.document.blocks import Panel, Picture
from mapo.report.document.plots import COLOURS, FAINT, INK, MARKERS, STYLES, drawable, fonts
from mapo.store import write_atomic

ON_PAGE = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(COLOURS)},
}
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
        svg = _svg(figure)
    return _for_page(svg)


def _svg(figure: Any) -> str:
    return _saved(figure, "svg").decode()


def _for_page(svg: str) -> str:
    """Without prolog, metadata and ids that only editors use; in the page's colours."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', body)
    body = f'<svg {view[0] if view else ""} role="img">{body[body.index(">") + 1 :]}'
    body = re.sub(r'<g id="[^"]+_[0-9]+">', "<g>", body)
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
        try:
            panel.draw(axes)
        except Exception:  # noqa: BLE001 (one panel costs no other)
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
        _key(figure, picture.key)
    return figure


def _plain(figure: Any, grid: Sequence[Any]) -> None:
    """No ground of its own: the page's shows through."""
    for thing in (figure, *grid):
        thing.patch.set_visible(False)


def _rules(words: str) -> Any:
    return {**_RULES, "font.family": [*fonts()], "svg.fonttype": words}


def _key(figure: Any, key: Sequence[tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    lines = []
    for number, (colour, text) in enumerate(key, 1):
        at = COLOURS.index(colour)
        shape = {"linestyle": STYLES[at], "marker": MARKERS[at], "markersize": 4}
        lines.append(Line2D([], [], color=colour, label=drawable(text, str(number)), **shape))
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines), frameon=False)


def _saved(figure: Any, kind: str) -> bytes:
    """Within the rules of `_rules`, which end with it."""
    import matplotlib

    out = io.BytesIO()
    dates = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None}}
    if kind == "pdf":
        matplotlib.rcParams["pdf.fonttype"] = 3 if _holds_chinese(figure) else 42
    figure.savefig(out, format=kind, dpi=200, metadata=dates.get(kind))
    return out.getvalue()


def _holds_chinese(figure: Any) -> bool:
    """Chinese fonts are mostly OpenType with PostScript outlines, which a PDF takes as drawn glyphs only."""
    from matplotlib.text import Text

    return any(c > "\u2e7f" for text in figure.findobj(Text) for c in text.get_text())
