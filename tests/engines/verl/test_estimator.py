"""Tokens in, tokens out: what verl gets is what `mapo.advantages` says of the turns in its rows."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mapo import RewardError, advantages
from mapo.engines.verl.estimator import (
    OPTIONS,
    UNSCORED,
    compute_credit,
    estimate,
    find_turns,
    loss_mask,
    parse_options,
)
from mapo.estimators.methods import ESTIMATORS
from support.verl_rows import Batch, methods, options, rows, same

TURN = {"gap": 2, "length": 3, "reward": 1.0, "kl": 0.0}


@given(rows, methods, options, st.booleans())
@example([[], [TURN], []], "mapo", {}, False)  # rows that fill up a batch
@example([[{**TURN, "reward": 0.0}], [TURN]], "mapo", {}, False)
@example([[{**TURN, "reward": None}, TURN], [TURN, {**TURN, "reward": 3.0}]], "mapo", {}, True)
def test_tokens_carry_their_turns_advantage_and_return(made, method, told, kl):
    batch = Batch(made, kl=kl)
    groups = batch.groups()
    expected = batch.credit(method, told, groups)
    found, returns = estimate(
        method,
        token_level_rewards=batch.rewards,
        response_mask=batch.mask,
        index=np.array(groups, dtype=object),
        config={"mapo": told},
        inputs=batch.inputs(method),
    )
    assert same(found, batch.tokens(expected.mixed))
    assert same(returns, batch.tokens(expected.returns))
    assert found.shape == returns.shape == batch.mask.shape


@given(rows, methods, options)
def test_the_mask_of_the_loss_is_the_estimators(made, method, told):
    batch = Batch(made)
    groups = batch.groups()
    turns = find_turns(batch.rewards, batch.mask)
    credit = compute_credit(turns, groups, method, told, batch.inputs(method))
    mask = loss_mask(turns, credit, batch.mask)
    assert mask.dtype == batch.mask.dtype
    assert torch.equal(mask, batch.tokens(batch.credit(method, told, groups).mask).to(torch.int64))


@given(rows)
def test_turns_are_found_in_order_with_their_rewards(made):
    batch = Batch(made)
    found = [row.tolist() for row in find_turns(batch.rewards, batch.mask).rewards_by_row()]
    assert [[None if np.isnan(x) else x for x in row] for row in found] == batch.ragged


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_kinds_and_devices_are_kept(kind, precision):
    batch = Batch([[TURN, TURN], [{**TURN, "reward": 3.0}, {**TURN, "reward": None}]])
    mask, paid = batch.mask.to(kind), batch.rewards.to(precision)
    both = estimate("mapo", token_level_rewards=paid, response_mask=mask, index=["s", "s"])
    assert {x.dtype for x in both} == {precision} and {x.device for x in both} == {paid.device}
    # first turn: z of 1 and 3 is -1 and 1 in both parts, but for the batch part's third member, 1
    assert both[0][0, 1] < 0 < both[0][1, 1]
    assert not both[0][batch.mask == 0].any()
    turns = find_turns(paid, mask)
    assert loss_mask(turns, compute_credit(turns, ["s", "s"], "mapo", {}), mask).dtype == kind


def test_nothing_in_the_graph_is_asked_for_or_left():
    batch = Batch([[TURN], [{**TURN, "reward": 2.0}]])
    paid = batch.rewards.requires_grad_()
    found, _ = estimate("grpo", token_level_rewards=paid, response_mask=batch.mask, index=["s", "s"])
    assert not found.requires_grad and found.abs().max() == pytest.approx(1.0)


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (2, 5)])
def test_a_batch_of_nothing(shape):
    found, returns = estimate(
        "mapo",
        token_level_rewards=torch.zeros(shape),
        response_mask=torch.zeros(shape, dtype=torch.int64),
        index=["s"] * shape[0],
    )
    assert found.shape == returns.shape == shape and not found.any()


def test_a_turn_that_reaches_the_end_of_its_row_is_not_the_next_rows():
    paid = torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    turns = find_turns(paid, torch.ones(2, 2, dtype=torch.int64))
    assert turns.row.tolist() == [0, 1] and turns.rewards.tolist() == [1.0, 5.0]


def test_an_unscored_turn_holds_the_place_of_its_successors():
    # Without the mark, sibling 1's second turn would be compared with sibling 2's first.
    late = Batch([[{**TURN, "reward": None}, {**TURN, "reward": 5.0}], [TURN, {**TURN, "reward": 9.0}]])
    found, _ = estimate("turn", token_level_rewards=late.rewards, response_mask=late.mask, index=["s", "s"])
    second = found[0][late.turn[0] == 1]
    assert second.tolist() == pytest.approx([-1.0] * 3)
    assert float(torch.tensor(UNSCORED, dtype=torch.float32)) == UNSCORED
    assert float(torch.tensor(1.0) + UNSCORED) == 1.0


@pytest.mark.parametrize("method", [name for name, e in ESTIMATORS.items() if e.needs])
@pytest.mark.parametrize("inputs", [None, [{}, {}], [None, None]])
def test_a_method_that_needs_more_than_verl_passes_says_what_to_do(method, inputs):
    batch = Batch([[TURN], [TURN]])
    given = {"token_level_rewards": batch.rewards, "response_mask": batch.mask, "index": ["s", "s"]}
    told = f"the method '{method}' needs `{ESTIMATORS[method].needs}`, which verl does not pass .*mapo train"
    with pytest.raises(RewardError, match=told) as problem:
        estimate(method, **given, inputs=inputs)
    assert "\n" not in str(problem.value)


def test_options_are_those_of_the_estimators():
    own = {"method", "outcome", "states", "axes", "axis_weights", "excluded"}
    known = {p.name for p in inspect.signature(advantages).parameters.values() if p.kind == p.KEYWORD_ONLY}
    assert set(OPTIONS) == known - own


def test_options_come_from_the_settings():
    assert parse_options(None) == parse_options({}) == parse_options({"mapo": None}) == {}
    told = {"mapo": {"gamma": "0.5", "turn_weight": 1, "scope": None, "horizon": "shortest"}}
    assert parse_options(told) == {"gamma": 0.5, "turn_weight": 1.0, "horizon": "shortest"}
    with pytest.raises(ValueError, match=r"algorithm\.mapo\.gama is not an option. Use one of: gamma, "):
        parse_options({"mapo": {"gama": 1}})
    batch = Batch([[TURN]])
    given = {"token_level_rewards": batch.rewards, "response_mask": batch.mask, "index": ["s"]}
    with pytest.raises(RewardError, match="unknown horizon"):
        estimate("mapo", **given, config={"mapo": {"horizon": "far"}})
    assert advantages([[1.0]], ["s"]).mixed[0].tolist() == [0.0]
