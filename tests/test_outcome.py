"""What `mapo train` says on the terminal, of outcomes made up for the purpose."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from report_runs import RUBRIC, talk

from mapo.cli.outcome import print_outcome
from mapo.evals.score import score_dialogues


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
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def show(found: SimpleNamespace, caution: str = "") -> str:
        print_outcome(found, caution)
        return " ".join(capsys.readouterr().out.split())

    return show


def test_a_caution_is_said_with_and_without_a_test(shown):
    found = outcome([talk([0, 1])], [talk([1, 1])])
    assert "Beware of [it]." in shown(found, "Beware of [it].") and "Beware" not in shown(found)
    untested = outcome([], [])
    assert "Beware." in shown(untested, "Beware.") and "never trained on" not in shown(untested)
