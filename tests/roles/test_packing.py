"""Packed rows: every answer is computed as if its prompt stood alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mapo.errors import InputError
from mapo.local_model.policy import LocalPolicy
from mapo.roles.learning import predict
from mapo.roles.packing import Example, batches, pack
from support import tiny

OPTIONS = ((11, 12, 13),)
TRUNK = tuple(range(20, 60))


def read(name, ids, at, kind="recorded"):
    return Example(name, tuple(ids), (at,), OPTIONS, (1,), kind=kind)


def examples():
    return [
        read("turn 1", TRUNK[:10], 9),
        read("turn 2", TRUNK[:25], 24),
        read("turn 3", TRUNK, 39),
        read("turn 2, other reply", (*TRUNK[:15], *range(70, 84)), 28, kind="addition"),
        Example("reason", (*TRUNK[:25], 90, 91, 92), text=25, kind="reason"),
    ]


def policy(kind="qwen2"):
    model = tiny.model(kind)
    return LocalPolicy(model, tiny.tokenizer(), "tiny", "", False, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
def test_packed_answers_equal_those_of_single_prompts(kind):
    own, made = policy(kind), examples()
    [row] = pack(made, range(5), 1000)
    packed = predict(own, made, [row], 4096)
    for number, example in enumerate(made):
        logits = own.model(torch.tensor([example.ids])).logits[0].detach()
        if example.reads:
            plain = torch.log_softmax(logits[example.reads[0]][list(OPTIONS[0])], -1)
            assert packed.reads[number][0] == pytest.approx(plain.tolist(), abs=1e-4)
        else:
            plain = torch.log_softmax(logits, -1)
            expected = sum(plain[at - 1, example.ids[at]].item() for at in (25, 26, 27))
            assert packed.text[number] == pytest.approx(expected, abs=1e-3)
            assert packed.tokens[number] == 3


def test_shared_tokens_are_stored_once():
    [row] = pack(examples(), range(5), 1000)
    assert len(row) == 40 + 14 + 2  # the trunk, the other reply, two tokens of the reason that predict
    assert row.branches


def test_prefixes_of_the_trunk_need_no_branch():
    [row] = pack(examples()[:3], range(3), 1000)
    assert len(row) == 40 and not row.branches
    assert row.read_at.tolist() == [9, 24, 39]


def test_without_branching_other_prompts_get_their_own_rows():
    made = examples()
    rows = pack(made, range(5), 1000, branching=False)
    assert [len(row) for row in rows] == [40, 29, 27]
    assert not any(row.branches for row in rows)


def test_long_dialogues_are_split():
    made = examples()
    rows = pack(made, range(5), 45)
    assert all(len(row) <= 45 for row in rows)
    assert sorted(np.concatenate([row.read_example for row in rows]).tolist()) == [0, 1, 2, 3]


def test_a_prompt_beyond_the_limit_is_refused():
    with pytest.raises(InputError, match="turn 3 has 40 tokens"):
        pack(examples(), range(5), 30)


def test_batches_hold_every_row_once_and_respect_the_budget():
    rows = [pack([read("a", range(n), n - 1)], [0], 5000)[0] for n in (300, 10, 500, 700, 20, 900)]
    for seed in (None, 0, 1):
        planned = batches(rows, 1000, seed)
        assert sorted(i for batch in planned for i in batch) == list(range(6))
        assert all(len(b) * max(len(rows[i]) for i in b) <= 1000 for b in planned)
    assert batches(rows, 1000, 1) == batches(rows, 1000, 1)
