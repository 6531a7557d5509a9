"""Micro-batches, parts and shares: every row once, budgets kept, nothing left to chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mapo import InputError
from mapo.rows import Row
from mapo.train.batch import micro_batches, minibatches, share


def row(length, dialogue=0, trained=1):
    mask = np.zeros(length, bool)
    mask[length - trained :] = True
    ids = np.arange(1, length + 1, dtype=np.int64) + 100 * dialogue
    zeros = np.zeros(length, np.float32)
    advantages = np.where(mask, np.float32(dialogue + 1), zeros)
    logprobs = np.where(mask, np.float32(-0.5), zeros)
    return Row(ids, mask, advantages, logprobs, np.where(mask, 0, -1).astype(np.int32), dialogue)


lengths = st.lists(st.integers(2, 40), max_size=20)


def test_padded_on_the_right_longest_first():
    first, second = micro_batches([row(2, 0), row(4, 1), row(3, 2)], tokens=8)
    assert (first.rows, second.rows) == ((1, 2), (0,))
    assert first.ids.tolist() == [[101, 102, 103, 104], [201, 202, 203, 0]]
    assert first.mask.tolist() == [[False, False, False, True], [False, False, True, False]]
    assert first.advantages.tolist() == [[0, 0, 0, 2], [0, 0, 3, 0]]
    assert first.logprobs.tolist() == [[0, 0, 0, -0.5], [0, 0, -0.5, 0]]
    assert first.at.tolist() == [3, 6] and first.trained == 2
    assert second.ids.tolist() == [[1, 2]]


def test_lengths_are_rounded_up():
    (micro,) = micro_batches([row(5), row(3)], tokens=64, multiple=8)
    assert micro.ids.shape == (2, 8)


@given(lengths, st.integers(1, 100), st.sampled_from([1, 8]))
def test_every_row_once_within_the_budget(sizes, tokens, multiple):
    rows = [row(n, i) for i, n in enumerate(sizes)]
    micros = micro_batches(rows, tokens, multiple=multiple)
    assert sorted(i for m in micros for i in m.rows) == list(range(len(rows)))
    for micro in micros:
        assert micro.ids.numel() <= tokens or len(micro.rows) == 1
        assert micro.ids.shape[1] % multiple == 0
        assert torch.equal(micro.mask.flatten().nonzero().squeeze(-1), micro.at)
        for place, index in enumerate(micro.rows):
            n = len(rows[index])
            assert micro.ids[place, :n].tolist() == rows[index].ids.tolist()
            assert not micro.ids[place, n:].any() and not micro.mask[place, n:].any()
    assert [m.rows for m in micro_batches(rows, tokens, multiple=multiple)] == [m.rows for m in micros]


def test_sorting_keeps_padding_small():
    sizes = np.random.default_rng(0).integers(10, 200, size=300).tolist()
    micros = micro_batches([row(n) for n in sizes], tokens=2000)
    # In the order given, each batch would be padded to almost 200: about 200 / 105 of the tokens.
    assert sum(m.ids.numel() for m in micros) < 1.1 * sum(sizes)


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(0, 5)), max_size=15), st.integers(1, 4))
def test_parts_of_a_batch_hold_whole_dialogues(pairs, n):
    rows = [row(length, dialogue) for length, dialogue in pairs]
    parts = minibatches(rows, n, seed=3)
    homes = [{r.dialogue for r in part} for part in parts]
    assert len(parts) == min(n, len({r.dialogue for r in rows})) and all(parts)
    assert sum(len(home) for home in homes) == len({r.dialogue for r in rows})
    assert sorted(id(r) for part in parts for r in part) == sorted(map(id, rows))


def test_parts_depend_on_the_seed_and_on_nothing_else():
    rows = [row(4, d) for d in range(32)]
    split = [[[r.dialogue for r in part] for part in minibatches(rows, 2, seed)] for seed in (1, 1, 2)]
    assert split[0] == split[1] != split[2]
    assert sorted(len(part) for part in split[0]) == [16, 16]


@given(lengths, st.integers(1, 5))
def test_shares_of_processes_are_disjoint_and_balanced(sizes, world):
    rows = [row(n, i) for i, n in enumerate(sizes)]
    shares = [share(rows, rank, world) for rank in range(world)]
    assert sorted(r.dialogue for part in shares for r in part) == list(range(len(rows)))
    loads = [sum(map(len, part)) for part in shares]
    # Dealing to the lightest: the heaviest part was the lightest before its last row.
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_moving_keeps_everything():
    (micro,) = micro_batches([row(3)], tokens=8)
    moved = micro.to("meta")
    assert moved.ids.device.type == moved.at.device.type == "meta" and moved.rows == micro.rows
    assert moved.trained == 1


def test_impossible_requests_are_refused():
    with pytest.raises(InputError, match="tokens is 0"):
        micro_batches([row(3)], 0)
    with pytest.raises(InputError, match="0 updates"):
        minibatches([row(3)], 0, seed=1)
    with pytest.raises(InputError, match="rank 2 of 2"):
        share([row(3)], 2, 2)
