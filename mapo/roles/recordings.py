"""Recorded dialogues from any source: run directories, EMPA result files, and files of judged turns.

A file of judged turns has one JSON object per line: `model`, `case`, `judge`, `start` and `turns`, each turn
with `user`, `reply` and `levels` (None, or marks by axis and side). It may be compressed (.jsonl.gz).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mapo.errors import InputError, RecordError
from mapo.judges.sample import Recording, dialogue_files, read_recordings
from mapo.measure.rubric import Rubric
from mapo.sandbox.faults.manners import is_call_failure
from mapo.scenarios.scenario import Scenario
from mapo.scoring.empa_files import read_dialogues_in
from mapo.store import MAX_LINE_BYTES
from mapo.types import AxisMarks, Dialogue, Levels, Mark, Reply, Turn
from mapo.untrusted import open_regular, parse_json

SUFFIXES = (".jsonl", ".jsonl.gz")
_FIX = "Give run directories, folders of EMPA result files, or files of judged turns with --from"


@dataclass(frozen=True, slots=True)
class Recordings:
    """The dialogues of all sources, and what was left out of them."""

    dialogues: tuple[Recording, ...]
    problems: tuple[str, ...]

    @property
    def rubric(self) -> Rubric:
        """The rubric of all dialogues."""
        return self.dialogues[0].rubric


def read_all(sources: Sequence[Path], scenarios: Mapping[str, Scenario], rubric: Rubric) -> Recordings:
    """Read the dialogues of all sources that `rubric` can judge. Raise InputError if there are none."""
    recordings: dict[str, Recording] = {}
    problems: list[str] = []
    for source in sources:
        for recording in _read(source, scenarios, rubric, problems):
            if recording.rubric.measure["axes"] != rubric.measure["axes"]:
                raise InputError(
                    f"the dialogues were judged by another rubric ('{recording.rubric.name}')",
                    where=str(source),
                    fix=f"Give recordings of '{rubric.name}', or the scenarios of the other domain",
                )
            first = recordings.setdefault(recording.id, replace(recording, rubric=rubric))
            if first.dialogue != recording.dialogue:
                problems.append(f"{source}: dialogues with the names of earlier ones are skipped")
    if not recordings:
        reason = f": {problems[0]}" if problems else ""
        raise InputError(f"no recorded dialogue{reason}", where=", ".join(map(str, sources)), fix=_FIX)
    return Recordings(tuple(recordings.values()), tuple(dict.fromkeys(problems)))


def _read(
    source: Path, scenarios: Mapping[str, Scenario], rubric: Rubric, problems: list[str]
) -> Iterator[Recording]:
    if source.name.endswith(SUFFIXES):
        dialogues = _judged_turns(source, rubric, problems)
    elif not source.is_dir():
        problem = f"its name does not end in {' or '.join(SUFFIXES)}" if source.exists() else "does not exist"
        raise InputError(problem, where=str(source), fix=_FIX)
    elif dialogue_files(source):
        own, skipped = read_recordings(source, scenarios)
        problems += skipped
        yield from own
        return
    else:
        dialogues = read_dialogues_in(source, problems, rubric)
    for dialogue in dialogues:
        scenario = scenarios.get(dialogue.scenario)
        if scenario is None:
            problems.append(
                f"{source}: scenario '{dialogue.scenario}' was not found; its dialogues are skipped"
            )
            continue
        yield Recording(dialogue.model, _without_failed_calls(dialogue), scenario, rubric)


def _judged_turns(path: Path, rubric: Rubric, problems: list[str]) -> Iterator[Dialogue]:
    for number, line in enumerate(_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            yield _dialogue(parse_json(line), rubric, where)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = error.problem if isinstance(error, InputError) else repr(error)
            problems.append(f"{where}: not a judged dialogue ({problem}); skipped")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_regular(path) as raw:
            file = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise RecordError("a line is longer than 64 MiB", where=str(path), fix="Split the file")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(
            f"cannot be read ({error})", where=str(path), fix="Check that the file is whole"
        ) from None


def _dialogue(data: dict[str, Any], rubric: Rubric, where: str) -> Dialogue:
    turns = tuple(
        Turn(str(turn["user"]), Reply(str(turn["reply"])), _levels(turn.get("levels"), rubric))
        for turn in data["turns"]
    )
    start = tuple(float(x) for x in data["start"])
    if not turns or len(start) != len(rubric.axes):
        raise RecordError("no turns, or a start that does not fit the rubric", where=where)
    model, case = str(data["model"]), str(data["case"])
    return Dialogue(
        f"{model}/{case}",
        case,
        model,
        rubric.name,
        "published",
        {},
        start,
        turns,
        cast={"judge": str(data.get("judge") or "unknown")},
    )


def _levels(data: Any, rubric: Rubric) -> Levels | None:
    """Return a turn form; None if the turn is unjudged or one of its levels is missing."""
    if isinstance(data, dict) and data.keys() != set(rubric.keys):
        raise RecordError(f"judged on the axes {', '.join(data)}, not on {', '.join(rubric.keys)}")
    if data is None or any(_side(data, key, side)["level"] is None for key in rubric.keys for side in _SIDES):
        return None
    levels = {key: AxisMarks(*(_mark(_side(data, key, side)) for side in _SIDES)) for key in rubric.keys}
    rubric.step(levels)
    return levels


_SIDES = ("progress", "regression")


def _side(data: Any, key: str, side: str) -> dict[str, Any]:
    item: dict[str, Any] = data[key][side]
    return item


def _mark(item: dict[str, Any]) -> Mark:
    return Mark(item["level"], str(item.get("evidence", "")), str(item.get("reason", "")))


def _without_failed_calls(dialogue: Dialogue) -> Dialogue:
    """Return the dialogue with the judgements removed where a message is the text of a failed call."""
    turns = (
        replace(turn, levels=None) if is_call_failure(turn.user) or is_call_failure(turn.reply.text) else turn
        for turn in dialogue.turns
    )
    return replace(dialogue, turns=tuple(turns))
