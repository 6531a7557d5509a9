"""One dialogue for a page: its turns with levels, state and credit; its siblings beside it; its tokens."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mapo.errors import MapoError
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue
from mapo.runs.files import SMALL, read_at
from mapo.store import RunDir
from mapo.types import Dialogue, Turn
from mapo.view.index import queries
from mapo.view.index.files import RunFiles
from mapo.view.pages.credit import Credit, TurnCredit

CLIP = 4000
"""Characters of a turn that a page shows; the rest is one click away."""
TOKENS = 2000
"""Tokens that are sent at once."""
SIGN = 8
"""Tokens that make one sign at most."""
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
    """Where it started, and where it stood after each turn; a state of other axes is as good as none."""
    found = [list(dialogue.start)]
    for turn in dialogue.turns:
        fits = turn.state is not None and len(turn.state.position) == len(dialogue.start)
        found.append(list(turn.state.position) if turn.state and fits else found[-1])
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


def tokens_of(turn: Turn, run: RunFiles, first: int = 0) -> dict[str, Any]:
    """Sampled tokens from the `first` on, as text where the run kept its tokenizer, with log-probabilities;
    `next` is where to read on. Tokens that make one sign together (Chinese, emoji) stand together."""
    ids, scores = turn.reply.token_ids or (), turn.reply.logprobs or ()
    ids = ids[first : first + TOKENS]
    file = _tokenizer_file(run.root)
    words = (_decoded(file, ids) if file else None) or [([token], f"#{token}") for token in ids]
    if (
        len(words) > 1
        and words[-1][1].endswith("\ufffd")
        and first + TOKENS < len(turn.reply.token_ids or ())
    ):
        words.pop()  # the rest of the sign is on the next page
    found, at = [], first
    for own, text in words:
        told = scores[at : at + len(own)]
        score = sum(told) if len(told) == len(own) else None
        found.append({"ids": own, "text": text, "logprob": score})
        at += len(own)
    return {"tokens": found, "next": at if at < len(turn.reply.token_ids or ()) else None}


def _tokenizer_file(root: Path) -> Path | None:
    """Of the last checkpoint that has one; a checkpoint may be a link within the run, never out of it."""
    try:
        folders = sorted(RunDir(root).checkpoints.iterdir(), reverse=True)
    except OSError:
        return None
    for folder in folders:
        file = (folder / "tokenizer.json").resolve()
        if file.is_relative_to(root.resolve()) and file.is_file() and file.stat().st_size <= 4 * SMALL:
            return file
    return None


def _decoded(file: Path, ids: Sequence[int]) -> list[tuple[list[int], str]] | None:
    """Ids and their text, as few at a time as make whole signs."""
    try:
        tokenizer = _tokenizer(file, file.stat().st_mtime_ns)
        if tokenizer is None:
            return None
        found: list[tuple[list[int], str]] = []
        open_: list[int] = []
        for token in ids:
            open_.append(token)
            text = tokenizer.decode(open_, skip_special_tokens=False)
            if not text.endswith("\ufffd") or len(open_) == SIGN:
                found.append((open_, text))
                open_ = []
        return found + ([(open_, tokenizer.decode(open_, skip_special_tokens=False))] if open_ else [])
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
