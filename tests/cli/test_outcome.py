"""What `mapo train` says on the terminal, of outcomes made up for the purpose."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from mapo.cli.training.outcome import print_outcome
from mapo.runs.training import read_training
from mapo.scoring.score import score_dialogues
from mapo.store import read_dialogues
from support.report_runs import RUBRIC, group, saying, talk, training, write_lines


def outcome(before: list, after: list) -> SimpleNamespace:
    told = {"method": "mapo", "model": "pocket", "steps": 4, "dialogues": 32, "seconds": 9.0, "seed": 1}
    scores = [score_dialogues(name, own, RUBRIC) for name, own in (("before", before), ("after", after))]
    return SimpleNamespace(
        summary={**told, "chosen_step": 4},
        before=scores[0],
        after=scores[1],
        before_dialogues=before,
        after_dialogues=after,
    )


@pytest.fixture
def shown(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")

    def show(found: SimpleNamespace, caution: str = "") -> str:
        print_outcome(found, tmp_path, caution)
        return " ".join(capsys.readouterr().out.split())

    return show


def test_a_caution_is_said_with_and_without_a_test(shown):
    found = outcome([talk([0, 1])], [talk([1, 1])])
    assert "Beware of [it]." in shown(found, "Beware of [it].") and "Beware" not in shown(found)
    untested = outcome([], [])
    assert "Beware." in shown(untested, "Beware.") and "never trained on" not in shown(untested)


def test_the_difference_is_the_reports(shown, tmp_path):
    from mapo.report import build
    from mapo.report.document.blocks import StatTiles

    run = read_training(training(tmp_path / "mine", cases=8))
    told = shown(outcome(run.before, run.after))
    (tiles,) = (b for b in build([str(run.root)]).blocks if isinstance(b, StatTiles))
    tile = tiles.tiles[1]
    ends = tile.detail.partition(" (95 %)")[0]
    assert f"paired by scenario: {tile.value} EPM-Q, 95 % interval {ends} (8 scenarios)" in told
    few = shown(outcome([talk([0, 1])], [talk([1, 1])]))
    assert "EPM-Q (1 scenario)" in few and "nan" not in few
    apart = outcome([talk([0, 1], scenario="a")], [talk([1, 1], scenario="b")])
    assert "no paired difference" in shown(apart)


def test_a_pair_says_who_speaks_and_which_turns_are_shown(shown):
    before, after = talk([0] * 8), talk([1, None, 1])
    told = shown(outcome([before], [after]))
    assert "after 8 turns (first 2 and last 2 shown)" in told and "after 3 turns" in told
    assert "1. user: line 1" in told and "8. user: line 8" in told and "policy: reply 1" in told
    assert "line 3 " in told  # of the short dialogue
    assert "line 4" not in told and "line 6" not in told
    assert "reward: +10.00" in told and "reward: unscored" in told


def test_the_best_the_median_and_the_worst_dialogue_are_shown(shown):
    before = [talk([0, 0, 0], id=f"d{k}") for k in range(5)]
    after = [talk([k - 2] * 3, id=f"d{k}") for k in range(5)]
    told = shown(outcome(before, after))
    names = ("Best", "d4"), ("Median", "d2"), ("Worst", "d0")
    assert all(f"{name} test dialogue by gain: {own}," in told for name, own in names)
    assert "d1" not in told and "d3" not in told


def run_of(root, **kw) -> SimpleNamespace:
    run = read_training(training(root, **kw))
    return outcome(run.before, run.after)


def test_the_curve_has_training_and_validation_scores(shown, tmp_path):
    told = shown(run_of(tmp_path, steps=6))
    assert "* training dialogues: 21.0 (step 1), 26.0 (step 6)" in told
    assert "o validation (over *): 40.0 (step 3), 40.0 (step 6)" in told


@pytest.mark.parametrize("scripted", [True, False])
def test_reference_lines_hold_only_for_scripted_roles(shown, tmp_path, scripted):
    found = run_of(tmp_path, steps=1)
    cast = dict.fromkeys(("user", "director", "judge"), "scripted" if scripted else "a-model")
    for file in tmp_path.rglob("*.jsonl"):
        if file.name != "metrics.jsonl":
            dialogues = list(read_dialogues(file))
            write_lines(file, [replace(d, cast=cast) for d in dialogues])
    assert ("- honest helper 89" in shown(found)) is scripted


def test_one_turn_is_explained_also_without_a_test(shown, tmp_path):
    training(tmp_path, steps=1)
    told = shown(outcome([], []))
    assert "* training dialogues: 21.0 (step 1)" in told
    assert "How one turn was credited: turn 1 of 3 in training dialogue 1_3 (step 1)" in told
    assert "batch-level Its reward is" in told


def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    print_outcome(run_of(tmp_path, steps=300), tmp_path)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_text_of_models_cannot_steer_the_terminal(shown, tmp_path):
    found = run_of(tmp_path, steps=1)
    hostile = "\x1b[2J [bold]loud[/bold] [/]"
    write_lines(tmp_path / "dialogues" / "step_00001.jsonl", [saying(d, hostile) for d in group(1)])
    found.before_dialogues = [saying(d, hostile) for d in found.before_dialogues]
    told = shown(found)
    assert "\x1b" not in told and told.count("[bold]loud[/bold]") > 2


def test_a_run_without_credit_says_why(shown, tmp_path):
    found = run_of(tmp_path, steps=1)
    (tmp_path / "config.toml").unlink()
    assert "No turn's credit is explained: config.toml has no [advantage]" in shown(found)
