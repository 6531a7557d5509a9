"""Reward per axis and regression, over steps and before and after."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mapo.report import build
from mapo.report.document.page import html_page
from mapo.report.sections.movement import movement_by_step
from mapo.runs.training import read_training
from mapo.show.figures import Picture
from mapo.show.tables import Table
from support import view_runs


def panels(run):
    return {
        panel.title: panel
        for block in movement_by_step(run)
        if isinstance(block, Picture)
        for panel in block.panels
    }


def drawn(panel):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    panel.draw(axes)
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    pyplot.close(figure)
    return lines


@pytest.mark.figures
def test_recorded_metrics_are_drawn_with_regression_as_a_line_of_its_own(tmp_path):
    run = read_training(view_runs.training(tmp_path, steps=2))
    recorded = [
        {
            "step": k,
            "axis_rewards": {"C": k, "A": 2.0, "P": "x"},
            "regression": -0.5 * k,
            "regressed": 0.1 * k,
        }
        for k in (1, 2)
    ]
    found = panels(replace(run, steps=recorded))
    lines = drawn(found["Reward per axis, and regression"])
    assert lines == {"C": [1, 2], "A": [2.0, 2.0], "regression": [-0.5, -1.0]}
    assert list(drawn(found["Turns with regression"]).values()) == [[0.1, 0.2]]


@pytest.mark.figures
def test_runs_of_earlier_versions_are_measured_from_their_dialogues(tmp_path):
    run = read_training(view_runs.training(tmp_path, steps=2))
    lines = drawn(panels(run)["Reward per axis, and regression"])
    assert set(lines) == {"C", "A", "P", "regression"}
    turns = [turn for d in run.played[1] for turn in d.turns]
    down = {key: [t.levels[key].regression.level for t in turns] for key in "CAP"}  # level -1 is worth -2
    wanted = sum(2 * level for levels in down.values() for level in levels) / len(turns)
    assert lines["regression"][0] == pytest.approx(wanted)


def test_records_that_do_not_fit_are_left_out(tmp_path):
    root = view_runs.training(tmp_path, steps=2)
    file = root / "dialogues" / "step_00001.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["start"] = line["start"][:2]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert panels(read_training(root))


def test_the_report_has_movement_before_and_after(tmp_path):
    report = build([str(view_runs.training(tmp_path))])
    at = next(i for i, block in enumerate(report.blocks) if getattr(block, "text", "") == "Movement per axis")
    table = report.blocks[at + 1]
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["before", "after"]
    assert list(table.columns[1:]) == ["C", "A", "P", "regression", "turns with regression"]


@pytest.mark.parametrize("method", ["mapo", "gigpo", "gdpo", "mt_grpo"])
def test_credit_is_reported_for_methods_with_needs_and_says_how_dialogues_are_continued(tmp_path, method):
    root = view_runs.training(tmp_path, steps=1, method=method, advantage='endings = "continued"')
    page = html_page(build([str(root)]))
    assert "fig_return_by_turn" in page
    assert "dialogues that ended are continued at their pace to the length of their longest sibling" in page


def test_what_cannot_be_credited_says_why(tmp_path):
    root = view_runs.training(tmp_path, steps=1, method="gdpo")
    file = root / "dialogues" / "step_00001.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "rubric": "unknown"}) + "\n" for line in lines))
    page = html_page(build([str(root)]))
    assert "Returns and credit are not available: the method &#39;gdpo&#39; needs the rubric" in page


def test_the_caption_says_that_the_last_reward_is_held(tmp_path):
    root = view_runs.training(tmp_path, steps=1, advantage='endings = "held"')
    assert "continued at their last reward to the length" in html_page(build([str(root)]))
