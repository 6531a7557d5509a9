"""The shipped configs of the papers' experiments, against the papers' settings written down by hand."""

from __future__ import annotations

import math

import pytest

from mapo import Rubric
from mapo.config import load_config, shipped_configs, with_steps
from mapo.engines.verl.settings import check_heads, check_settings
from mapo.scenarios.epochs import resolve_steps

RUBRIC_MINIMUM = None
"""No minimum of its own: that of the rubric."""

# name: (scenarios per step, updates, epochs, min turns, max turns, temperature,
#        steps for 727 scenarios, steps for 697 scenarios)
TABLE = {
    "paper-7b": (16, 1, 2, RUBRIC_MINIMUM, 15, 1.0, 91, 88),
    "paper-8b": (16, 1, 1, RUBRIC_MINIMUM, 15, 1.0, 46, 44),
    "paper-14b": (16, 1, 1, RUBRIC_MINIMUM, 30, 1.0, 46, 44),
    "paper-32b": (32, 1, 1, RUBRIC_MINIMUM, 30, 1.0, 23, 22),
    "scripts-7b": (16, 2, 2, 8, 15, 1.0, 91, 88),
    "scripts-8b": (16, 2, 2, 8, 15, 1.0, 91, 88),
    "scripts-14b": (16, 2, 2, RUBRIC_MINIMUM, 20, 1.0, 91, 88),
    "scripts-32b": (16, 2, 2, RUBRIC_MINIMUM, 20, 0.8, 91, 88),
}
LORA = {f"{name}-lora": name for name in ("paper-7b", "paper-8b", "paper-14b")}
ALL = [*TABLE, *LORA]
MODELS = {
    "7b": "Qwen/Qwen2.5-7B-Instruct",
    "8b": "Qwen/Qwen3-8B",
    "14b": "Qwen/Qwen3-14B",
    "32b": "Qwen/Qwen3-32B",
}

PROMPT = 300
"""Tokens of the system prompt (434 characters) and the chat template, with room to spare."""
USER_LINE = 100
"""Tokens of a user's message."""


def test_every_size_has_its_configs():
    assert {*ALL, "paper", "scripts"} <= set(shipped_configs())


@pytest.mark.parametrize("name", ALL)
def test_settings_that_differ_between_sizes(name):
    scenarios, updates, epochs, least, most, temperature, published, train = TABLE[LORA.get(name, name)]
    c = load_config(name)
    assert (c.rollout.scenarios, c.optim.updates, c.optim.epochs) == (scenarios, updates, epochs)
    assert (c.rollout.min_turns, c.rollout.max_turns, c.rollout.temperature) == (least, most, temperature)
    assert (with_steps(c, 727).optim.steps, with_steps(c, 697).optim.steps) == (published, train)
    assert published == math.ceil(epochs * 727 / scenarios)
    assert c.model.source == MODELS[name.split("-")[1]]


@pytest.mark.parametrize("name", ALL)
def test_settings_that_all_share(name):
    c = load_config(name)
    assert (c.rollout.siblings, c.model.thinking, c.reward.name, c.reward.distance) == (
        4,
        False,
        "idr",
        "zone",
    )
    a = c.advantage
    assert (a.method, a.gamma, a.turn_weight, a.horizon) == ("mapo", 0.85, 0.5, "shortest")
    o = c.optim
    assert (o.warmup, o.schedule, o.grad_clip) == (0.05, "cosine", 1.0)
    assert (o.lr, o.weight_decay) == ((2e-5, 0.0) if name in LORA else (1e-6, 0.1))
    assert (o.clip_low, o.clip_high, o.dual_clip, o.kl, o.entropy) == (0.2, 0.28, 10.0, 0.0, 0.0)
    assert (c.roles.agents, c.roles.everyone.model) == ("llm", "Qwen/Qwen3-235B-A22B-Instruct-2507")


@pytest.mark.parametrize("name", ALL)
def test_the_test_is_the_official_one(name):
    c = load_config(name)
    assert c.scenarios.test.endswith(":test") and c.scenarios.train.endswith(":train")
    assert not c.scenarios.contaminated
    ending = Rubric.load("empathy").ending
    assert (c.eval.max_turns, c.eval.min_turns or ending.min_turns) == (45, 12)


@pytest.mark.parametrize("name", ALL)
def test_the_context_holds_the_longest_dialogue(name):
    c = load_config(name)
    turns = max(c.rollout.max_turns, c.eval.max_turns)
    assert PROMPT + turns * (c.rollout.max_tokens + USER_LINE) <= c.rollout.context


@pytest.mark.parametrize("name", ALL)
def test_a_micro_batch_holds_the_longest_row(name):
    c = load_config(name)
    assert PROMPT + c.rollout.max_turns * (c.rollout.max_tokens + USER_LINE) <= c.optim.tokens


@pytest.mark.parametrize("name", TABLE)
def test_verl_accepts_the_settings(name):
    config = resolve_steps(load_config(name))
    check_settings(config)
    nodes = 4 if name.endswith("32b") else 1
    assert (config.verl.nodes, config.verl.gpus) == (nodes, 8)


# Bytes of the KV cache per token: layers * 2 (keys and values) * key-value heads * head size * 2 (bfloat16).
@pytest.mark.parametrize(
    ("name", "billions", "per_token"),
    [
        ("paper-7b-lora", 7.6, 28 * 2 * 4 * 128 * 2),
        ("paper-8b-lora", 8.2, 36 * 2 * 8 * 128 * 2),
        ("paper-14b-lora", 14.8, 40 * 2 * 8 * 128 * 2),
    ],
)
def test_weights_and_kv_cache_leave_room_on_a_card_of_80_gb(name, billions, per_token):
    rollout = load_config(name).rollout
    cache = (rollout.at_once + 1) * rollout.context * per_token / 1e9
    assert 2 * billions + cache <= 55


def test_32b_with_adapters_fits_on_one_node():
    """The numbers in the config's comment. Qwen3-32B: 64 layers of width 5120, 64 heads and 8 key-value heads
    of 128, 25,600 inside an MLP, 151,936 tokens in the vocabulary."""
    config = load_config("paper-32b-one-node")
    check_settings(resolve_steps(config))
    check_heads(config, 64, 8)
    paper, same = load_config("paper-32b"), {"scenarios", "reward", "advantage", "eval", "run"}
    assert config.model_dump(include=same) == paper.model_dump(include=same)
    v, tokens, cards = config.verl, config.optim.tokens, config.verl.nodes * config.verl.gpus
    assert (
        cards == 8 and PROMPT + config.rollout.max_turns * (512 + USER_LINE) <= tokens * v.sequence_parallel
    )
    weights, width, inside, heads, kv = 32.8e9, 5120, 25_600, 64 * 128, 8 * 128
    linear = 2 * (width + heads) + 2 * (width + kv) + 3 * (width + inside)  # rows and columns of all matrices
    adapters = 64 * config.model.lora.rank * linear
    assert adapters == pytest.approx(0.27e9, rel=0.01)
    kept, layer = (
        64 * width * 2 * tokens,
        2 * (7 * width + 4 * inside) * tokens,
    )  # as in local_model/memory.py
    logits = 151_936 * tokens * (2 + 4 + 4)  # bfloat16, float32 and the float32 gradient
    update = (4 * weights + 16 * adapters) / cards + kept + layer + logits
    assert update == pytest.approx(47e9, rel=0.02) and update < 0.92 * 80e9
    cache = (v.memory * 80e9 - 2 * weights / v.tensor_parallel) / (64 * 2 * kv * 2 / v.tensor_parallel)
    assert cache == pytest.approx(600_000, rel=0.02)
    assert 16 * weights / cards == pytest.approx(65.5e9, rel=0.01)  # all weights


def test_the_published_set_with_the_test_cards_takes_an_explicit_flag():
    config = load_config("paper-7b", ["scenarios.train=data/empa:published-727"])
    assert resolve_steps(config).optim.steps == 91
    assert not config.scenarios.contaminated
