"""One dialogue for a page: its turns with levels, state and credit; its siblings beside it; its tokens."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mapo.errors import MapoError
from mapo.reading.files import SMALL, read_at
from mapo.records import decode_dialogue
from mapo.sandbox.rubric import Rubric
from mapo.types import Dialogue, Turn
from mapo.view import queries
from mapo.view.credit import Credit, TurnCredit
from mapo.view.files import RunFiles

CLIP = 4000
"""Characters of a turn that a page shows; the rest is one click away."""
SIBLINGS = 8
"""Siblings shown side by side."""


def dialogue_at(row: sqlite3.Row) -> Dialogue:
    """The record itself, read by its place."""
    return decode_dialogue(read_at(queries.path_of(row), row["at"], row["size"]))


def clipped(text: str, most: int = CLIP) -> dict[str, Any]:
    """A text as a page shows it, and how much was left out."""
    whole = len(text) <= most
    return {"text": text if whole else text[:most].rstrip(), "left": 0 if whole else len(text) - most}


def turns_of(
    dialogue: Dialogue, rubric: Rubric | None, credit: Sequence[TurnCredit] | None
) -> list[dict[str, Any]]:
    """Everything that stands beside each assistant turn."""
    titles = {axis.key: axis.title for axis in rubric.axes} if rubric else {}
    before = dialogue.start
    found = []
    for i, turn in enumerate(dialogue.turns):
        position = turn.state.position if turn.state else before
        moved = turn.state.step if turn.state and turn.state.step is not None else None
        keys = rubric.keys if rubric else tuple(turn.levels or ())
        found.append(
            {
                "number": i + 1,
                "user": clipped(turn.user),
                "reply": clipped(turn.reply.text),
                "cut": turn.reply.finish == "length",
                "direction": turn.direction,
                "levels": _levels(turn, titles),
                "unscored": turn.unscored or ("no judgement" if turn.levels is None else ""),
                "axes": list(zip(keys, position, moved or [None] * len(position), strict=False)),
                "state": turn.state,
                "reward": turn.reward,
                "credit": credit[i] if credit and i < len(credit) else None,
                "tokens": len(turn.reply.token_ids or ()),
            }
        )
        before = position
    return found


def _levels(turn: Turn, titles: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "axis": key,
            "title": titles.get(key, key),
            "progress": marks.progress,
            "regression": marks.regression,
        }
        for key, marks in (turn.levels or {}).items()
    ]


def positions(dialogue: Dialogue) -> list[list[float]]:
    """Where it started, and where it stood after each turn."""
    found = [list(dialogue.start)]
    for turn in dialogue.turns:
        found.append(list(turn.state.position) if turn.state else found[-1])
    return found


# ---- siblings


def siblings_of(row: sqlite3.Row, batch: Sequence[sqlite3.Row]) -> list[sqlite3.Row]:
    """The dialogues of the same group, this one first."""
    others = [each for each in batch if each["grp"] == row["grp"] and each["id"] != row["id"]]
    return [row, *others]


def side_by_side(rows: Sequence[sqlite3.Row], credit: Credit) -> dict[str, Any]:
    """Siblings aligned by turn: what each said there, what it earned and what it led to."""
    columns, lost = [], []
    for row in rows[:SIBLINGS]:
        try:
            columns.append((row, dialogue_at(row)))
        except MapoError as error:
            lost.append(str(error))
    length = max((len(d.turns) for _, d in columns), default=0)
    lines = []
    for t in range(length):
        cells: list[dict[str, Any] | None] = []
        for row, d in columns:
            turn = d.turns[t] if t < len(d.turns) else None
            credited = credit.turns.get(row["n"])
            cells.append(
                {
                    "user": clipped(turn.user, 600),
                    "reply": clipped(turn.reply.text, 1200),
                    "reward": turn.reward,
                    "credit": credited[t] if credited and t < len(credited) else None,
                }
                if turn
                else None
            )
        peers = next((c["credit"].turn_peers for c in cells if c and c["credit"]), None)
        lines.append({"number": t + 1, "cells": cells, "peers": peers})
    return {
        "columns": [row for row, _ in columns],
        "lines": lines,
        "lost": lost,
        "more": len(rows) - len(columns),
    }


# ---- tokens


def tokens_of(turn: Turn, run: RunFiles) -> list[dict[str, Any]]:
    """Each sampled token with its log-probability; as text where the run kept its tokenizer."""
    ids, scores = turn.reply.token_ids or (), turn.reply.logprobs or ()
    file = _tokenizer_file(run.root)
    words = _decoded(file, ids) if file else None
    return [
        {
            "id": token,
            "text": words[i] if words else f"#{token}",
            "logprob": scores[i] if i < len(scores) else None,
        }
        for i, token in enumerate(ids)
    ]


def _tokenizer_file(root: Path) -> Path | None:
    """Of the last checkpoint that has one; a checkpoint may be a link within the run, never out of it."""
    try:
        folders = sorted((root / "checkpoints").iterdir(), reverse=True)
    except OSError:
        return None
    for folder in folders:
        file = (folder / "tokenizer.json").resolve()
        if file.is_relative_to(root.resolve()) and file.is_file() and file.stat().st_size <= 4 * SMALL:
            return file
    return None


def _decoded(file: Path, ids: Sequence[int]) -> list[str] | None:
    try:
        tokenizer = _tokenizer(file, file.stat().st_mtime_ns)
        return [tokenizer.decode([token], skip_special_tokens=False) for token in ids] if tokenizer else None
    except (OSError, OverflowError, TypeError):
        return None


@lru_cache(maxsize=2)
def _tokenizer(file: Path, _changed: int) -> Any:
    """None where the library is not installed or the file is no tokenizer."""
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_buffer(file.read_bytes())
    except Exception:  # noqa: BLE001 (the library raises bare exceptions)
        return None
