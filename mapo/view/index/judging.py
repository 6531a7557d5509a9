"""Results of `mapo judge audit`, `judge swap`, `scenarios screen` and `scenarios make` for their pages.

The files are untrusted: everything is limited in size, and values of an unexpected type are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mapo.domain_folders import DEFAULT
from mapo.runs.contents import integer, number
from mapo.runs.files import read_bytes, read_object
from mapo.runs.made_scenarios import COLUMNS, made_notes, made_rows
from mapo.store import RunDir
from mapo.text import printable
from mapo.view.index.files import RunFiles

ROWS = 100
"""Rows of a table that are shown."""
SCRIPTED_WARNING = f"Test world, not a measure of {DEFAULT}: some roles of these dialogues are scripted."
_PNG = b"\x89PNG\r\n\x1a\n"


class VerdictTable(NamedTuple):
    """A table, a warning above it, the sentences below it, and whether there is a figure."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: list[str]
    figure: bool = False
    warning: str = ""


def judging_of(run: RunFiles) -> VerdictTable | None:
    """Return the result of an audit, a swap, a screening or made scenarios; None if none can be read."""
    if run.has(RunDir.audit) and (data := read_object(RunDir(run.root).audit)[0]):
        return _audit(data, run.has(RunDir.audit_figure))
    if run.has(RunDir.swap) and (data := read_object(RunDir(run.root).swap)[0]):
        return _swap(data)
    if run.has(RunDir.screen) and (data := read_object(RunDir(run.root).screen)[0]):
        return _screening(data, _roles_of_plays(run, data))
    if run.has(RunDir.make_report) and (data := read_object(RunDir(run.root).make_report)[0]):
        head = ("Scenario", *map(str.capitalize, COLUMNS[1:]))
        return VerdictTable("Scenarios", head, made_rows(run.root), made_notes(data))
    return None


def figure_of(run: RunFiles) -> bytes | None:
    """Return the figure of an audit, if it is a PNG."""
    raw, _ = read_bytes(RunDir(run.root).audit_figure) if run.has(RunDir.audit_figure) else (None, "")
    return raw if raw is not None and raw.startswith(_PNG) else None


def _audit(data: dict[str, Any], figure: bool) -> VerdictTable:
    rows, notes = [], []
    for judge in _objects(data.get("judges")):
        verdict = _object(judge.get("verdict"))
        reasons = [
            line
            for use in ("training", "evaluation")
            for line in _texts(verdict.get(f"against_{use}")) or _texts(verdict.get(f"open_{use}"))
        ]
        name = _text(verdict.get("judge") or judge.get("judge"))
        rows.append(
            (
                name,
                _text(verdict.get("training")) or "–",
                _text(verdict.get("evaluation")) or "–",
                "; ".join(dict.fromkeys(reasons)) or "–",
            )
        )
        notes += [f"{name}, unknown: {line}" for line in _texts(verdict.get("unknown"))]
    runs = ", ".join(_texts(data.get("runs")))
    sample = ", ".join(f"{n} {_text(k)}" for k, v in _object(data.get("sample")).items() if (n := integer(v)))
    source = [f"Sample from {runs}: {sample}" if sample else f"Sample from {runs}"] if runs else []
    head = ("Judge", "For training", "For evaluation", "Reasons")
    return VerdictTable(
        "Verdict", head, rows[:ROWS], [*source, *notes, *_texts(data.get("notes"))][:ROWS], figure
    )


def _swap(data: dict[str, Any]) -> VerdictTable:
    rows, judges = [], []
    for row in _objects(data.get("runs")):
        old, new = _object(row.get("old")), _object(row.get("new"))
        judges += [(_text(old.get("judge")), _text(new.get("judge")))]
        rows.append(
            (
                _text(row.get("run")),
                _with_interval(old.get("epm_q"), old.get("interval")),
                _with_interval(new.get("epm_q"), new.get("interval")),
                _with_interval(row.get("difference"), row.get("difference_interval"), "+.1f"),
                _passes(old),
                _passes(new),
            )
        )
    pairs = [(a or "unknown", b or "unknown") for a, b in dict.fromkeys(judges) if a or b]
    notes = [f"Old judge: {a}. New judge: {b}." for a, b in pairs]
    if isinstance(same := data.get("same_order"), bool) and len(rows) > 1:
        ranks = number(data.get("rank_correlation"))
        correlation = "" if ranks is None else f" Rank correlation of the runs: {ranks:.2f}."
        order = "The order of the runs is the same." if same else "The order of the runs changes."
        notes.append(order + correlation)
    head = ("Run", "EPM-Q, old judge", "EPM-Q, new judge", "Difference", "Passed, old", "Passed, new")
    scripted = any("scripted" in name for pair in judges for name in pair)
    warning = SCRIPTED_WARNING if scripted else ""
    return VerdictTable("Judge swap", head, rows[:ROWS], notes[:ROWS], warning=warning)


def _screening(data: dict[str, Any], roles: Mapping[str, Any]) -> VerdictTable:
    """Return one row per scenario: the verdict, how each policy did, and the measured difficulty and axis."""
    policies = {_text(name): _text(model) for name, model in list(_object(data.get("policies")).items())[:8]}
    rows, verdicts = [], Counter[str]()
    for scenario in _objects(data.get("scenarios")):
        plays, measured, declared = (_object(scenario.get(key)) for key in ("plays", "measured", "declared"))
        verdict, reason = _text(scenario.get("verdict")), _text(scenario.get("reason"))
        verdicts[verdict or "unknown"] += 1
        played = []
        for name in policies:
            result = _object(plays.get(name))
            played += [_passes(result), _with_interval(result.get("epm_q"), None)]
        difficulty, axis = (_changed(declared.get(key), measured.get(key)) for key in ("difficulty", "axis"))
        shown = f"{verdict}: {reason}" if reason else verdict
        rows.append((_text(scenario.get("id")), shown or "–", *played, difficulty, axis))
    columns = [text for name in policies for text in (f"Passed, {name}", f"EPM-Q, {name}")]
    counts = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common())
    notes = [f"Verdicts: {counts}."] if counts else []
    notes += [f"Policy {name}: {model}." for name, model in policies.items()]
    if plays_each := integer(data.get("plays")):
        notes.append(f"Dialogues per scenario and policy: {plays_each}.")
    if judge := _text(roles.get("judge")):
        notes.append(f"Judge: {judge}.")
    scripted = "scripted" in roles.values()
    warning = SCRIPTED_WARNING if scripted else ""
    head = ("Scenario", "Verdict", *columns, "Difficulty", "Axis")
    return VerdictTable("Screening", head, rows[:ROWS], notes, warning=warning)


def _roles_of_plays(run: RunFiles, data: dict[str, Any]) -> dict[str, Any]:
    """Return who played user, director and judge, from the manifest of a policy's dialogues."""
    for name in list(_object(data.get("policies")))[:8]:
        folder = run.root / name
        if folder.parent == run.root and not folder.is_symlink():
            cast = read_object(RunDir(folder).manifest)[0].get("cast")
            return {"judge": cast} if isinstance(cast, str) else _object(cast)
    return {}


def _changed(declared: object, measured: object) -> str:
    """Return the measured value, and the declared one if it differs."""
    now, before = _text(measured), _text(declared)
    return f"{now} (declared {before})" if now and before and now != before else now or before or "–"


def _with_interval(value: object, ends: object, form: str = ".1f") -> str:
    score = number(value)
    if score is None:
        return "–"
    pair = [number(end) for end in ends] if isinstance(ends, list) and len(ends) == 2 else [None]
    if None in pair:
        return f"{score:{form}}"
    low, high = pair
    return f"{score:{form}} ({low:{form}} to {high:{form}})".replace("-", "−")


def _passes(side: dict[str, Any]) -> str:
    passes, n = integer(side.get("passes")), integer(side.get("n"))
    return "–" if passes is None or n is None else f"{passes} of {n}"


def _object(data: object) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _objects(data: object) -> Iterator[dict[str, Any]]:
    return (each for each in (data if isinstance(data, list) else [])[:ROWS] if isinstance(each, dict))


def _texts(data: object) -> list[str]:
    return [_text(each) for each in (data if isinstance(data, list) else [])[:ROWS] if isinstance(each, str)]


def _text(data: object) -> str:
    return printable(data)[:500] if isinstance(data, str) else ""
