"""The paper's experiments as data: rows, names and published figures."""

from __future__ import annotations

import tomllib

import pytest

from mapo.errors import InputError
from mapo.evals.reproduce.experiments import SIZES, Training, experiment


def test_the_main_table_has_the_published_figures_of_four_sizes():
    rows = experiment("table1", ()).rows
    assert [row.size for row in rows] == [size for size in SIZES for _ in range(3)]
    assert [(row.label, row.published.low, row.published.passes) for row in rows[:3]] == [
        ("base model", 15.7, 0),
        ("GRPO", 28.0, 1),
        ("MAPO", 58.9, 9),
    ]
    assert rows[0].training is None
    assert rows[-1].published.text == "84.3"


def test_experiments_share_trainings_by_name():
    shared = {row.model for row in experiment("table1", ["8b"]).rows}
    shared &= {row.model for row in experiment("weights", ["8b"]).rows}
    assert shared == {"8b-mapo"}
    ends = [row.model for row in experiment("weights", ["8b"]).rows]
    assert ends == ["8b-batch", "8b-mapo-w0.25", "8b-mapo", "8b-mapo-w0.75", "8b-turn"]


def test_the_reward_experiment_has_figures_for_8b_only():
    assert [row.published.low for row in experiment("reward", ["8b"]).rows] == [18.2, 38.5, 31.5, 34.0]
    assert {row.published.low for row in experiment("reward", ["7b"]).rows} == {None}
    assert experiment("reward", ["7b"]).rows[0].published.text == "-"


def test_judges_test_one_training_and_train_with_each():
    rows = experiment("judges", ["32b"], ["a/Judge 1", "b"]).rows
    assert [row.test for row in rows] == [
        "32b-mapo-judged-by-a-judge-1-2cca5d",
        "32b-mapo-judged-by-b",
        "32b-mapo-judge-a-judge-1-2cca5d",
        "32b-mapo-judge-b",
    ]
    assert rows[0].published.text == "83.4 to 84.2"
    assert rows[0].training == rows[1].training == Training("32b")
    assert 'roles.judge.model="a/Judge 1"' in rows[2].training.settings


@pytest.mark.parametrize(
    ("name", "sizes", "judges", "problem"),
    [
        ("table2", [], [], "no experiment"),
        ("table1", ["70b"], [], "70b"),
        ("judges", [], [], "needs judges"),
        ("table1", [], ["a"], "belongs to"),
    ],
)
def test_wrong_names_are_refused(name, sizes, judges, problem):
    with pytest.raises(InputError, match=problem):
        experiment(name, sizes, judges)


def test_the_name_of_a_judge_cannot_end_the_toml_string():
    setting = Training("7b", judge='x"\ny = 1').settings[-1]
    assert tomllib.loads(setting) == {"roles": {"judge": {"model": 'x"\ny = 1'}}}


def test_judges_with_similar_names_have_trainings_of_their_own():
    rows = experiment("judges", ["8b"], ["a b", "a-b", "A-b", "a.b"]).rows
    assert len({row.test for row in rows}) == 8
