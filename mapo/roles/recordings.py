"""Recorded dialogues from any source: run directories, EMPA result files, and files of judged turns.

A file of judged turns has one JSON object per line: `model` (the policy), `case` (the scenario, or any name
of the person) and `turns`, each with `user`, `reply` and `levels` (None, or marks by axis and side). `id`,
`judge`, `start`, `threshold` and `language` may be left out. The file may be compressed (.jsonl.gz).

A judge that sees the conversation only (layout BRIEF) needs no scenarios: where the person of such a file is
unknown, a scenario without a story stands in, with the line's threshold and language.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from mapo.errors import InputError, RecordError
from mapo.judges.sample import Recording, dialogue_files, read_recordings
from mapo.measure.rubric import Rubric
from mapo.sandbox.faults.manners import is_call_failure
from mapo.scenarios.scenario import Grade, Persona, Scenario
from mapo.scoring.empa_files import read_dialogues_in
from mapo.store import MAX_LINE_BYTES
from mapo.types import AxisMarks, Dialogue, Levels, Mark, Reply, Turn
from mapo.untrusted import open_regular, parse_json

SUFFIXES = (".jsonl", ".jsonl.gz")
_FIX = (
    "Give run directories, folders of EMPA result files, or files of judged turns with --from, and their "
    "scenarios with --scenarios; only a judge trained with --brief needs no scenarios"
)


@dataclass(frozen=True, slots=True)
class Recordings:
    """The dialogues of all sources, and what was left out of them."""

    dialogues: tuple[Recording, ...]
    problems: tuple[str, ...]

    @property
    def rubric(self) -> Rubric:
        """The rubric of all dialogues."""
        return self.dialogues[0].rubric


def read_all(
    sources: Sequence[Path], scenarios: Mapping[str, Scenario], rubric: Rubric, *, brief: bool = False
) -> Recordings:
    """Read the dialogues of all sources that `rubric` can judge. Raise InputError if there are none. With
    `brief`, files of judged turns need no scenarios."""
    recordings: dict[str, Recording] = {}
    problems: list[str] = []
    for source in sources:
        for recording in _read(source, scenarios, rubric, problems, brief):
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
    source: Path, scenarios: Mapping[str, Scenario], rubric: Rubric, problems: list[str], brief: bool
) -> Iterator[Recording]:
    found: Iterable[tuple[Dialogue, Scenario | None]]
    if source.name.endswith(SUFFIXES):
        found = _judged_turns(source, scenarios, rubric, problems, brief)
    elif not source.is_dir():
        problem = f"its name does not end in {' or '.join(SUFFIXES)}" if source.exists() else "does not exist"
        raise InputError(problem, where=str(source), fix=_FIX)
    elif dialogue_files(source):
        own, skipped = read_recordings(source, scenarios)
        problems += skipped
        yield from own
        return
    else:
        found = ((d, scenarios.get(d.scenario)) for d in read_dialogues_in(source, problems, rubric))
    for dialogue, scenario in found:
        if scenario is None:
            problems.append(
                f"{source}: scenario '{dialogue.scenario}' was not found; its dialogues are skipped"
            )
            continue
        yield Recording(dialogue.model, _without_failed_calls(dialogue), scenario, rubric)


def _judged_turns(
    path: Path, scenarios: Mapping[str, Scenario], rubric: Rubric, problems: list[str], brief: bool
) -> Iterator[tuple[Dialogue, Scenario | None]]:
    for number, line in enumerate(_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            data = parse_json(line)
            dialogue = _dialogue(data, rubric, where)
            known = scenarios.get(dialogue.scenario)
            yield dialogue, _person(data, dialogue, known) if brief else known
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
    start = tuple(float(x) for x in data["start"]) if "start" in data else _middle(rubric)
    if not turns or len(start) != len(rubric.axes):
        raise RecordError("no turns, or a start that does not fit the rubric", where=where)
    model, case = str(data["model"]), str(data["case"])
    return Dialogue(
        str(data.get("id") or f"{model}/{case}"),
        case,
        model,
        rubric.name,
        "published",
        {},
        start,
        turns,
        cast={"judge": str(data.get("judge") or "unknown")},
    )


def _middle(rubric: Rubric) -> tuple[float, ...]:
    """Return a start position for dialogues that have none: the middle level of every indicator."""
    return rubric.start({item.key: len(item.deficit) // 2 for item in rubric.indicators})


def _person(data: dict[str, Any], dialogue: Dialogue, known: Scenario | None) -> Scenario:
    """Return the scenario of a dialogue with the threshold and language of its line; one without a story if
    it is not known."""
    first = dialogue.turns[0].user
    scenario = known or Scenario(dialogue.scenario, Persona(dialogue.scenario), "", first)
    threshold = data.get("threshold", scenario.threshold)
    if threshold not in get_args(Grade):
        raise RecordError(f"the threshold is {threshold!r}, not one of {', '.join(get_args(Grade))}")
    language = str(data.get("language", scenario.language))
    return replace(scenario, threshold=threshold, language=language, domain=dialogue.rubric)


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
