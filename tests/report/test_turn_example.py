"""The explained turn: its numbers are those of the estimator, with the run's own settings."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mapo.advantage import METHODS
from mapo.credit import compute_credit
from mapo.report.turn_example import turn_example
from mapo.runs.training import read_training
from mapo.show.numbers import signed
from support.report_runs import RUBRIC, group, saying, talk, training, write_lines


def lines_of(run) -> dict[str, str]:
    return dict(turn_example(run).lines)


def test_the_largest_advantage_of_the_last_step_is_explained(tmp_path):
    run = read_training(training(tmp_path / "run", steps=2))
    example = turn_example(run)
    lines = dict(example.lines)
    # Returns at turn 1, with discount 0.5: 15, 7.5, 15, -2.5. The last one is furthest from the mean.
    assert example.title == "turn 1 of 3 in training dialogue 2_3 (step 2)"
    assert lines["reward"] == "0.00. 3 siblings earned +10.00, 0.00, +10.00 at turn 1."
    assert lines["return"].startswith("−2.50: ") and "had +15.00, +7.50, +15.00" in lines["return"]
    returns = np.array([15, 7.5, 15, -2.5])
    turn = (-2.5 - returns.mean()) / returns.std()
    assert "mean return of +8.75 (standard deviation 7.18)" in lines["turn-level"]
    assert lines["turn-level"].endswith(f"Result: {signed(turn)}.")
    rewards = np.array([10, 10, 0, 0, 10, 10, 10, 20, 0, 0, -10.0])  # of all scored turns
    batch = (0 - rewards.mean()) / rewards.std()
    assert lines["batch-level"].endswith(f"Result: {signed(batch)}.")
    assert lines["mix"].endswith(f"= {signed(0.5 * turn + 0.5 * batch)}")
    assert "less likely" in lines["effect"]


def played(root, *plans):
    """A run of one step with these siblings."""
    training(root, steps=1)
    siblings = [talk(p, id=f"1_{i}", scenario="s", group="1_s", step=1) for i, p in enumerate(plans)]
    write_lines(root / "dialogues" / "step_00001.jsonl", siblings)
    return read_training(root), siblings


def test_the_movement_is_that_of_the_recorded_states(tmp_path):
    run, (first, _) = played(tmp_path, [0, 1, 0], [0, -1, 0])
    before, after = (turn.state.distance for turn in first.turns[:2])
    words = f"moved the person {before - after:.2f} closer to the goal (distance {before:.2f} before"
    assert words in lines_of(run)["movement"]
    still, _ = played(tmp_path / "still", [0, 0, 1], [0, 0, -1])
    assert "did not change the distance" in lines_of(still)["movement"]


def test_a_last_turn_is_explained_if_there_is_no_other(tmp_path):
    run, _ = played(tmp_path, [1], [-1])
    assert turn_example(run).title.startswith("turn 1 of 1 in")
    assert "more likely" in lines_of(run)["effect"]


def test_the_settings_are_those_of_the_run(tmp_path):
    run = read_training(training(tmp_path / "run", steps=1))
    run.advantage = run.advantage.model_copy(update={"turn_weight": 0.9})
    assert re.fullmatch(r"0.90 × \S+ \+ 0.10 × \S+ = \S+", lines_of(run)["mix"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_its_own_advantage(tmp_path, method):
    run = read_training(training(tmp_path / "run", method=method, steps=1))
    computed = compute_credit(run.played[1], run.advantage, RUBRIC)
    largest = max((float(x) for row in computed.mixed for x in row[:-1]), key=abs)
    shown = lines_of(run)
    assert f"The advantage is {signed(largest)}:" in shown["effect"]
    assert ("mix" in shown) is (method in ("mapo", "mt_grpo", "gigpo"))
    assert ("return" in shown) is (method in ("mapo", "turn", "kevin", "rloo_turn", "turn_gae", "gigpo"))


def test_equal_siblings_give_nothing_to_explain(tmp_path):
    run, _ = played(tmp_path, [1, 1], [1, 1])
    assert turn_example(run) == "every turn of step 1 has an advantage of 0"


def test_unscored_and_unknown_are_reasons(tmp_path):
    root = training(tmp_path / "run", steps=1)
    write_lines(root / "dialogues" / "step_00001.jsonl", [talk([None], id="1_1", group="g", step=1)])
    assert "advantage of 0" in turn_example(read_training(root))
    (root / "config.toml").unlink()
    assert "credit is unknown" in turn_example(read_training(root))
    assert turn_example(read_training(tmp_path)) == "no training dialogue was read"


def test_long_texts_are_cut(tmp_path):
    root = training(tmp_path / "run", steps=1)
    write_lines(root / "dialogues" / "step_00001.jsonl", [saying(d, "word " * 500) for d in group(1)])
    shown = lines_of(read_training(root))
    assert len(shown["person"]) < 300 and len(shown["reply"]) < 300
