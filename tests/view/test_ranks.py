"""Scores of a ranking judge, and users who left, in the viewer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo import Rubric
from mapo.types import Ending, StopReason
from support.view_runs import talk, training, write_lines

RUBRIC = Rubric.load("empathy")


@pytest.fixture
def ranked(root, index):
    """A run whose second step has a dialogue that was ranked and left by its user."""
    run = training(root, steps=1)
    dialogue = talk(RUBRIC, "a_1", step=2)
    first, *others = dialogue.turns
    turns = (replace(first, rank=0.7, reward=0.2), *others)
    left = replace(dialogue, turns=turns, ending=Ending(StopReason.USER))
    write_lines(run / "dialogues" / "step_00002.jsonl", [left])
    index.refresh()


@pytest.mark.usefixtures("ranked")
def test_a_turn_shows_its_score_among_the_siblings(client):
    page = client.get("/run/first/d/dialogues:step_00002.jsonl/1").text
    assert page.count("Rank score") == 1 and "0.70" in page
    assert '<span class="ending user">user left</span>' in page


@pytest.mark.usefixtures("ranked")
def test_dialogues_are_filtered_by_users_who_left(client):
    assert "1 dialogue;" in client.get("/dialogues?ending=user").text
