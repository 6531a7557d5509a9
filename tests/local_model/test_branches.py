"""Branched rows give the logits of separate prompts."""

from __future__ import annotations

import random

import pytest
import torch

from mapo.local_model.branches import Branch, BranchedRow, attention_mask, branch_off, stack_rows
from support import tiny


def growing_prompts(seed: int) -> list[list[int]]:
    """Prompts that share their beginning, each with a tail of its own."""
    draw = random.Random(seed)
    trunk: list[int] = [draw.randrange(50) for _ in range(5)]
    prompts = []
    for _ in range(draw.randrange(1, 5)):
        trunk += [draw.randrange(50) for _ in range(draw.randrange(1, 6))]
        prompts.append([*trunk, 60, *[draw.randrange(50) for _ in range(draw.randrange(3))]])
    return prompts


def branched(prompts: list[list[int]], form: list[int]) -> BranchedRow:
    trunk, branches = branch_off(prompts)
    return BranchedRow(
        trunk, [Branch(visible, [*own, *form], [len(own), len(own) + 1]) for visible, own in branches]
    )


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_logits_equal_those_of_separate_prompts(kind):
    model, form = tiny.model(kind), [61, 62, 63]
    groups = [growing_prompts(seed) for seed in range(4)]
    batch = stack_rows([branched(prompts, form) for prompts in groups])
    with torch.no_grad():
        logits = model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=attention_mask(batch)
        ).logits[batch.reads]
        apart = [
            model(input_ids=torch.tensor([[*prompt, *form]])).logits[0, [len(prompt), len(prompt) + 1]]
            for prompts in groups
            for prompt in prompts
        ]
    torch.testing.assert_close(logits, torch.cat(apart), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_a_branch_continues_its_part_of_the_trunk(seed):
    prompts = growing_prompts(seed)
    trunk, branches = branch_off(prompts)
    assert [[*trunk[:visible], *own] for visible, own in branches] == prompts


def test_a_row_is_shorter_than_its_prompts():
    prompts = [[*range(1, 100 * n), 0] for n in range(1, 8)]
    assert branched(prompts, [5, 6]).length < sum(map(len, prompts)) / 3
