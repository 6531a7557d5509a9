"""Blocks -> one HTML file: no script, nothing fetched, everything others wrote escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files

from mapo.report.document.blocks import (
    LISTED,
    SPEECH,
    Block,
    Heading,
    Lines,
    Report,
    Side,
    Talk,
    Tile,
    Tiles,
    Words,
    told,
)
from mapo.runs.contents import number
from mapo.show.figures import PAGE_COLOURS, Panel, Picture, can_draw, panel_svg
from mapo.show.tables import Table, plain_rows
from mapo.text import clip
from mapo.types import Levels, Turn


def html_page(report: Report) -> str:
    """The whole file."""
    style = files("mapo.report.document").joinpath("page.css").read_text(encoding="utf-8")
    drawn = can_draw()
    body = "".join(_block(block, drawn) for block in report.blocks)
    caution = f"<p class=note>{text(report.caution, 1000)}</p>" if report.caution else ""
    if not drawn and any(isinstance(b, Picture) for b in report.blocks):
        body = "<p class=note>Figures are left out: they need matplotlib (pip install matplotlib).</p>" + body
    return (
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
        "<meta name=viewport content='width=device-width, initial-scale=1'>\n"
        "<meta name=color-scheme content='light dark'>\n<meta name=referrer content=no-referrer>\n"
        f"<title>{text(report.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{text(report.title)}</h1><p class=lead>{text(report.lead, 600)}</p>{caution}</header>\n"
        f"{body}</main>\n</body>\n</html>\n"
    )


def _policy() -> str:
    """Nothing may run and nothing may be fetched; styles stand in the file, matplotlib's in its elements."""
    return "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def text(said: object, most: int = 160) -> str:
    return html.escape(clip(said, most), quote=True)


def _block(block: Block, drawn: bool) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{text(block.text)}</h{block.level}>\n"
        case Words():
            return f"<p>{text(block.text, 2000)}</p>\n"
        case Tiles():
            return f"<div class=tiles>{''.join(map(_tile, block.tiles))}</div>\n"
        case Table():
            return _table(block)
        case Lines():
            return _lines(block.lines)
        case Picture():
            return _picture(block) if drawn else ""
        case Talk():
            return _talk(block)


def _tile(tile: Tile) -> str:
    return (
        f"<div class=tile><div class=label>{text(tile.label)}</div><div class=value>{text(tile.value)}</div>"
        f"<div class=detail>{text(tile.detail)}</div></div>"
    )


def _table(table: Table) -> str:
    head = "".join(
        f"<th scope=col{' class=name' if i < table.left else ''}>{text(cell)}</th>"
        for i, cell in enumerate(table.columns)
    )
    rows = ""
    for row in plain_rows(table):
        cells = "".join(
            f"<td{' class=name' if i < table.left else ''}>{text(cell, 300)}</td>"
            for i, cell in enumerate(row)
        )
        rows += f"<tr>{cells}</tr>\n"
    shown = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"
    if table.folded:
        return f"<details><summary>{text(table.title)}</summary><div class=wide>{shown}</div></details>\n"
    title = f"<p class=caption>{text(table.title)}</p>" if table.title else ""
    note = f"<p class=caption>{text(table.note, 600)}</p>" if table.note else ""
    return f"{title}<div class=wide>{shown}</div>{note}\n"


def _lines(lines: Sequence[str]) -> str:
    rows = "".join(f"<li>{text(line, 400)}</li>" for line in lines[:LISTED])
    if len(lines) > LISTED:
        rows += f"<li>… and {len(lines) - LISTED} more</li>"
    return f"<ul>{rows}</ul>\n"


# ---- pictures


def _picture(picture: Picture) -> str:
    panels = "".join(
        f"<div class=panel><div class=title>{text(panel.title, 48 if picture.small else 80)}</div>"
        f"{_drawn(panel, picture.small, f'{picture.name}_{i}_')}</div>"
        for i, panel in enumerate(picture.panels)
    )
    key = "".join(
        f"<span class=key><i style='background:{PAGE_COLOURS[look.colour]}'></i>{text(meaning)}</span>"
        for look, meaning in picture.key
    )
    return (
        f"<figure id={picture.name}>{f'<div>{key}</div>' if key else ''}"
        f"<div class='panels{' small' if picture.small else ''}'>{panels}</div>"
        f"<figcaption>{text(picture.caption, 1000)}</figcaption></figure>\n"
    )


def _drawn(panel: Panel, small: bool, mark: str) -> str:
    """One panel; one that cannot be drawn says so and costs no other."""
    try:
        return _named(panel_svg(panel, small=small), panel.title, mark)
    except Exception as error:  # noqa: BLE001 (numbers are anybody's, and the library has many ways to fail)
        return f"<p class=note>cannot be drawn ({text(f'{type(error).__name__}: {error}')})</p>"


def _named(svg: str, title: str, mark: str) -> str:
    """The picture's name for those who do not see it, and ids that no other picture of the page has."""
    for lead in ('id="', 'href="#', "url(#"):
        svg = svg.replace(lead, f"{lead}{mark}")
    return svg.replace('role="img"', f'role="img" aria-label="{text(title)}"', 1)


# ---- two dialogues


def _talk(talk: Talk) -> str:
    rows = ""
    for i in range(max(len(talk.left.dialogue.turns), len(talk.right.dialogue.turns))):
        rows += f"<div class=pair>{_turn(talk.left, i)}{_turn(talk.right, i)}</div>\n"
    heads = "".join(f"<h3>{text(side.title)}</h3>" for side in (talk.left, talk.right))
    return f"<div class=talk><div class='pair heads'>{heads}</div>\n{rows}</div>\n"


def _turn(side: Side, i: int) -> str:
    if i >= len(side.dialogue.turns):
        return "<div class='turn none'></div>"
    turn = side.dialogue.turns[i]
    return (
        f"<div class=turn><div class=who>{text(side.title.partition(':')[0])}, turn {i + 1}</div>"
        f"<p class=user dir=auto>{text(turn.user, SPEECH)}</p>"
        f"<p class=reply dir=auto>{text(turn.reply.text, SPEECH)}</p>"
        f"<div class=marks>{_levels(turn.levels)}{_reward(turn)}{_credit(side.credit[i])}</div></div>"
    )


def _levels(levels: Levels | None) -> str:
    found = ""
    for key, axis in list((levels or {}).items())[:12]:
        up, down = axis.progress.level, axis.regression.level
        both = " ".join(f"{level:+d}" for level in (up, down) if level) or "0"
        kind = "up" if up + down > 0 else "down" if up + down < 0 else "flat"
        found += f"<span class='level {kind}'>{text(key, 12)} {text(both, 24)}</span>"
    return found


def _reward(turn: Turn) -> str:
    reward = number(turn.reward)
    if reward is None:
        why = f": {turn.unscored}" if turn.unscored else ""
        return f"<span>unscored{text(why)}</span>"
    return f"<span>reward <b class={_sign(reward)}>{told(reward, '+.2f')}</b></span>"


def _credit(credit: float | None) -> str:
    if credit is None:
        return ""
    return f"<span>credit <b class={_sign(credit)}>{told(credit, '+.2f')}</b></span>"


def _sign(value: float) -> str:
    return "up" if value > 0.005 else "down" if value < -0.005 else "flat"
