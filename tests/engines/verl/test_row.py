"""A dialogue's one row: the ids that were sampled, and the same credit as in the local engine's rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mapo import Dialogue, InputError, Reply, Rubric
from mapo.config import Advantage
from mapo.credit import compute_credit, credit_inputs
from mapo.engines.verl.estimator import UNSCORED, estimate, find_turns, loss_mask
from mapo.engines.verl.estimator import compute_credit as credit_of_rows
from mapo.engines.verl.row import response_row
from mapo.rows import rows_of
from support.verl_rows import dialogue, methods, options, rows, same, spoken

RUBRIC = Rubric.load("empathy")
SAID = {"gap": 2, "length": 3, "reward": 0.5, "kl": 0.0}


@given(st.lists(spoken, min_size=1, max_size=6))
def test_ids_are_those_that_were_sampled_in_order(made):
    talk = dialogue(made)
    row = response_row(talk)
    every = [i for t in talk.turns for i in (*t.reply.prompt_ids, *t.reply.token_ids)]
    assert row.prompt + row.response == every
    assert len(row.response) == len(row.mask) == len(row.logprobs) == len(row.rewards)
    at = 0
    for number, turn in enumerate(talk.turns):
        gap = len(turn.reply.prompt_ids) if number else 0
        assert not any(row.mask[at : at + gap]) and not any(row.rewards[at : at + gap])
        assert not any(row.logprobs[at : at + gap])
        at += gap
        stop = at + len(turn.reply.token_ids)
        assert row.mask[at:stop] == [int(turn.reward is not None)] * (stop - at)
        assert tuple(row.logprobs[at:stop]) == turn.reply.logprobs
        assert not any(row.rewards[at : stop - 1])
        assert row.rewards[stop - 1] == (UNSCORED if turn.reward is None else turn.reward)
        at = stop


def with_faults(talk: Dialogue, turns: set[int]) -> Dialogue:
    """Return the dialogue with the user at fault in these turns."""
    faulty = (replace(t, faults=("user: empty",)) if i in turns else t for i, t in enumerate(talk.turns))
    return replace(talk, turns=tuple(faulty))


@given(rows, st.sets(st.integers(0, 7)), methods, options, st.none() | st.sets(st.integers(0, 4)))
def test_the_same_tokens_train_with_the_same_credit_as_in_the_local_engine(
    made, broken, method, told, faulty
):
    talks = [
        with_faults(
            dialogue(row, f"d{i}", f"s{i // 4}", error="gone" if i in broken else None),
            {(t + i) % 5 for t in faulty or ()},
        )
        for i, row in enumerate(made)
    ]
    usable = [t for t in talks if t.error is None]
    masked = {"mask_faults": faulty is not None}
    settings = Advantage(**{"method": method, "gamma": 1.0, "endings": "continued", **told, **masked})
    credit = compute_credit(usable, settings, RUBRIC)
    local = {usable[row.dialogue].id: row for row in rows_of(usable, credit)}
    ours = {t.id: row for t in talks if (row := response_row(t))}
    assert set(local) <= set(ours) <= {t.id for t in usable}
    mask, paid = (padded([getattr(row, name) for row in ours.values()]) for name in ("mask", "rewards"))
    groups = [talk.group for talk in usable if talk.id in ours]
    turns = find_turns(paid, mask)
    inputs = [credit_inputs([talk], settings, RUBRIC) for talk in usable if talk.id in ours]
    inputs = json.loads(json.dumps(inputs))  # verl's queue makes lists of tuples too
    kept = loss_mask(turns, credit_of_rows(turns, groups, method, told, inputs), mask)
    found, _ = estimate(
        method,
        token_level_rewards=paid,
        response_mask=mask,
        index=groups,
        config={"mapo": told},
        inputs=inputs,
    )
    for at, (name, row) in enumerate(ours.items()):
        if name not in local:
            assert not kept[at].any()
            continue
        expected, first = local[name], len(row.prompt)
        length = len(expected) - first  # the local engine cuts off what follows the last trained token
        assert (row.prompt + row.response)[: len(expected)] == expected.ids.tolist()
        assert kept[at, :length].tolist() == expected.mask[first:].tolist()
        assert not kept[at, length:].any()
        assert same(found[at, :length] * kept[at, :length], torch.tensor(expected.advantages[first:]))


def padded(lists: list[list]) -> torch.Tensor:
    width = max(map(len, lists), default=0)
    kind = torch.float32 if lists and lists[0] and isinstance(lists[0][0], float) else torch.int64
    filled = [row + [0] * (width - len(row)) for row in lists]
    return torch.tensor(filled, dtype=kind).reshape(len(lists), width)


def test_a_dialogue_that_broke_or_never_began_has_no_row():
    assert response_row(dialogue([SAID], error="the user went away")) is None
    assert response_row(dialogue([])) is None


def test_unscored_turns_stay_as_context_the_last_ones_too():
    quiet = {**SAID, "reward": None}
    row = response_row(dialogue([quiet, SAID, quiet]))
    assert row.mask == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert [x for x in row.rewards if x] == [UNSCORED, 0.5, UNSCORED]
    assert not any(response_row(dialogue([quiet, quiet])).mask)


def test_replies_that_cannot_make_a_row_are_refused():
    talk = dialogue([SAID, SAID])
    first, second = talk.turns
    for reply, told in (
        (Reply("text"), "dialogue d0, turn 2: the reply has no token ids"),
        (replace(second.reply, token_ids=(), logprobs=()), "turn 2: the reply has no token ids"),
        (replace(second.reply, logprobs=None), "turn 2: the reply has no token ids"),
        (replace(second.reply, whole_prompt=True), "rewrites earlier turns"),
    ):
        with pytest.raises(InputError, match=told):
            response_row(replace(talk, turns=(first, replace(second, reply=reply))))
