"""Render a report as one HTML file without scripts or external resources; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import jinja2
from markupsafe import Markup, escape

from mapo.report.document.blocks import MAX_LIST_ITEMS, MAX_TURN_TEXT, Report, format_number
from mapo.runs.contents import number
from mapo.show.figures import COLOURS, DARK_COLOURS, PAGE_COLOURS, Panel, Picture, can_draw, panel_svg
from mapo.show.tables import plain_rows
from mapo.text import clip
from mapo.types import Levels

CLIP = 160
"""Characters of a text that are shown, unless the template says otherwise."""
AXES = 12
"""Axes of a judgement that are shown."""


def html_page(report: Report) -> str:
    """Return the whole file."""
    drawn = can_draw()
    undrawn = not drawn and any(isinstance(block, Picture) for block in report.blocks)
    return _templates().get_template("page.html").render(report=report, can_draw=drawn, undrawn=undrawn)


@cache
def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("mapo.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {"clip": _clip, "kind": lambda block: type(block).__name__, "sign": _sign}
    env.globals |= {
        "MAX_LIST_ITEMS": MAX_LIST_ITEMS,
        "MAX_TURN_TEXT": MAX_TURN_TEXT,
        "COLOURS": COLOURS,
        "DARK_COLOURS": DARK_COLOURS,
    }
    env.globals |= {
        "PAGE_COLOURS": PAGE_COLOURS,
        "plain_rows": plain_rows,
        "number": number,
        "format_number": format_number,
    }
    env.globals |= {"svg": _svg, "marks": _marks}
    return env


def _clip(text: object, limit: int = CLIP) -> str:
    return clip(text, limit)


def _svg(panel: Panel, small: bool, prefix: str) -> Markup:
    """Draw one panel; if that fails, return a note instead."""
    try:
        svg = panel_svg(panel, small=small)
    except Exception as error:  # noqa: BLE001 (untrusted numbers)
        text = clip(f"{type(error).__name__}: {error}", CLIP)
        return Markup('<p class="note">cannot be drawn ({})</p>').format(text)
    for lead in ('id="', 'href="#', "url(#"):  # ids must be unique on the page
        svg = svg.replace(lead, f"{lead}{prefix}")
    label = escape(clip(panel.title, CLIP))
    return Markup(svg.replace('role="img"', f'role="img" aria-label="{label}"', 1))  # noqa: S704 (from matplotlib)


def _marks(levels: Levels | None) -> Iterator[tuple[str, str, str]]:
    """Yield axis, levels other than zero, and the sign of their sum."""
    for key, axis in list((levels or {}).items())[:AXES]:
        up, down = axis.progress.level, axis.regression.level
        yield key, " ".join(f"{level:+d}" for level in (up, down) if level) or "0", _sign(up + down)


def _sign(value: float) -> str:
    """Return the CSS class of a number; what rounds to zero is flat."""
    return "up" if value > 0.005 else "down" if value < -0.005 else "flat"
