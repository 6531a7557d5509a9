"""The end of a making: near-copies dropped, scenario files written, one report of everything.

The report holds counts, ids and reasons. What was private stands in none of it; files of the source are known
by number, and lines too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mapo.errors import ScenarioError
from mapo.evals.items import Line, read_kept
from mapo.realsim.levels import agreement_of
from mapo.realsim.make import STEPS, Making, local_pass, shown_turns
from mapo.realsim.provenance import forget, write_raw, write_source
from mapo.realsim.reading.read import Conversation, Source
from mapo.realsim.validate import build, near_copies
from mapo.records import encode
from mapo.scenarios.scenario import Scenario, dump_scenario, read_scenario
from mapo.store import RunDir, write_atomic


def finish(
    out: Path,
    making: Making,
    source: Source,
    asked: Sequence[Conversation],
    lines: Mapping[str, Line],
    others: Sequence[Scenario],
    calls: Path,
) -> dict[str, Any]:
    """Write OUT/scenarios, source.jsonl and report.json; `others` are scenarios that none may be near to,
    `calls` is where the answers of models lie."""
    run = RunDir(out)
    write_source(out, source)
    if making.keep_raw:
        write_raw(out, source)
    made = [
        _scenario(lines[talk.id], making)
        for talk in asked
        if talk.id in lines and "scenario" in lines[talk.id]
    ]
    copies = near_copies(made, others)
    lines = with_copies(run.items, lines, copies)
    kept = [scenario for scenario in made if scenario.id not in copies]
    for case in copies:  # left by a run that was stopped and had not met the other one yet
        (run.scenarios / f"{case}.toml").unlink(missing_ok=True)
    for scenario in kept:
        write_scenario(scenario, run.scenarios / f"{scenario.id}.toml")
    failed = [talk.id for talk in asked if talk.id not in lines]
    given = calls != run.private_cache  # somebody's own cache is theirs to remove
    private = "kept" if making.keep_raw or given else "kept until no item fails" if failed else "removed"
    if private == "removed":
        forget(calls)
    if not (making.keep_raw or failed):
        run.private_key.unlink(missing_ok=True)
    report = {
        "schema": "mapo.realsim.report/1",
        **_read_from(source, asked),
        "made": len(kept),
        "refused": _refusals(asked, lines),
        "failed": failed,
        "found": _counted({**read_kept(out).halves, **lines}, "kinds"),
        "listed_by_the_model": sum(line.get("listed", 0) for line in lines.values()),
        "agreement": agreement_of([lines[s.id]["given"] for s in kept], making.rubric) if kept else {},
        "forms": making.forms,
        "tags": {
            tag: dict(Counter(getattr(s, tag) for s in kept)) for tag in ("category", "axis", "difficulty")
        },
        "private_calls": private,
        **_problems(source),
    }
    text = json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1)
    write_atomic(run.make_report, text + "\n")
    return report


def write_scenario(scenario: Scenario, path: Path) -> None:
    """Write a scenario file atomically. Raise ScenarioError if it does not read back as the same scenario."""
    write_atomic(path, dump_scenario(scenario))
    if read_scenario(path) != scenario:
        raise ScenarioError(
            "the written file reads back differently", where=str(path), fix="Please report this as a bug"
        )


def finish_local(out: Path, source: Source, asked: Sequence[Conversation]) -> dict[str, Any]:
    """The pass without a model alone: OUT/1-local, source.jsonl and report.json."""
    total: Counter[str] = Counter()
    for talk in asked:
        cleaned = local_pass(talk)
        total.update(cleaned.counts)
        data = {"id": talk.id, "turns": shown_turns(talk, cleaned), "found": dict(cleaned.counts)}
        text = json.dumps(data, ensure_ascii=False, indent=1)
        write_atomic(out / STEPS[0] / f"{talk.id}.json", text + "\n")
    write_source(out, source)
    report = {
        "schema": "mapo.realsim.local/1",
        **_read_from(source, asked),
        "found": dict(total.most_common()),
        **_problems(source),
    }
    write_atomic(RunDir(out).make_report, json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    return report


def _read_from(source: Source, asked: Sequence[Conversation]) -> dict[str, Any]:
    return {
        "files": len(source.files),
        "conversations": len(source.conversations),
        "asked": len(asked),
        "cut": {talk.id: talk.cut for talk in asked if talk.cut},
    }


def _problems(source: Source) -> dict[str, Any]:
    return {
        "problems": [{"file": p.file, "line": p.line, "problem": p.text} for p in source.problems],
        "notes": [{"file": p.file, "line": p.line, "note": p.text} for p in source.notes],
    }


def _scenario(line: Line, making: Making) -> Scenario:
    own = dict(line["scenario"])
    case, language = own.pop("id"), own.pop("language")
    return build(own, case=case, language=language, rubric=making.rubric)


def with_copies(file: Path, lines: Mapping[str, Line], copies: Mapping[str, str]) -> dict[str, Line]:
    """The lines with the verdicts that only all of them together can give, on disk as well. They are given
    anew each time: what was a copy of something is none when that one is refused in its turn."""
    changed = {}
    for case, line in lines.items():
        if "scenario" in line:
            plain = {key: value for key, value in line.items() if key not in ("reason", "detail", "step")}
            why = {"reason": "copy", "detail": f"too near to {copies.get(case)}", "step": "validate"}
            new = {**plain, "verdict": "refused", **why} if case in copies else {**plain, "verdict": "made"}
            if new != line:
                changed[case] = new
    if changed:
        kept = [_instead(raw, changed) for raw in file.read_bytes().split(b"\n")]
        write_atomic(file, b"\n".join(kept))
    return {**lines, **changed}


def _instead(raw: bytes, changed: Mapping[str, Line]) -> bytes:
    """A line of the file, or what it says now; one that cannot be read stays as it is."""
    try:
        line = json.loads(raw)
        new = changed.get(line["id"]) if line["error"] is None else None
    except (ValueError, TypeError, KeyError):
        return raw
    return raw if new is None else encode(new, "an item")


def _refusals(asked: Sequence[Conversation], lines: Mapping[str, Line]) -> list[dict[str, str]]:
    refused = [lines[talk.id] for talk in asked if lines.get(talk.id, {}).get("verdict") == "refused"]
    return [{key: line[key] for key in ("id", "reason", "detail", "step")} for line in refused]


def _counted(lines: Mapping[str, Line], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for line in lines.values():
        total.update(line.get(key, {}))
    return dict(total.most_common())
