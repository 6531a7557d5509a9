"""Agreement of two judges over the latest spot checks, its limit, and the window after a resume."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo import Rubric
from mapo.scoring.spot_checks import CheckWindow, agreement, checked_turns, is_form, restored_window
from mapo.store import JsonlWriter, RunDir
from mapo.types import Dialogue
from support.builders import dialogue, marks

RUBRIC = Rubric.load("empathy")
SAME = {1: (1, 0) * 3, 2: (2, 0) * 3, 0: (0, 0) * 3}


def checked(name: str, levels: list[int], checks: list[tuple[int, ...] | str | None], **kw) -> Dialogue:
    """A dialogue with these progress levels and checks; a string is the reason of a failed one."""
    made = dialogue(RUBRIC, [marks(RUBRIC, level) for level in levels], id=name, **kw)
    turns = (
        replace(turn, **({"unchecked": check} if isinstance(check, str) else {"check": check}))
        for turn, check in zip(made.turns, checks, strict=True)
    )
    return replace(made, turns=tuple(turns))


def agreeing(n: int, *, lying: bool = False) -> list[Dialogue]:
    """n dialogues of two checked turns, of which the second judge says the same or the opposite."""
    checks = [SAME[2], SAME[0]] if lying else [SAME[0], SAME[2]]
    return [checked(f"d{i:03d}", [0, 2], checks) for i in range(n)]


def test_equal_judges_agree_completely():
    found = agreement(checked_turns(agreeing(10), RUBRIC), RUBRIC)
    assert (found.answered, found.kappa, found.difference) == (20, 1.0, 0.0)
    assert found.correlation == pytest.approx(1.0)
    mixed = [*agreeing(10), *(replace(d, id=f"e{d.id}") for d in agreeing(10, lying=True))]
    wide = agreement(checked_turns(mixed, RUBRIC), RUBRIC)
    assert wide.kappa == pytest.approx(0.0)
    assert wide.low < 0 < wide.high


def test_opposite_judges_by_hand():
    # progress: observed (0-2)^2 = 4 in every turn, expected 4 / 2 = 2; regression never varies
    found = agreement(checked_turns(agreeing(10, lying=True), RUBRIC), RUBRIC)
    assert found.kappa == pytest.approx(-1.0)
    assert found.correlation == pytest.approx(-1.0)
    step = RUBRIC.step(marks(RUBRIC, 2))
    assert found.difference == pytest.approx(sum(map(abs, step)) / 3)


def test_nothing_answered_is_no_agreement():
    turns = checked_turns([checked("d", [1], ["gone"])], RUBRIC)
    assert agreement(turns, RUBRIC).as_json() == {
        "answered": 0,
        "kappa": None,
        "low": None,
        "high": None,
        "difference": None,
        "correlation": None,
    }


def test_only_turns_that_both_could_judge_count():
    made = checked("d", [1, 1, 1], [SAME[1], None, "gone"])
    unscored = replace(made.turns[0], levels=None)
    foreign = [(9, 9) * 3, (1, 0), (1, 0, 1, 0, 1, 1)]
    odd = [replace(made.turns[0], check=check) for check in foreign]
    talk = replace(made, turns=(*made.turns, unscored, *odd))
    found = checked_turns([talk, replace(made, id="e", error="broken")], RUBRIC)
    assert [(turn.dialogue, turn.check) for turn in found] == [("d", SAME[1]), ("d", None)]


def test_marks_of_this_rubric():
    assert is_form((2, -2) * 3, RUBRIC)
    assert not is_form((2, 1) * 3, RUBRIC)
    assert not is_form((), RUBRIC)


def test_the_metrics_of_a_step():
    window = CheckWindow(40, RUBRIC)
    assert window.add([checked("d", [1], [None])]) == {}
    line = window.add([*agreeing(3), checked("x", [1], ["gone"])])
    assert (line["asked"], line["answered"], line["window"]["answered"]) == (7, 6, 6)
    assert window.last_error == "gone"


def test_the_window_forgets_the_oldest_checks():
    window = CheckWindow(20, RUBRIC)
    window.add(agreeing(20, lying=True))
    assert window.agreement().kappa == pytest.approx(-1.0)
    window.add(agreeing(10))
    assert window.agreement().kappa == 1.0


def test_agreement_below_the_limit_is_an_error():
    window = CheckWindow(40, RUBRIC)
    window.add(agreeing(19, lying=True))
    assert window.disagreement(0.5, "run") is None  # not full yet
    window.add(agreeing(1, lying=True))
    assert window.disagreement(None, "run") is None
    assert window.disagreement(-1.0, "run") is None
    assert "kappa of -1.00 over 40 turns, below the limit of 0.5" in str(window.disagreement(0.5, "run"))


def test_a_window_of_failed_checks_is_an_error_only_with_a_limit():
    window = CheckWindow(20, RUBRIC)
    window.add([checked(f"d{i}", [1], ["gone"]) for i in range(20)])
    assert window.disagreement(None, "run") is None
    problem = "only 0 of the last 20 spot checks were answered, last error: gone"
    assert problem in str(window.disagreement(-1.0, "run"))


def test_judges_that_never_vary_are_not_below_a_limit():
    window = CheckWindow(20, RUBRIC)
    window.add([checked(f"d{i:02d}", [1], [SAME[1]]) for i in range(20)])
    assert window.agreement().kappa is None
    assert window.disagreement(0.9, "run") is None


def test_a_resumed_run_has_the_window_it_had(tmp_path):
    run, window = RunDir(tmp_path), CheckWindow(30, RUBRIC)
    for step in range(1, 5):
        dialogues = agreeing(4, lying=step % 2 == 0)
        window.add(dialogues)
        first, second = JsonlWriter(run.dialogues_of(step)), JsonlWriter(run.dialogues_of(step, 1))
        with first, second:
            first.write_dialogue(replace(dialogues[0], error="broken"))  # it was played again
            for n, each in enumerate(reversed(dialogues)):
                (first if n % 2 else second).write_dialogue(each)
    with open(run.dialogues_of(4), "ab") as file:
        file.write(b'{"torn')
    assert list(restored_window(run, 4, 30, RUBRIC).turns) == list(window.turns)
    assert len(restored_window(run, 2, 30, RUBRIC).turns) == 16
    assert len(restored_window(run, 0, 30, RUBRIC).turns) == 0
