"""Blocks -> Markdown, with the figures as files beside it; and back, for what is Markdown already."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mapo.report.document.blocks import (
    LISTED,
    Block,
    Heading,
    Lines,
    Picture,
    Report,
    Side,
    Table,
    Talk,
    Tiles,
    Words,
    clean,
    told,
)

_TALK = 600
"""Characters of a turn in a Markdown table."""


def markdown_page(report: Report, figures: str) -> str:
    """`figures` is the folder of the PNG files, as the file will refer to it; "" leaves them out."""
    parts = [f"# {plain(report.title)}", plain(report.lead, 600)]
    parts += [f"**{plain(report.caution, 1000)}**"] if report.caution else []
    parts += [part for block in report.blocks if (part := _block(block, figures))]
    return "\n\n".join(parts) + "\n"


def plain(text: object, most: int = 300) -> str:
    """Text that Markdown shows as it is, in a table too."""
    line = " ".join(clean(text, most).split())
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~$!])", r"\\\1", escaped)


def _block(block: Block, figures: str) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {plain(block.text)}"
        case Words():
            return plain(block.text, 2000)
        case Tiles():
            return "\n".join(
                f"- {plain(t.label)}: **{plain(t.value)}**{f' ({plain(t.detail)})' if t.detail else ''}"
                for t in block.tiles
            )
        case Table():
            return _table(block)
        case Lines():
            more = len(block.lines) - LISTED
            shown = [*block.lines[:LISTED], *([f"… and {more} more"] if more > 0 else [])]
            return "\n".join(f"- {plain(line, 400)}" for line in shown)
        case Picture():
            return f"![{plain(block.caption, 1000)}]({figures}/{block.name}.png)" if figures else ""
        case Talk():
            return _talk(block)


def _table(table: Table) -> str:
    rule = ["---" if i < table.left else "---:" for i in range(len(table.head))]
    rows = [[plain(cell) for cell in row] for row in (table.head, *table.rows)]
    shown = "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:]))
    return f"{shown}\n\n{plain(table.caption, 600)}" if table.caption else shown


def _talk(talk: Talk) -> str:
    sides = (talk.left, talk.right)
    rows = [[plain(side.title) for side in sides], ["---", "---"]]
    longest = max(len(side.dialogue.turns) for side in sides)
    rows += [[_turn(side, i) for side in sides] for i in range(longest)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _turn(side: Side, i: int) -> str:
    if i >= len(side.dialogue.turns):
        return ""
    turn = side.dialogue.turns[i]
    levels = [
        f"{key} {m.progress.level:+d} {m.regression.level:+d}" for key, m in (turn.levels or {}).items()
    ]
    marks = [*levels[:12], f"reward {told(turn.reward, '+.2f', 'unscored')}"]
    if side.credit[i] is not None:
        marks.append(f"credit {told(side.credit[i], '+.2f')}")
    said = (f"*{plain(turn.user, _TALK)}*", plain(turn.reply.text, _TALK), f"`{plain(', '.join(marks))}`")
    return "<br>".join(said)


# ---- from Markdown


def blocks_of(text: str) -> Iterator[Block]:
    """The plain Markdown that `mapo.evals` writes, as blocks; pictures are left to whoever draws them."""
    for part in text.split("\n\n"):
        lines = part.strip().splitlines()
        if not lines or part.startswith("!["):
            continue
        if heading := re.match(r"(#+) (.*)", lines[0]):
            yield Heading(_bare(heading[2]), max(2, len(heading[1])))
        elif all(line.startswith("|") for line in lines) and len(lines) > 1:
            head, _, *rows = [_cells(line) for line in lines]
            yield Table(head, rows)
        elif all(line.startswith("- ") for line in lines):
            yield Lines([_bare(line[2:]) for line in lines])
        else:
            yield Words(_bare(" ".join(lines)))


def _cells(line: str) -> Sequence[str]:
    return [_bare(cell.strip()) for cell in line.strip().strip("|").split(" | ")]


def _bare(text: str) -> str:
    return text.replace("**", "")
