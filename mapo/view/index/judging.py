"""What `mapo judge audit` and `mapo judge swap` left, as their pages show it: verdicts, both judges side by
side, and the figure.

The files may come from anywhere, and the names in them from models and people: everything is bounded, and a
value of another kind than expected is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mapo.runs.contents import number, whole
from mapo.runs.files import read_bytes, read_object
from mapo.store import RunDir
from mapo.text import printable
from mapo.view.index.files import RunFiles

ROWS = 100
"""Rows of a table that are shown."""
_PNG = b"\x89PNG\r\n\x1a\n"


class Told(NamedTuple):
    """A table, the sentences below it, and whether there is a figure."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: list[str]
    figure: bool


def judging_of(run: RunFiles) -> Told | None:
    """The result of an audit or a swap; None where there is none that can be read."""
    if run.has(RunDir.audit) and (data := read_object(RunDir(run.root).audit)[0]):
        return _audit(data, run.has(RunDir.audit_figure))
    if run.has(RunDir.swap) and (data := read_object(RunDir(run.root).swap)[0]):
        return _swap(data)
    return None


def figure_of(run: RunFiles) -> bytes | None:
    """The audit's picture, if it is one."""
    raw, _ = read_bytes(RunDir(run.root).audit_figure) if run.has(RunDir.audit_figure) else (None, "")
    return raw if raw is not None and raw.startswith(_PNG) else None


def _audit(data: dict[str, Any], figure: bool) -> Told:
    rows, notes = [], []
    for judge in _objects(data.get("judges")):
        said = _object(judge.get("verdict"))
        because = [
            line
            for use in ("training", "evaluation")
            for line in _texts(said.get(f"against_{use}")) or _texts(said.get(f"open_{use}"))
        ]
        name = _text(said.get("judge") or judge.get("judge"))
        rows.append(
            (
                name,
                _text(said.get("training")) or "–",
                _text(said.get("evaluation")) or "–",
                "; ".join(dict.fromkeys(because)) or "–",
            )
        )
        notes += [f"{name}, not known: {line}" for line in _texts(said.get("unknown"))]
    runs = ", ".join(_texts(data.get("runs")))
    asked = ", ".join(f"{n} {_text(k)}" for k, v in _object(data.get("sample")).items() if (n := whole(v)))
    over = [f"Over {runs}: {asked}" if asked else f"Over {runs}"] if runs else []
    head = ("Judge", "For training", "For evaluation", "Because")
    return Told("Verdict", head, rows[:ROWS], [*over, *notes, *_texts(data.get("notes"))][:ROWS], figure)


def _swap(data: dict[str, Any]) -> Told:
    rows, judges = [], []
    for row in _objects(data.get("runs")):
        old, new = _object(row.get("old")), _object(row.get("new"))
        judges += [(_text(old.get("judge")), _text(new.get("judge")))]
        rows.append(
            (
                _text(row.get("run")),
                _spread(old.get("epm_q"), old.get("interval")),
                _spread(new.get("epm_q"), new.get("interval")),
                _spread(row.get("difference"), row.get("difference_interval"), "+.1f"),
                _passes(old),
                _passes(new),
            )
        )
    notes = [f"{a} -> {b}" for a, b in dict.fromkeys(judges) if a or b]
    if isinstance(stays := data.get("same_order"), bool) and len(rows) > 1:
        ranks = number(data.get("rank_correlation"))
        told = "" if ranks is None else f" Rank correlation of the runs: {ranks:.2f}."
        notes.append(f"The order of the runs {'stays' if stays else 'does not stay'}.{told}")
    head = ("Run", "EPM-Q, old judge", "EPM-Q, new judge", "New - old", "Passed, old", "Passed, new")
    return Told("Judged again", head, rows[:ROWS], notes[:ROWS], False)


def _spread(value: object, ends: object, form: str = ".1f") -> str:
    found = number(value)
    if found is None:
        return "–"
    pair = [number(end) for end in ends] if isinstance(ends, list) and len(ends) == 2 else [None]
    if None in pair:
        return f"{found:{form}}"
    low, high = pair
    return f"{found:{form}} ({low:{form}} to {high:{form}})"


def _passes(side: dict[str, Any]) -> str:
    passes, n = whole(side.get("passes")), whole(side.get("n"))
    return "–" if passes is None or n is None else f"{passes} of {n}"


def _object(data: object) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _objects(data: object) -> Iterator[dict[str, Any]]:
    return (each for each in (data if isinstance(data, list) else [])[:ROWS] if isinstance(each, dict))


def _texts(data: object) -> list[str]:
    return [_text(each) for each in (data if isinstance(data, list) else [])[:ROWS] if isinstance(each, str)]


def _text(data: object) -> str:
    return printable(data)[:500] if isinstance(data, str) else ""
