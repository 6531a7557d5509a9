"""Small models and token rows for tests of the loss."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from mapo.rows import Row

SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(config=LlamaConfig, **more):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SIZES, **more)).float()
    for parameter in model.parameters():  # far from the uniform distribution
        torch.nn.init.normal_(parameter, std=0.3)
    return model.train()


def rows(sizes=(9, 5, 12, 7), seed=0):
    random = np.random.default_rng(seed)
    made = []
    for dialogue, n in enumerate(sizes):
        mask = random.random(n) < 0.5
        mask[0], mask[-1] = False, True
        where = mask.astype(np.float32)
        advantages = random.normal(size=n).astype(np.float32) * where
        old = (-4 + random.normal(size=n).astype(np.float32)) * where
        ids = random.integers(3, 61, size=n)
        made.append(Row(ids, mask, advantages, old, np.where(mask, 0, -1).astype(np.int32), dialogue))
    return made


def gradients(model, value):
    model.zero_grad(set_to_none=True)
    value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
