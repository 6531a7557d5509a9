"""Names, overrides and values of the runs of a grid."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.errors import InputError
from mapo.evals.ablation.cells import METHOD, REWARD, GridCell, cells_of, parse_axis, toml_value


def test_names_of_grids_of_methods_and_rewards_stay():
    cell = GridCell.of({METHOD: "reinforce++_turn", REWARD: "adr"}, 3)
    assert cell.name == "reinforce++_turn_adr_seed3"
    assert cell.overrides == ['advantage.method="reinforce++_turn"', 'reward.name="adr"', "run.seed=3"]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"advantage.turn_weight": 0.5, "advantage.scope": "group"}, "turn_weight-0.5_scope-group_seed0"),
        ({METHOD: "mapo", "optim.lr": 1e-5}, "mapo_lr-1e-05_seed0"),
        ({"rollout.max_turns": 5}, "rollout.max_turns-5_seed0"),
        ({"roles.judge.model": "Qwen/Qwen3-8B"}, "judge-Qwen-Qwen3-8B-a82fd5_seed0"),
        ({"run.trackers": ["wandb"]}, "run.trackers-wandb-c44318_seed0"),
        ({}, "seed0"),
    ],
)
def test_names_are_readable(settings, name):
    assert GridCell.of(settings, 0).name == name


@given(st.text(max_size=80), st.text(max_size=80))
def test_names_are_safe_and_distinct(a, b):
    one, two = (GridCell.of({"model.source": text}, 0).name for text in (a, b))
    assert set(one) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+_-")
    assert len(one) < 100 and not one.startswith((".", "-"))
    assert (one == two) == (a == b)


@given(st.text(max_size=20))
def test_names_of_settings_lead_to_no_other_folder(key):
    name = GridCell.of({key: 1, "../../etc": 2}, 0).name
    assert "/" not in name and not name.startswith(".")


def test_long_names_are_cut():
    cell = GridCell.of({f"optim.key{i}": "x" * 30 for i in range(12)}, 0)
    assert len(cell.name) < 255


def test_the_first_setting_varies_fastest_and_seeds_slowest():
    cells = cells_of({"vary": {"optim.lr": [1, 2], "advantage.gamma": [0.5, 1]}, "seeds": [0, 7]})
    assert [c.name for c in cells[:3]] == [
        "lr-1_gamma-0.5_seed0",
        "lr-2_gamma-0.5_seed0",
        "lr-1_gamma-1_seed0",
    ]
    assert len(cells) == 8 and cells[4].seed == 7
    old = cells_of({"methods": ["mapo", "grpo"], "rewards": ["idr", "adr"], "seeds": [0]})
    assert [c.name for c in old] == [f"{m}_{r}_seed0" for r in ("idr", "adr") for m in ("mapo", "grpo")]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("optim.lr=1e-5, 1e-4,", "optim.lr", [1e-5, 1e-4]),
        ("advantage.gamma=1,1.0,0.85", "advantage.gamma", [1, 0.85]),
        ("roles.judge.model=a/b,gpt-4o,2024-05-13", "roles.judge.model", ["a/b", "gpt-4o", "2024-05-13"]),
        ('model.source="a,b",c', "model.source", ["a,b", "c"]),
        ('run.trackers=[],["tensorboard", "wandb"]', "run.trackers", [[], ["tensorboard", "wandb"]]),
        ("model.lora={rank=8, alpha=16},{rank=4}", "model.lora", [{"rank": 8, "alpha": 16}, {"rank": 4}]),
        ("rollout.system=true,false", "rollout.system", [True, False]),
    ],
)
def test_values_are_toml_or_strings(text, key, values):
    assert parse_axis(text) == (key, values)


@pytest.mark.parametrize("text", ["optim.lr", "optim.lr=", "=1,2", "optim..lr=1", "optim.lr=,"])
def test_what_is_not_an_axis(text):
    with pytest.raises(InputError, match="--vary"):
        parse_axis(text)


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(VALUES)
def test_values_survive_toml(value):
    assert tomllib.loads(f"v = {toml_value(value)}")["v"] == value
