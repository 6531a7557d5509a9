"""The report's sections about faults of the roles and about spot checks."""

from __future__ import annotations

import json
from dataclasses import replace

from mapo.report.sections.faults import faults
from mapo.report.sections.spot_checks import spot_checks
from mapo.runs.training import read_training
from mapo.show.figures import Picture
from mapo.show.tables import Table
from support.report_runs import group, step, training, write_lines


def test_a_run_without_recorded_faults_has_no_section(tmp_path):
    assert faults(read_training(training(tmp_path / "run"))) == []


def test_failed_dialogues_faults_and_masked_turns_are_shown(tmp_path):
    out = training(tmp_path / "run", steps=2)
    for number in (1, 2):
        first, *rest = group(number)
        turns = tuple(replace(turn, faults=("user: repeats itself",)) for turn in first.turns)
        write_lines(out / "dialogues" / f"step_{number:05d}.jsonl", [replace(first, turns=turns), *rest])
    lines = [step(n, faults={"turns": {"user": 0.25, "judge": 0.0}}, masked_faults=0.2) for n in (1, 2)]
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, failed, kinds, picture = faults(read_training(out))
    assert isinstance(failed, Table)
    assert isinstance(kinds, Table)
    assert isinstance(picture, Picture)
    trained = next(row for row in kinds.rows if row[0] == "user: repeats itself")
    assert trained[1 + list(kinds.columns[1:]).index("training")] == "25.0 %"
    assert "not trained" in picture.caption


def test_a_run_without_spot_checks_has_no_section(tmp_path):
    assert spot_checks(read_training(training(tmp_path / "run"))) == []


def test_agreement_differences_and_answers_are_drawn(tmp_path):
    out = training(tmp_path / "run", steps=2)
    window = {"answered": 30, "kappa": 0.5, "low": 0.4, "high": 0.6, "difference": 0.3, "correlation": 0.7}
    lines = [
        step(1, check={"asked": 10, "answered": 9, "window": window}),
        step(2, check={"asked": 0, "answered": 0, "window": {}}),
    ]
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, picture = spot_checks(read_training(out))
    assert isinstance(picture, Picture)
    assert [panel.title for panel in picture.panels] == ["Agreement", "Difference", "Answered checks"]
