"""Render a report as Markdown, with its figures as files beside it."""

from __future__ import annotations

from mapo.report.document.blocks import (
    MAX_LIST_ITEMS,
    Block,
    BulletList,
    DialogueColumn,
    DialoguePair,
    Heading,
    Paragraph,
    Report,
    StatTiles,
    format_number,
)
from mapo.show.figures import Picture
from mapo.show.tables import Table, markdown_rows, markdown_table, markdown_text

CELL = 300
"""Maximum characters of a table cell."""
_MAX_TURN_TEXT = 600
"""Maximum characters of a message in a Markdown table."""


def markdown_page(report: Report, figures: str) -> str:
    """Return the whole file. `figures` is the relative path of the folder with the PNG files; "" leaves the
    figures out."""
    parts = [f"# {plain(report.title)}", plain(report.lead, 600)]
    parts += [f"**{plain(report.caution, 1000)}**"] if report.caution else []
    parts += [part for block in report.blocks if (part := _block(block, figures))]
    return "\n\n".join(parts) + "\n"


def plain(text: object, limit: int = CELL) -> str:
    return markdown_text(text, limit)


def _block(block: Block, figures: str) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {plain(block.text)}"
        case Paragraph():
            return plain(block.text, 2000)
        case StatTiles():
            return "\n".join(
                f"- {plain(t.label)}: **{plain(t.value)}**{f' ({plain(t.detail)})' if t.detail else ''}"
                for t in block.tiles
            )
        case Table():
            return markdown_table(block, limit=CELL)
        case BulletList():
            more = len(block.lines) - MAX_LIST_ITEMS
            shown = [*block.lines[:MAX_LIST_ITEMS], *([f"… and {more} more"] if more > 0 else [])]
            return "\n".join(f"- {plain(line, 400)}" for line in shown)
        case Picture():
            return f"![{plain(block.caption, 1000)}]({figures}/{block.name}.png)" if figures else ""
        case DialoguePair():
            return _talk(block)


def _talk(talk: DialoguePair) -> str:
    sides = (talk.left, talk.right)
    rows = [[plain(side.title) for side in sides], ["---", "---"]]
    longest = max(len(side.dialogue.turns) for side in sides)
    rows += [[_turn(side, i) for side in sides] for i in range(longest)]
    return markdown_rows(rows)


def _turn(side: DialogueColumn, i: int) -> str:
    if i >= len(side.dialogue.turns):
        return ""
    turn = side.dialogue.turns[i]
    levels = [
        f"{key} {m.progress.level:+d} {m.regression.level:+d}" for key, m in (turn.levels or {}).items()
    ]
    marks = [*levels[:12], f"reward {format_number(turn.reward, '+.2f', 'unscored')}"]
    said = (
        f"*{plain(turn.user, _MAX_TURN_TEXT)}*",
        plain(turn.reply.text, _MAX_TURN_TEXT),
        f"`{plain(', '.join(marks))}`",
    )
    return "<br>".join(said)
