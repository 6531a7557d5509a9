"""Reasons for recorded levels, written on demand: fixed levels, a file beside the run, untrusted lines."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo.errors import AnswerError
from mapo.judges.explain import (
    explain,
    read_explanations,
    turn_key,
    unexplained,
    write_explanation,
)
from mapo.judges.sample import RecordedTurn, Recording
from mapo.measure.rubric import Rubric
from mapo.store import JsonlWriter, RunDir
from mapo.types import Mark
from support.builders import dialogue
from support.roles import Told, boat_shed

EMPATHY = Rubric.load("empathy")
LEVELS = EMPATHY.levels(C=(1, 0), A=(2, -1))


def recorded(number: int = 2) -> RecordedTurn:
    played = dialogue(EMPATHY, [EMPATHY.levels(), LEVELS])
    return RecordedTurn(Recording("run", played, boat_shed(), EMPATHY), number)


def form(levels, reason: str = "because") -> str:
    return json.dumps(
        {
            key: {
                side: {"level": getattr(marks, side).level, "evidence": "Mm.", "reason": reason}
                for side in ("progress", "regression")
            }
            for key, marks in levels.items()
        }
    )


def explained(chat, turn=None):
    return asyncio.run(explain(turn or recorded(), chat, "big"))


def test_levels_stay_and_get_reasons():
    explanation = explained(Told(form(LEVELS)))
    assert explanation.levels["A"].progress == Mark(2, "Mm.", "because")
    assert explanation.levels["A"].regression.level == -1


def test_the_schema_and_the_question_fix_the_levels():
    chat = Told(form(LEVELS))
    explained(chat)
    [request] = chat.requests
    mark = request.schema["properties"]["A"]["properties"]["regression"]
    assert mark["properties"]["level"]["enum"] == [-1]
    assert next(iter(mark["properties"])) == "level"
    assert "A progress 2, A regression -1" in request.messages[-1].content


def test_other_levels_are_asked_for_again_and_then_refused():
    other = form(EMPATHY.levels(C=(2, 0), A=(2, -1)))
    assert explained(Told(other, form(LEVELS))).levels["C"].progress.level == 1
    with pytest.raises(AnswerError, match="C.progress.level: the level is 2, not 1"):
        explained(Told(other, other, other))


def test_explanations_are_kept_beside_the_run_and_the_latest_counts(tmp_path):
    file = RunDir(tmp_path).explanations
    for reason in ("first", "second"):
        with JsonlWriter(file) as writer:
            write_explanation(writer, explained(Told(form(LEVELS, reason))))
    explanations, problems = read_explanations(tmp_path)
    assert problems == []
    [explanation] = explanations.values()
    assert explanation.levels["C"].progress.reason == "second"
    assert explanation.key == turn_key(recorded().recording.dialogue, 2)


def test_a_run_without_explanations_has_none(tmp_path):
    assert read_explanations(tmp_path) == ({}, [])


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"schema": "mapo.explanation/1", "key": 1}',
        '{"key": "k", "dialogue": "d", "turn": 1, "judge": "j", "levels": {"C": {"progress": 1}}}',
        "not JSON",
    ],
)
def test_lines_that_are_no_explanations_are_skipped(tmp_path, line):
    RunDir(tmp_path).explanations.write_text(line + "\n", encoding="utf-8")
    explanations, problems = read_explanations(tmp_path)
    assert explanations == {}
    assert "not an explanation" in problems[0]


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("mapo.judges.explain.MAX_BYTES", 3)
    RunDir(tmp_path).explanations.write_text("{}\n\n", encoding="utf-8")
    assert "not read" in read_explanations(tmp_path)[1][0]


def test_the_key_changes_with_the_conversation_and_the_levels():
    one = recorded().recording.dialogue
    said = replace(one.turns[0], user="Something else.")
    other_levels = replace(one.turns[1], levels=EMPATHY.levels())
    keys = {
        turn_key(one, 1),
        turn_key(one, 2),
        turn_key(replace(one, turns=(said, one.turns[1])), 2),
        turn_key(replace(one, turns=(one.turns[0], other_levels)), 2),
    }
    assert len(keys) == 4


def test_only_judged_turns_without_reasons_are_left_to_explain():
    turns = [recorded(1), recorded(2)]
    assert unexplained(turns, {}) == turns
    known = explained(Told(form(LEVELS)))
    assert unexplained(turns, {known.key: known}) == turns[:1]
    with_reasons = replace(turns[0].history[0], levels=known.levels)
    unjudged = replace(turns[0].history[0], levels=None)
    for turn in (with_reasons, unjudged):
        recording = replace(turns[0].recording, dialogue=replace(turns[0].recording.dialogue, turns=(turn,)))
        assert unexplained(recording.turns, {}) == []
