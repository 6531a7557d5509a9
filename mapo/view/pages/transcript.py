"""One dialogue for its page: turns with levels, state and credit, its siblings, and its tokens."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mapo.errors import MapoError
from mapo.judges.explain import Explanation, turn_key
from mapo.measure.alignment import dynamic_alignment
from mapo.measure.axes import axis_rewards, regressions
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue
from mapo.runs.contents import number
from mapo.runs.explanation import TurnCredit
from mapo.runs.files import MAX_FILE_BYTES, read_at
from mapo.scoring.spot_checks import is_form
from mapo.store import RunDir
from mapo.types import Dialogue, Mark, Turn
from mapo.view.index import queries
from mapo.view.index.files import RunFiles
from mapo.view.pages.credit import Credit

CLIP = 4000
"""Characters of a message on a page; a link leads to the rest."""
TOKENS = 2000
"""Tokens per request."""
CHARACTER = 8
"""The most tokens that form one character."""
FAULTS = 20
"""Faults of a turn on a page."""
MOST_LEVELS = 10
"""Levels of a mark whose probabilities are shown."""
SIBLINGS = 8
"""Siblings shown side by side."""


def dialogue_at(row: sqlite3.Row) -> Dialogue:
    """Read the record of a dialogue."""
    return decode_dialogue(read_at(queries.path_of(row), row["at"], row["size"]))


def clipped(text: str, most: int = CLIP) -> dict[str, Any]:
    """Return the beginning of a text and the number of characters left out."""
    fits = len(text) <= most
    return {"text": text if fits else text[:most].rstrip(), "left": 0 if fits else len(text) - most}


def turns_of(
    dialogue: Dialogue,
    rubric: Rubric | None,
    credit: Sequence[TurnCredit] | None,
    explanations: Mapping[str, Explanation] | None = None,
) -> list[dict[str, Any]]:
    """Return everything the page shows about each turn. `explanations` are those of the run, by turn."""
    titles = {axis.key: axis.title for axis in rubric.axes} if rubric else {}
    rewards, harm = movement_of(dialogue, rubric)
    before = dialogue.start
    turns = []
    for i, turn in enumerate(dialogue.turns):
        position = turn.state.position if turn.state else before
        moved = turn.state.step if turn.state and turn.state.step is not None else None
        keys = rubric.keys if rubric else tuple(turn.levels or ())
        explanation = explanations.get(turn_key(dialogue, i + 1)) if explanations and turn.levels else None
        turns.append(
            {
                "number": i + 1,
                "user": clipped(turn.user),
                "reply": clipped(turn.reply.text),
                "cut": turn.reply.finish == "length",
                "direction": turn.direction,
                "faults": turn.faults[:FAULTS],
                "unchecked": turn.unchecked,
                "checked": bool(_checks(turn, rubric)),
                "levels": _levels(
                    turn, titles, {key: row[i] for key, row in rewards.items()}, explanation, rubric
                ),
                "explained_by": explanation.judge if explanation else "",
                "read_out": turn.probabilities is not None,
                "regression": harm[i] if harm else None,
                "unscored": turn.unscored or ("no judgement" if turn.levels is None else ""),
                "axes": list(zip(keys, position, moved or [None] * len(position), strict=False)),
                "state": turn.state,
                "dynamic": _dynamic_alignment(moved, before, rubric),
                "reward": turn.reward,
                "rank": turn.rank,
                "credit": credit[i] if credit and i < len(credit) else None,
                "tokens": len(turn.reply.token_ids or ()),
            }
        )
        before = position
    return turns


def _dynamic_alignment(
    step: Sequence[float] | None, before: Sequence[float], rubric: Rubric | None
) -> float | None:
    """Return the cosine of a step with the direction of need before it; None where it cannot be computed."""
    if step is None or rubric is None or not len(step) == len(before) == len(rubric.axes):
        return None
    return number(dynamic_alignment(step, before, rubric))


def movement_of(
    dialogue: Dialogue, rubric: Rubric | None
) -> tuple[dict[str, list[float | None]], list[float | None]]:
    """Return the reward of each turn on each axis, and its regression; empty where the record does not fit
    the rubric."""
    if rubric is None:
        return {}, []
    try:
        return axis_rewards(dialogue, rubric), regressions(dialogue, rubric)
    except (MapoError, ValueError):
        return {}, []


def _levels(
    turn: Turn,
    titles: dict[str, str],
    rewards: dict[str, float | None],
    explanation: Explanation | None = None,
    rubric: Rubric | None = None,
) -> list[dict[str, Any]]:
    levels, checks = turn.levels or {}, _checks(turn, rubric)
    explained = {**levels, **(explanation.levels if explanation else {})}
    places = [[min(max(p, 0.0), 1.0) for p in place[:MOST_LEVELS]] for place in turn.probabilities or ()]
    places += [[]] * (2 * len(levels) - len(places))
    return [
        {
            "axis": key,
            "title": titles.get(key, key),
            "check": checks.get(key, (None, None)),
            "reward": rewards.get(key),
            "progress": marks.progress,
            "regression": marks.regression,
            "chances": (places[2 * n], places[2 * n + 1]),
            "reasons": (
                _with_reason(marks.progress, explained[key].progress),
                _with_reason(marks.regression, explained[key].regression),
            ),
        }
        for n, (key, marks) in enumerate(levels.items())
    ]


def _with_reason(mark: Mark, explained: Mark) -> Mark:
    """Return the recorded mark, or the explained one if the record has neither evidence nor reason."""
    return mark if mark.evidence or mark.reason else explained


def _checks(turn: Turn, rubric: Rubric | None) -> dict[str, tuple[int, int]]:
    """Return the levels of the judge of spot checks by axis; nothing where they do not fit the rubric."""
    if not rubric or not turn.check or not is_form(turn.check, rubric):
        return {}
    return dict(zip(rubric.keys, zip(turn.check[::2], turn.check[1::2], strict=True), strict=True))


def states_of(dialogue: Dialogue) -> list[list[float]]:
    """Return the start and the state after each turn. A turn without a usable state repeats the last one."""
    states = [list(dialogue.start)]
    for turn in dialogue.turns:
        fits = turn.state is not None and len(turn.state.position) == len(dialogue.start)
        states.append(list(turn.state.position) if turn.state and fits else states[-1])
    return states


# ---- siblings


def siblings_of(row: sqlite3.Row, batch: Sequence[sqlite3.Row]) -> list[sqlite3.Row]:
    """Return the dialogues of the same group, this one first."""
    others = [each for each in batch if each["grp"] == row["grp"] and each["id"] != row["id"]]
    return [row, *others]


def side_by_side(rows: Sequence[sqlite3.Row], credit: Credit, rubric: Rubric | None) -> dict[str, Any]:
    """Align siblings by turn, with reward, movement per axis, return and credit of each."""
    columns, problems = [], []
    for row in rows[:SIBLINGS]:
        try:
            columns.append((row, dialogue_at(row)))
        except MapoError as error:
            problems.append(str(error))
    length = max((len(d.turns) for _, d in columns), default=0)
    movements = [movement_of(d, rubric if rubric and d.rubric == rubric.name else None) for _, d in columns]
    lines = []
    for t in range(length):
        cells: list[dict[str, Any] | None] = []
        for (row, d), (rewards, harm) in zip(columns, movements, strict=True):
            turn = d.turns[t] if t < len(d.turns) else None
            credited = credit.turns.get(row["n"])
            cells.append(
                {
                    "user": clipped(turn.user, 600),
                    "reply": clipped(turn.reply.text, 1200),
                    "reward": turn.reward,
                    "axes": [(key, values[t]) for key, values in rewards.items()],
                    "regression": harm[t] if harm else None,
                    "credit": credited[t] if credited and t < len(credited) else None,
                }
                if turn
                else None
            )
        peers = next((c["credit"].turn_peers for c in cells if c and c["credit"]), None)
        lines.append({"number": t + 1, "cells": cells, "peers": peers})
    return {
        "columns": [row for row, _ in columns],
        "continued": [credit.continuation_of(row["n"]) for row, _ in columns],
        "lines": lines,
        "problems": problems,
        "more": len(rows) - len(columns),
    }


# ---- tokens


def tokens_of(turn: Turn, run: RunFiles, first: int = 0) -> dict[str, Any]:
    """Return sampled tokens from `first` on with log-probabilities, as text if the run has its tokenizer.

    `next` is where the next request continues. Tokens that form one character together (Chinese, emoji) are
    joined.
    """
    ids, scores = turn.reply.token_ids or (), turn.reply.logprobs or ()
    ids = ids[first : first + TOKENS]
    file = _tokenizer_file(run.root)
    words = (_decoded(file, ids) if file else None) or [([token], f"#{token}") for token in ids]
    if (
        len(words) > 1
        and words[-1][1].endswith("\ufffd")
        and first + TOKENS < len(turn.reply.token_ids or ())
    ):
        words.pop()  # the rest of the character is in the next request
    tokens, at = [], first
    for members, text in words:
        logprobs = scores[at : at + len(members)]
        score = sum(logprobs) if len(logprobs) == len(members) else None
        tokens.append({"ids": members, "text": text, "logprob": score})
        at += len(members)
    return {"tokens": tokens, "next": at if at < len(turn.reply.token_ids or ()) else None}


def _tokenizer_file(root: Path) -> Path | None:
    """Return the tokenizer of the last checkpoint that has one. Links out of the run are not followed."""
    try:
        folders = sorted(RunDir(root).checkpoints.iterdir(), reverse=True)
    except OSError:
        return None
    for folder in folders:
        file = (folder / "tokenizer.json").resolve()
        if (
            file.is_relative_to(root.resolve())
            and file.is_file()
            and file.stat().st_size <= 4 * MAX_FILE_BYTES
        ):
            return file
    return None


def _decoded(file: Path, ids: Sequence[int]) -> list[tuple[list[int], str]] | None:
    """Return token ids and their text, grouped into complete characters."""
    try:
        tokenizer = _tokenizer(file, file.stat().st_mtime_ns)
        if tokenizer is None:
            return None
        groups: list[tuple[list[int], str]] = []
        pending: list[int] = []
        for token in ids:
            pending.append(token)
            text = tokenizer.decode(pending, skip_special_tokens=False)
            if not text.endswith("\ufffd") or len(pending) == CHARACTER:
                groups.append((pending, text))
                pending = []
        if pending:
            groups.append((pending, tokenizer.decode(pending, skip_special_tokens=False)))
        return groups
    except (OSError, OverflowError, TypeError):
        return None


@lru_cache(maxsize=2)
def _tokenizer(file: Path, _changed: int) -> Any:
    """Return a tokenizer; None if the library is not installed or the file is not a tokenizer."""
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_buffer(file.read_bytes())
    except Exception:  # noqa: BLE001 (the library raises bare exceptions)
        return None
