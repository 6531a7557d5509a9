"""The training loop of the embedded models on the CPU: what it computes, and that it waits for no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from support.read_backs import NoReadBack

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "embedded"))

import small

IDS = torch.randint(5, 300, (2, 64), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    return small.new_model(300, 64, 2, seed=0)


def test_the_forward_pass_reads_nothing_back(model):
    with NoReadBack():
        model(input_ids=IDS, use_cache=False).logits.sum().backward()


def test_attention_is_causal(model):
    with torch.no_grad():
        logits = model(input_ids=IDS, use_cache=False).logits
        model.set_attn_implementation("sdpa")
        assert torch.allclose(logits, model(input_ids=IDS, use_cache=False).logits, atol=1e-6)


def test_gradients_are_clipped_and_do_not_add_up(model):
    def loss_of(batch):
        return 1e3 * model(input_ids=batch[0], use_cache=False).logits.square().mean(), {}

    gradients = small.Gradients(list(model.parameters()), loss_of, "cpu")
    for _ in range(2):
        gradients((IDS,))
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        assert norm.item() == pytest.approx(1.0, abs=1e-4)  # the loss is large enough to be clipped to 1
