"""What `mapo train` says on the terminal, of outcomes made up for the purpose."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mapo.cli.training.outcome import print_outcome
from mapo.runs.training import read_training
from mapo.scoring.score import score_dialogues
from support.report_runs import RUBRIC, talk, training


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


def test_the_pair_says_who_speaks_and_how_much_of_it_is_shown(shown):
    before, after = talk([0] * 8), talk([1, None, 1])
    told = shown(outcome([before], [after]))
    assert "after 8 turns (first 6 of 8 turns)" in told and "of 3 turns" not in told
    assert "user: line 1" in told and "policy: reply 1" in told and "line 7" not in told
    assert "reward: +10.00" in told and "reward: unscored" in told
