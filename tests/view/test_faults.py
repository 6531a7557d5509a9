"""Faults and spot checks in the viewer: badges, the filter, failed dialogues, levels, charts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mapo import Rubric
from support.view_runs import metrics_line, talk, training, write_lines

RUBRIC = Rubric.load("empathy")


def with_faults(dialogue, *faults):
    turns = tuple(replace(turn, faults=faults if i == 0 else ()) for i, turn in enumerate(dialogue.turns))
    return replace(dialogue, turns=turns)


@pytest.fixture
def faulty(root, index):
    """A run whose second step has two dialogues with faults, one of them foreign."""
    run = training(root, steps=1)
    dialogues = [
        with_faults(talk(RUBRIC, "a_1", step=2), "user: repeats itself", "policy: cut off"),
        with_faults(talk(RUBRIC, "b_1", step=2), "judge: failed"),
        with_faults(talk(RUBRIC, "c_1", step=2), "<script>alert(1)</script>"),
    ]
    write_lines(run / "dialogues" / "step_00002.jsonl", dialogues)
    index.refresh()


@pytest.mark.usefixtures("faulty")
def test_the_list_is_filtered_by_the_role_at_fault(client):
    assert "2 dialogues" in client.get("/dialogues?fault=any").text
    user = client.get("/dialogues?fault=user").text
    assert "1 dialogue;" in user
    assert "a_1" in user
    assert "0 dialogues" in client.get("/dialogues?fault=director").text
    assert "0 dialogues" in client.get("/dialogues?fault=%22%3E%3Cb%3E").text


@pytest.mark.usefixtures("faulty")
def test_turns_have_badges_and_foreign_faults_are_escaped(client):
    page = client.get("/run/first/d/dialogues:step_00002.jsonl/1").text
    assert "user: repeats itself" in page
    assert "policy: cut off" in page
    foreign = client.get("/run/first/d/dialogues:step_00002.jsonl/3").text
    assert "<script>alert(1)" not in foreign
    assert "&lt;script&gt;alert(1)" in foreign


@pytest.mark.usefixtures("faulty")
def test_the_run_says_whose_fault_failed_dialogues_were(client):
    page = client.get("/run/first").text
    assert "Failed dialogues by the role at fault" in page
    row = page[page.index("Failed dialogues by the role at fault") :]
    assert '>1 <span class="quiet">11 %</span>' in row  # the user's, of nine failed training dialogues


def test_a_run_without_recorded_faults_has_no_such_table(root, index, client):
    training(root)
    index.refresh()
    assert "by the role at fault" not in client.get("/run/first").text


def test_the_chart_of_faults(root, index, client):
    run = training(root)
    lines = [
        {**metrics_line(step), "faults": {"turns": {"user": 0.1 * step}}, "masked_faults": 0.1}
        for step in (1, 2)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    index.refresh()
    figures = client.get("/api/figures?run=first").json()
    assert [trace["y"] for trace in figures["faults"]["data"]] == [[0.1, 0.2], [0.1, 0.1]]


def test_no_chart_where_no_user_was_at_fault(root, index, client):
    training(root)
    index.refresh()
    assert "faults" not in client.get("/api/figures?run=first").json()


def test_the_levels_of_the_second_judge_stand_beside_those_of_the_first(root, index, client):
    run = training(root, steps=1)
    talked = talk(RUBRIC, "a_1", step=2, cast={"check": "<i>second</i>"})
    first, second, third, *rest = talked.turns
    turns = (
        replace(first, check=(2, -1) * 3),
        replace(second, unchecked="<b>timeout</b>"),
        replace(third, check=(9,)),  # not of this rubric
        *rest,
    )
    write_lines(run / "dialogues" / "step_00002.jsonl", [replace(talked, turns=turns)])
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00002.jsonl/1").text
    assert page.count('title="The judge of spot checks"') == 6
    assert "&lt;i&gt;second&lt;/i&gt;" in page
    assert "The spot check failed" in page
    assert "<b>timeout" not in page


def test_the_chart_of_agreement(root, index, client):
    run = training(root)
    window = {"answered": 30, "kappa": 0.5, "low": 0.4, "high": 0.6, "difference": 0.3, "correlation": 0.7}
    lines = [
        {**metrics_line(step), "check": {"asked": 10, "answered": 9, "window": window}} for step in (1, 2)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    index.refresh()
    band, kappa, correlation = client.get("/api/figures?run=first").json()["check"]["data"]
    assert band["y"] == [0.6, 0.6, 0.4, 0.4]
    assert (kappa["y"], correlation["y"]) == ([0.5, 0.5], [0.7, 0.7])


@pytest.mark.parametrize("check", [3, {"window": []}, {"window": {"kappa": "high"}}])
def test_foreign_metrics_of_checks_are_ignored(root, index, client, check):
    run = training(root)
    (run / "metrics.jsonl").write_text(json.dumps({**metrics_line(1), "check": check}) + "\n")
    index.refresh()
    assert "check" not in client.get("/api/figures?run=first").json()


def test_a_masked_turn_has_no_credit_on_its_page(root, index, client):
    run = training(root, steps=1, advantage="mask_faults = true")
    siblings = [talk(RUBRIC, f"a_{k}", step=2, group="a") for k in (1, 2, 3)]
    siblings[0] = with_faults(siblings[0], "user: repeats itself")
    write_lines(run / "dialogues" / "step_00002.jsonl", siblings)
    index.refresh()
    first, second = (client.get(f"/run/first/d/dialogues:step_00002.jsonl/{n}").text for n in (1, 2))
    assert first.count("masked in the loss") == 1
    assert "masked in the loss" not in second
