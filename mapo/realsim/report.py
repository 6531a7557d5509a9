"""Completion of a run: drop near-duplicates, write the scenario files and report.json.

The report holds counts, ids and reasons, and nothing private. Source files are given by number and line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mapo.errors import ScenarioError
from mapo.evals.items import ItemLine, read_previous
from mapo.realsim.levels import agreement_of
from mapo.realsim.make import STEPS, MakeSettings, redact_locally, redacted_turns
from mapo.realsim.provenance import delete_calls, write_raw, write_source
from mapo.realsim.reading.read import Conversation, SourceConversations
from mapo.realsim.validate import build, near_copies
from mapo.records import encode
from mapo.scenarios.scenario import Scenario, dump_scenario, read_scenario
from mapo.store import RunDir, write_atomic


def finish(
    out: Path,
    settings: MakeSettings,
    source: SourceConversations,
    conversations: Sequence[Conversation],
    lines: Mapping[str, ItemLine],
    others: Sequence[Scenario],
    calls: Path,
) -> dict[str, Any]:
    """Write OUT/scenarios, source.jsonl and report.json, and return the report. No scenario may be similar to
    one of `others`; `calls` is the file with the model answers."""
    run = RunDir(out)
    write_source(out, source)
    if settings.keep_raw:
        write_raw(out, source)
    made = [
        _scenario(lines[conversation.id], settings)
        for conversation in conversations
        if "scenario" in lines.get(conversation.id, {})
    ]
    copies = near_copies(made, others)
    lines = with_copies(run.items, lines, copies)
    kept = [scenario for scenario in made if scenario.id not in copies]
    for case in copies:  # written by an interrupted run, before the other one was made
        (run.scenarios / f"{case}.toml").unlink(missing_ok=True)
    for scenario in kept:
        write_scenario(scenario, run.scenarios / f"{scenario.id}.toml")
    failed = [conversation for conversation in conversations if conversation.id not in lines]
    own_cache = calls == run.private_cache  # never delete a cache that was given as an option
    private = (
        "kept" if settings.keep_raw or not own_cache else "kept until no item fails" if failed else "removed"
    )
    if private == "removed":
        delete_calls(calls)
    if not (settings.keep_raw or failed):
        run.private_key.unlink(missing_ok=True)
    errors = read_previous(out).partial
    report = {
        "schema": "mapo.realsim.report/1",
        **_input_counts(source, conversations),
        "made": len(kept),
        "refused": _refusals(conversations, lines),
        "failed": [conversation.id for conversation in failed],
        "failures": _failures(failed, errors),
        "found": _counted({**errors, **lines}, "kinds"),
        "listed_by_the_model": sum(line.get("listed", 0) for line in lines.values()),
        "agreement": agreement_of([lines[s.id]["given"] for s in kept], settings.rubric) if kept else {},
        "forms": settings.forms,
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


def finish_local(
    out: Path, source: SourceConversations, conversations: Sequence[Conversation]
) -> dict[str, Any]:
    """Redact the conversations without a model: write OUT/1-local, source.jsonl and report.json."""
    total: Counter[str] = Counter()
    for conversation in conversations:
        redacted = redact_locally(conversation)
        total.update(redacted.counts)
        turns = redacted_turns(conversation, redacted)
        data = {"id": conversation.id, "turns": turns, "found": dict(redacted.counts)}
        text = json.dumps(data, ensure_ascii=False, indent=1)
        write_atomic(out / STEPS[0] / f"{conversation.id}.json", text + "\n")
    write_source(out, source)
    report = {
        "schema": "mapo.realsim.local/1",
        **_input_counts(source, conversations),
        "found": dict(total.most_common()),
        **_problems(source),
    }
    write_atomic(RunDir(out).make_report, json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    return report


def _input_counts(source: SourceConversations, conversations: Sequence[Conversation]) -> dict[str, Any]:
    return {
        "files": len(source.files),
        "conversations": len(source.conversations),
        "asked": len(conversations),
        "cut": {conversation.id: conversation.cut for conversation in conversations if conversation.cut},
    }


def _problems(source: SourceConversations) -> dict[str, Any]:
    return {
        "problems": [{"file": p.file, "line": p.line, "problem": p.text} for p in source.problems],
        "notes": [{"file": p.file, "line": p.line, "note": p.text} for p in source.notes],
    }


def _scenario(line: ItemLine, settings: MakeSettings) -> Scenario:
    form = dict(line["scenario"])
    case, language = form.pop("id"), form.pop("language")
    return build(form, case=case, language=language, rubric=settings.rubric)


def with_copies(file: Path, lines: Mapping[str, ItemLine], copies: Mapping[str, str]) -> dict[str, ItemLine]:
    """Return the lines with near-duplicates refused, and update them on disk. This is decided anew each time:
    a copy of a scenario that is itself refused is not a copy."""
    changed = {}
    for case, line in lines.items():
        if "scenario" in line:
            plain = {key: value for key, value in line.items() if key not in ("reason", "detail", "step")}
            reason = {"reason": "copy", "detail": f"too similar to {copies.get(case)}", "step": "validate"}
            new = (
                {**plain, "verdict": "refused", **reason} if case in copies else {**plain, "verdict": "made"}
            )
            if new != line:
                changed[case] = new
    if changed:
        updated = [_updated(raw, changed) for raw in file.read_bytes().split(b"\n")]
        write_atomic(file, b"\n".join(updated))
    return {**lines, **changed}


def _updated(raw: bytes, changed: Mapping[str, ItemLine]) -> bytes:
    """Return the new version of a line of the file; an unreadable line stays as it is."""
    try:
        line = json.loads(raw)
        new = changed.get(line["id"]) if line["error"] is None else None
    except (ValueError, TypeError, KeyError):
        return raw
    return raw if new is None else encode(new, "an item")


_FIXES = {
    "unusable": "Remove the conversation, or try another --model in a new --out.",
    "leak": "Try a stronger --model in a new --out, or remove the private data from the input by hand.",
    "invalid": "Try a stronger --model in a new --out, or leave the conversation out.",
    "inconsistent": "Try another --model or --judge-model in a new --out, or leave the conversation out.",
    "unsafe": "Leave the conversation out.",
    "copy": "Nothing to do: the similar scenario is kept.",
}
_RETRY = "Run again with --resume."


def _refusals(conversations: Sequence[Conversation], lines: Mapping[str, ItemLine]) -> list[dict[str, Any]]:
    """Return which conversations were refused, where they are, why, and what to do about it."""
    refused = []
    for conversation in conversations:
        line = lines.get(conversation.id, {})
        if line.get("verdict") == "refused":
            reasons = {key: line[key] for key in ("id", "reason", "detail", "step")}
            place = {"file": conversation.file, "line": conversation.line}
            refused.append({**reasons, **place, "fix": _FIXES.get(line["reason"], _FIXES["invalid"])})
    return refused


def _failures(failed: Sequence[Conversation], errors: Mapping[str, ItemLine]) -> list[dict[str, Any]]:
    """Return which conversations failed because a model did, where they are, why, and what to do about it."""
    return [
        {
            "id": conversation.id,
            "error": errors.get(conversation.id, {}).get("error") or "not processed",
            "file": conversation.file,
            "line": conversation.line,
            "fix": _RETRY,
        }
        for conversation in failed
    ]


def _counted(lines: Mapping[str, ItemLine], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for line in lines.values():
        total.update(line.get(key, {}))
    return dict(total.most_common())
