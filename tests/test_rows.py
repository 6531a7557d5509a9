"""rows_of(): every sampled token of an unmasked turn, once, in its context, with its turn's advantage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo import Advantages, Dialogue, InputError, Reply, Turn, advantages
from mapo.rows import rows_of


def reply(prompt, tokens, whole=False, logprobs=None):
    given = tuple(-0.25 * (i + 1) for i in range(len(tokens))) if logprobs is None else logprobs
    return Reply("text", "stop", tuple(prompt), tuple(tokens), given, whole_prompt=whole)


def dialogue(*replies, name="d1"):
    turns = tuple(Turn(f"line {t}", r) for t, r in enumerate(replies))
    return Dialogue(name, "s1", "m", "empathy", "published", {}, (), turns)


def credit(mixed, mask=None):
    values = [np.array(row, dtype=float) for row in mixed]
    masks = [np.ones(len(v), bool) for v in values] if mask is None else [np.array(m, bool) for m in mask]
    return Advantages(values, values, values, values, masks)


def test_one_row_a_dialogue():
    talk = dialogue(reply([1, 2], [3, 4]), reply([5], [6, 7, 8]))
    (row,) = rows_of([talk], credit([[0.5, -2.0]]))
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert row.mask.tolist() == [False, False, True, True, False, True, True, True]
    assert row.advantages.tolist() == [0, 0, 0.5, 0.5, 0, -2, -2, -2]
    assert row.logprobs.tolist() == [0, 0, -0.25, -0.5, 0, -0.25, -0.5, -0.75]
    assert row.turns.tolist() == [-1, -1, 0, 0, -1, 1, 1, 1]
    assert (row.dialogue, row.trained, len(row)) == (0, 5, 8)
    kinds = (row.ids.dtype, row.mask.dtype, row.advantages.dtype, row.logprobs.dtype, row.turns.dtype)
    assert kinds == (np.int64, np.bool_, np.float32, np.float32, np.int32)


def test_a_masked_turn_stays_as_context():
    talk = dialogue(reply([1], [2, 3]), reply([4], [5]))
    (row,) = rows_of([talk], credit([[9.0, 1.0]], [[False, True]]))
    assert row.ids.tolist() == [1, 2, 3, 4, 5]
    assert row.mask.tolist() == [False, False, False, False, True]
    assert row.advantages.tolist() == [0, 0, 0, 0, 1]
    assert row.turns.tolist() == [-1, 0, 0, -1, 1]
    assert row.logprobs.tolist() == [0, -0.25, -0.5, 0, -0.25]


def test_what_follows_the_last_trained_token_is_cut():
    talk = dialogue(reply([1], [2, 3]), reply([4], [5]), reply([6, 7], []))
    (row,) = rows_of([talk], credit([[1.0, 1.0, 1.0]], [[True, False, True]]))
    assert row.ids.tolist() == [1, 2, 3]


def test_a_whole_prompt_starts_a_new_row():
    # The template hides part of the first reply (3) in the second context.
    talk = dialogue(reply([1], [2, 3], whole=True), reply([1, 2, 4], [5, 6], whole=True))
    first, second = rows_of([talk], credit([[1.0, -1.0]]))
    assert first.ids.tolist() == [1, 2, 3] and first.mask.tolist() == [False, True, True]
    assert second.ids.tolist() == [1, 2, 4, 5, 6]
    assert second.mask.tolist() == [False, False, False, True, True]
    assert second.advantages.tolist() == [0, 0, 0, -1, -1]
    assert second.turns.tolist() == [-1, -1, -1, 1, 1]
    assert first.dialogue == second.dialogue == 0


def test_turns_appended_to_a_whole_prompt_share_its_row():
    talk = dialogue(reply([1], [2]), reply([1, 9], [3], whole=True), reply([4], [5]))
    rows = rows_of([talk], credit([[1.0, 2.0, 3.0]]))
    assert [r.ids.tolist() for r in rows] == [[1, 2], [1, 9, 3, 4, 5]]
    assert rows[1].advantages.tolist() == [0, 0, 2, 0, 3]


def test_zero_advantages_count_but_masked_dialogues_do_not():
    talks = [dialogue(reply([1], [2])), dialogue(reply([1], [3])), dialogue(Reply("no ids")), dialogue()]
    rows = rows_of(talks, credit([[0.0], [5.0], [5.0], []], [[True], [False], [False], []]))
    assert [(r.dialogue, r.ids.tolist(), r.trained) for r in rows] == [(0, [1, 2], 1)]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (Reply("hello"), "dialogue d7, turn 2: the reply has no token ids"),
        (reply([4], [5], logprobs=(-1.0, -2.0)), "turn 2: 1 token ids but 2 log-probabilities"),
        (reply([4], [5], logprobs=(float("-inf"),)), "turn 2: a log-probability is not finite"),
        (reply([], [5], whole=True), "turn 2: the context before"),
    ],
)
def test_replies_that_cannot_be_trained_on_are_named(broken, told):
    with pytest.raises(InputError, match=told):
        rows_of([dialogue(reply([1], [2]), broken, name="d7")], credit([[1.0, 1.0]]))


def test_advantages_of_other_dialogues_are_refused():
    talk = dialogue(reply([1], [2]))
    with pytest.raises(InputError, match="1 dialogues but advantages for 2"):
        rows_of([talk], credit([[1.0], [1.0]]))
    with pytest.raises(InputError, match="dialogue d1: 1 turns but 2 advantages"):
        rows_of([talk], credit([[1.0, 2.0]]))
    with pytest.raises(InputError, match="dialogue d1: an advantage is not finite"):
        rows_of([talk], credit([[float("nan")]]))


@st.composite
def batches(draw):
    """Dialogues of sampled replies, unscored turns among them, with the advantages mapo gives them."""
    replies = st.builds(
        reply,
        st.lists(st.integers(0, 99), min_size=1, max_size=4),
        st.lists(st.integers(100, 199), min_size=1, max_size=5),
        st.booleans(),
    )
    talks = [dialogue(*r, name=f"d{i}") for i, r in enumerate(draw(st.lists(st.lists(replies, max_size=4))))]
    scores = st.one_of(st.none(), st.floats(-5, 5).map(lambda x: round(x, 2)))
    rewards = [[draw(scores) for _ in talk.turns] for talk in talks]
    groups = [draw(st.integers(0, 1)) for _ in talks]
    return talks, advantages(rewards, groups)


@given(batches())
def test_trained_tokens_are_the_sampled_tokens_of_unmasked_turns(batch):
    talks, given_credit = batch
    rows = rows_of(talks, given_credit)
    trained = [
        (row.dialogue, int(row.turns[k]), int(row.ids[k]), float(row.advantages[k]), float(row.logprobs[k]))
        for row in rows
        for k in np.flatnonzero(row.mask)
    ]
    expected = [
        (d, t, i, float(np.float32(given_credit.mixed[d][t])), float(np.float32(p)))
        for d, talk in enumerate(talks)
        for t, turn in enumerate(talk.turns)
        if given_credit.mask[d][t]
        for i, p in zip(turn.reply.token_ids, turn.reply.logprobs, strict=True)
    ]
    assert trained == expected
    for row in rows:
        assert row.mask[-1] and not row.mask[0]
        assert ((row.turns >= 0) | ~row.mask).all()
        assert not row.advantages[~row.mask].any()


@given(batches())
def test_a_trained_token_stands_in_the_context_it_was_sampled_in(batch):
    talks, given_credit = batch
    contexts = {}
    for d, talk in enumerate(talks):
        seen = ()
        for t, turn in enumerate(talk.turns):
            seen = turn.reply.prompt_ids if turn.reply.whole_prompt else seen + turn.reply.prompt_ids
            contexts[d, t] = seen
            seen += turn.reply.token_ids
    for row in rows_of(talks, given_credit):
        for t in set(row.turns[row.mask].tolist()):
            start = int(np.flatnonzero(row.turns == t)[0])
            assert tuple(row.ids[:start].tolist()) == contexts[row.dialogue, t]
