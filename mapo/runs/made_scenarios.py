"""The report.json of `mapo scenarios make` in sentences, for the report and the viewer. It is untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapo.runs.contents import integer, number, read_settings
from mapo.store import RunDir
from mapo.text import plural, printable

LINES = 20
"""Refused or failed conversations that are named."""
SCENARIOS = 100
"""Scenarios that are listed."""
COLUMNS = ("id", "topic", "category", "axis", "difficulty", "language")


def made_rows(root: Path) -> list[tuple[str, ...]]:
    """Return `COLUMNS` of the scenarios in the run's folder, as far as the files can be read."""
    folder = RunDir(root).scenarios
    if folder.is_symlink() or not folder.is_dir():
        return []
    files = sorted(file for file in folder.iterdir() if file.suffix == ".toml")[:SCENARIOS]
    scenarios = [settings for file in files if (settings := read_settings(file)[0])]
    return [tuple(_text(scenario, name) or "–" for name in COLUMNS) for scenario in scenarios]


def made_notes(report: Mapping[str, Any]) -> list[str]:
    """Return what became of the conversations, what was redacted, and how well the start levels agree."""
    asked, files = integer(report.get("asked")), integer(report.get("files"))
    refused, failed = _rows(report, "refused"), _rows(report, "failures")
    notes = []
    if asked is not None:
        source = f" from {plural(files, 'file')}" if files is not None else ""
        made = plural(integer(report.get("made")) or 0, "scenario")
        counts = f"{made} made, {len(refused)} refused, {len(failed)} failed"
        notes.append(f"{plural(asked, 'conversation')}{source}: {counts}.")
    notes += [f"Refused: {_text(r, 'id')} ({_text(r, 'reason')}). {_text(r, 'fix')}" for r in refused[:LINES]]
    notes += [f"Failed: {_text(f, 'id')}: {_text(f, 'error')}" for f in failed[:LINES]]
    if counts := _counts(report.get("found")):
        notes.append(f"Private values replaced before a model saw them: {counts}.")
    if listed := integer(report.get("listed_by_the_model")):
        notes.append(f"Further private values that the model listed: {listed}.")
    if private := _text(report, "private_calls"):
        notes.append(f"Recorded calls with private text: {private}.")
    tags = report.get("tags")
    for name, values in list(tags.items())[:6] if isinstance(tags, dict) else ():
        if counts := _counts(values):
            notes.append(f"By {printable(str(name))[:40]}: {counts}.")
    return [*notes, *_agreement(report)]


def _agreement(report: Mapping[str, Any]) -> list[str]:
    """Return how often the judge's repeated start forms agree, over all indicators."""
    indicators, forms = report.get("agreement"), integer(report.get("forms"))
    rows = indicators.values() if isinstance(indicators, dict) else ()
    shares = [s for row in rows if isinstance(row, dict) and (s := number(row.get("same"))) is not None]
    if not shares or not forms or forms < 2:
        return []
    mean = sum(shares) / len(shares)
    return [f"Start levels: of {forms} forms per scenario, {mean:.0%} of the levels equal the median level."]


def _counts(data: object) -> str:
    pairs = list(data.items())[:20] if isinstance(data, dict) else []
    known = [(printable(str(k))[:40], n) for k, v in pairs if (n := integer(v))]
    return ", ".join(f"{name} {n}" for name, n in sorted(known, key=lambda pair: (-pair[1], pair[0])))


def _rows(report: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = report.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return printable(value)[:300] if isinstance(value, str) else ""
