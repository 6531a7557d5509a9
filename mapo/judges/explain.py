"""Evidence and reasons for recorded levels, written on demand: `explanations.jsonl` beside a run.

A judge whose levels are read out gives no reasons. A model is asked for them afterwards, with the levels
fixed. Explanations are another model's reading of a judgement, or the same model's after the fact: they did
not lead to the levels. The run's records never change. An explanation names its turn by a hash of the
conversation and the levels, so that one of another turn is never shown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mapo.errors import AnswerError, MapoError
from mapo.judges.sample import RecordedTurn
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Sampling
from mapo.sandbox.judge import ModelJudge
from mapo.store import BadLine, JsonlWriter, RunDir, read_jsonl
from mapo.types import Dialogue, Levels, record

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_BYTES = 64 << 20
"""Longer files are not read."""


@record
class Explanation:
    """The explained turn form of one reply; `dialogue` and `turn` are for readers, `key` is what counts."""

    key: str
    dialogue: str
    turn: int
    judge: str
    levels: Levels
    schema: Literal["mapo.explanation/1"] = "mapo.explanation/1"


def turn_key(dialogue: Dialogue, number: int) -> str:
    """Return a hash of the conversation up to turn `number`, counted from 1, and of that turn's levels."""
    turns = dialogue.turns[:number]
    levels = {
        key: (marks.progress.level, marks.regression.level) for key, marks in (turns[-1].levels or {}).items()
    }
    content = [dialogue.scenario, [(turn.user, turn.reply.text) for turn in turns], levels]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def unexplained(turns: Sequence[RecordedTurn], known: dict[str, Explanation]) -> list[RecordedTurn]:
    """Return the judged turns that have no reasons, neither in the record nor among `known`."""
    return [
        turn
        for turn in turns
        if (levels := turn.history[-1].levels) is not None
        and not any(mark.reason for marks in levels.values() for mark in (marks.progress, marks.regression))
        and turn_key(turn.recording.dialogue, turn.number) not in known
    ]


async def explain(
    turn: RecordedTurn, chat: Chat, name: str, sampling: Sampling = DEFAULT_SAMPLING
) -> Explanation:
    """Have a model explain the levels of a judged turn. Raises AnswerError or EndpointError on failure."""
    recording, history = turn.recording, turn.history
    dialogue, levels = recording.dialogue, history[-1].levels or {}
    session = f"explain/{turn.id}"
    judge = ModelJudge(
        chat, recording.scenario, recording.rubric, dialogue.seed or 0, session, sampling=sampling
    )
    explained = await judge.explain(history, levels)
    if not any(mark.reason for marks in explained.values() for mark in (marks.progress, marks.regression)):
        raise AnswerError("the model wrote no reasons", where=name, fix="Use a larger model")
    return Explanation(turn_key(dialogue, turn.number), dialogue.id, turn.number, name, explained)


def write_explanation(writer: JsonlWriter, explanation: Explanation) -> None:
    """Append an explanation to the file of a run."""
    writer.write(_adapter().dump_python(explanation, mode="json"))


def read_explanations(root: Path) -> tuple[dict[str, Explanation], list[str]]:
    """Return the explanations of a run by `turn_key`, the latest of each, and problems of the file."""
    file = RunDir(root).explanations
    try:
        if not file.is_file():
            return {}, []
        if file.stat().st_size > MAX_BYTES:
            return {}, [f"{file}: larger than {MAX_BYTES >> 20} MB, so it is not read"]
        lines = list(read_jsonl(file))
    except (OSError, MapoError) as error:
        return {}, [str(error)]
    explanations, problems = {}, []
    for line in lines:
        try:
            if isinstance(line, BadLine):
                raise ValueError(line)
            explanation = _adapter().validate_python(line)
            explanations[explanation.key] = explanation
        except ValueError:
            problems.append(f"{file}: a line is not an explanation and is skipped")
    return explanations, list(dict.fromkeys(problems))


@lru_cache
def _adapter() -> TypeAdapter[Explanation]:
    from pydantic import TypeAdapter

    return TypeAdapter(Explanation)
