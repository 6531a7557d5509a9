"""Judges that are read out in the viewer: probabilities of levels, and reasons written afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo import Rubric
from mapo.judges.explain import Explanation, turn_key, write_explanation
from mapo.store import JsonlWriter, RunDir
from mapo.types import AxisMarks, Mark
from support.view_runs import talk, training, write_lines

RUBRIC = Rubric.load("empathy")
PAGE = "/run/first/d/dialogues:step_00002.jsonl/1"
PROBABILITIES = ((0.1, 0.7, 0.2), (0.8, 0.2, 0.0)) * 3


def read_out(name: str, probabilities=PROBABILITIES):
    """A dialogue whose levels were read out: probabilities, and no reasons."""
    dialogue = talk(RUBRIC, name, step=2, cast={"judge": "local:my judge (readout)"})
    turns = tuple(
        replace(
            turn,
            probabilities=probabilities,
            levels={
                key: AxisMarks(Mark(marks.progress.level), Mark(marks.regression.level))
                for key, marks in turn.levels.items()
            },
        )
        for turn in dialogue.turns
    )
    return replace(dialogue, turns=turns)


@pytest.fixture
def run(root, index):
    folder = training(root, steps=1)
    odd = read_out("b_1", ((5.0, -3.0), (0.5,) * 40))
    write_lines(folder / "dialogues" / "step_00002.jsonl", [read_out("a_1"), odd])
    index.refresh()
    return folder


@pytest.mark.usefixtures("run")
def test_the_probabilities_of_each_mark_are_shown(client):
    page = client.get(PAGE).text
    assert page.count('class="chances up"') == page.count('class="chances down"') == 3 * 4
    assert "level 0: 10 %, level 1: 70 %, level 2: 20 %" in page


@pytest.mark.usefixtures("run")
def test_probabilities_that_make_no_sense_do_not_break_the_page(client):
    answer = client.get(PAGE.replace("/1", "/2"))
    assert answer.status_code == 200
    assert "level 0: 100 %, level 1: 0 %" in answer.text
    assert "level 10" not in answer.text


@pytest.mark.usefixtures("run")
def test_the_page_names_the_command_that_writes_reasons(client):
    page = client.get(PAGE).text
    assert "mapo judge explain" in page
    assert "--dialogue a_1" in page


def test_reasons_written_afterwards_are_shown_and_escaped(run, client):
    dialogue = read_out("a_1")
    with JsonlWriter(RunDir(run).explanations) as writer:
        for number, turn in enumerate(dialogue.turns, 1):
            levels = {
                key: AxisMarks(replace(marks.progress, reason=f"<b>why {number}</b>"), marks.regression)
                for key, marks in turn.levels.items()
            }
            write_explanation(
                writer, Explanation(turn_key(dialogue, number), "a_1", number, "<i>big</i>", levels)
            )
    page = client.get(PAGE).text
    assert "&lt;b&gt;why 4&lt;/b&gt;" in page
    assert "&lt;i&gt;big&lt;/i&gt;" in page
    assert "<b>why" not in page
    assert "mapo judge explain" not in page


def test_a_damaged_file_of_explanations_is_reported(run, client):
    RunDir(run).explanations.write_text("[]\n", encoding="utf-8")
    assert "not an explanation" in client.get(PAGE).text


def test_a_page_without_readout_says_nothing_about_it(root, index, client):
    training(root, steps=1)
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00001.jsonl/1").text
    assert "chances" not in page
    assert "judge explain" not in page
