"""The policy loss: hand-computed values, and gradients equal to the plain way of computing them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import (
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    Qwen2Config,
)

from mapo import InputError
from mapo.local_model import layers
from mapo.train import head as lm_head
from mapo.train import loss as loss_module
from mapo.train.batch import micro_batches
from mapo.train.loss import kl_to, mean_stats, policy_loss, surrogate, token_logprobs
from support.loss_inputs import gradients, make, rows


@pytest.fixture(scope="module")
def llama():
    return make(tie_word_embeddings=True)


def tensors(row):
    return torch.from_numpy(row.ids)[None], torch.from_numpy(row.mask)[None]


def plain(model, ids, mask, temperature=1.0):
    """log_softmax over everything, attention mask and all: what token_logprobs must equal."""
    logits = model(input_ids=ids, use_cache=False).logits.float() / temperature
    logp = torch.log_softmax(logits[:, :-1], -1)
    picked = mask[:, 1:]
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1)[picked], entropy[picked]


def assert_same(one, two, **tolerance):
    assert one.keys() == two.keys() and one
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], **({"rtol": 1e-5, "atol": 1e-5} | tolerance), msg=name
        )


# --- the surrogate


def one(logp, old, advantage, **options):
    x = torch.tensor([logp], requires_grad=True)
    loss, clipped = surrogate(x, torch.tensor([old]), torch.tensor([advantage]), **options)
    loss.sum().backward()
    return loss.item(), x.grad.item(), clipped.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        # -A ratio; d/dlogp of it is -A ratio too
        (1.0, 2.0, -2.0, -2.0, False),
        (1.2, 2.0, -2.4, -2.4, False),
        (1.5, 2.0, -2.56, 0.0, True),  # -A (1 + 0.28)
        (0.5, 2.0, -1.0, -1.0, False),  # a good token made less likely is never clipped
        (1.5, -2.0, 3.0, 3.0, False),  # nor a bad one made more likely
        (0.9, -2.0, 1.8, 1.8, False),
        (0.5, -2.0, 1.6, 0.0, True),  # -A (1 - 0.2)
        (9.0, -2.0, 18.0, 18.0, False),
        (12.0, -2.0, 20.0, 0.0, True),  # at most 10 |A|
        (12.0, 0.0, 0.0, 0.0, False),
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, slope, clipped):
    got = one(math.log(ratio) - 1.0, -1.0, advantage)
    assert got[:2] == pytest.approx((loss, slope), rel=1e-5, abs=1e-6)
    assert got[2] is clipped


def test_ratios_beyond_all_bounds_stay_finite():
    # exp(500) is infinite in float32; the dual clip makes it 10 |A|, the other side 0.8 |A|
    assert one(500.0, 0.0, -1.0) == (10.0, 0.0, True)
    assert one(-500.0, 0.0, -1.0) == (pytest.approx(0.8), 0.0, True)
    assert one(500.0, 0.0, 1.0) == (pytest.approx(-1.28), 0.0, True)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(1.1, 20))
def test_surrogate_bounds(change, advantage, dual):
    loss, slope, clipped = one(change, 0.0, advantage, dual=dual)
    ratio = math.exp(change)
    assert loss >= -abs(advantage) * 1.28 - 1e-4  # no reward for going beyond the clip
    assert loss <= abs(advantage) * dual + 1e-3
    if abs(advantage) > 1e-3:
        assert slope == pytest.approx(0.0 if clipped else -advantage * ratio, rel=1e-4, abs=1e-5)


def test_kl_by_hand():
    # r = other / policy = 1/2: r - 1 - log r = 0.5 - 1 + 0.6931
    value = kl_to(torch.tensor([math.log(0.5), -1.0]), torch.tensor([math.log(0.25), -1.0]))
    torch.testing.assert_close(value, torch.tensor([0.5 - 1 + math.log(2), 0.0]))


@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=6), st.integers(0, 5))
def test_kl_is_right_on_average(weights, seed):
    # sum over the policy's own distribution p of k3 = KL(p || q) = sum p log(p / q)
    p = torch.tensor(weights, dtype=torch.double) / sum(weights)
    q = torch.rand(len(p), generator=torch.Generator().manual_seed(seed), dtype=torch.double) + 0.05
    q /= q.sum()
    estimate = kl_to(p.log(), q.log())
    assert (estimate >= 0).all()
    torch.testing.assert_close((p * estimate).sum(), (p * (p / q).log()).sum())


# --- log-probabilities


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("keep", [0, 2, 1000])
def test_chunked_head_equals_log_softmax(llama, temperature, chunk, keep, monkeypatch):
    monkeypatch.setattr(lm_head, "_STORE_BYTES", {"cpu": keep * chunk * 61 * 4})
    (micro,) = micro_batches(rows(), 1000)
    weights = torch.linspace(-1, 1, micro.trained)
    logp, entropy = plain(llama, micro.ids, micro.mask, temperature)
    expected = gradients(llama, (weights * logp).sum() + 0.3 * (weights.flip(0) * entropy).sum())
    scores = token_logprobs(
        llama, micro.ids, micro.mask, at=micro.at, temperature=temperature, chunk=chunk, entropy=True
    )
    torch.testing.assert_close(scores.logprobs, logp)
    torch.testing.assert_close(scores.entropies, entropy)
    value = (weights * scores.logprobs).sum() + 0.3 * (weights.flip(0) * scores.entropies).sum()
    assert_same(gradients(llama, value), expected)


def test_gradients_of_log_probs_or_of_entropies_alone(llama):
    (micro,) = micro_batches(rows(), 1000)
    for pick in (0, 1):
        expected = gradients(llama, plain(llama, micro.ids, micro.mask)[pick].sum())
        scores = token_logprobs(llama, micro.ids, micro.mask, entropy=True, chunk=4)
        assert_same(gradients(llama, scores[pick].sum()), expected)


def test_a_second_backward_pass_finds_its_logits_again(llama):
    (micro,) = micro_batches(rows(), 1000)
    logp = token_logprobs(llama, micro.ids, micro.mask, chunk=4).logprobs
    llama.zero_grad(set_to_none=True)
    logp.sum().backward(retain_graph=True)
    first = {name: p.grad.clone() for name, p in llama.named_parameters()}
    assert_same(gradients(llama, logp.sum()), first)


def test_compiled_arithmetic_is_the_same_arithmetic():
    # What the compiler is given, against what runs without it.
    torch.manual_seed(1)
    logits, targets = torch.randn(5, 61), torch.randint(0, 61, (5,))
    _, lse, entropy = lm_head._scores(logits, targets, 1.3, True)
    g, ge = torch.randn(5), torch.randn(5)
    for slope in (ge, None):
        given_ = (targets, lse, entropy, g, slope, 1.3)
        torch.testing.assert_close(
            lm_head._logit_gradient_in_place(logits.clone(), *given_),
            lm_head._logit_gradient(logits, *given_),
        )


def test_bfloat16_gradients_are_close_to_float32():
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 16), torch.randn(61, 16)
    targets = torch.randint(0, 61, (64,))
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        h, w = (x.to(torch.bfloat16).to(dtype).requires_grad_() for x in (hidden, weight))
        logp, _ = lm_head.head_scores(h, w, None, targets, chunk=4)
        logp.mean().backward()
        assert logp.dtype == torch.float32 and w.grad.dtype == dtype
        results.append((h.grad.float(), w.grad.float()))
    for exact, rounded in zip(*results, strict=True):
        # 16 chunks summed: a few units of bfloat16's 2^-8
        assert (exact - rounded).norm() < 0.02 * exact.norm()


def test_a_head_with_bias():
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 61)
    hidden = torch.randn(7, 16, requires_grad=True)
    targets = torch.randint(0, 61, (7,))
    logp, _ = lm_head.head_scores(hidden, head.weight, head.bias, targets, chunk=3)
    expected = torch.log_softmax(head(hidden), -1).gather(-1, targets[:, None]).squeeze(-1)
    torch.testing.assert_close(logp, expected)
    inputs = (hidden, head.weight, head.bias)
    got = torch.autograd.grad(logp.square().sum(), inputs)
    torch.testing.assert_close(got, torch.autograd.grad(expected.square().sum(), inputs))


def test_padding_changes_nothing(llama):
    made = rows()
    alone = [token_logprobs(llama, *tensors(row), entropy=True) for row in made]
    (micro,) = micro_batches(made, 1000, multiple=16)
    together = token_logprobs(llama, micro.ids, micro.mask, entropy=True)
    for index in (0, 1):
        expected = torch.cat([alone[i][index] for i in micro.rows])
        torch.testing.assert_close(together[index], expected)


@pytest.mark.parametrize(
    ("config", "more", "is_plain"),
    [
        (Qwen2Config, {}, True),
        (Gemma2Config, {"head_dim": 4, "final_logit_softcapping": 1.5}, False),
        (GraniteConfig, {"logits_scaling": 3.0}, False),
        (CohereConfig, {"logit_scale": 0.25}, False),
    ],
)
def test_models_that_change_their_logits_keep_their_say(config, more, is_plain):
    model = make(config, attn_implementation="eager", **more)
    (micro,) = micro_batches(rows(), 1000)
    expected = plain(model, micro.ids, micro.mask)
    got = token_logprobs(model, micro.ids, micro.mask, entropy=True, chunk=4)
    assert (loss_module.body_and_head(model)[1] is not None) is is_plain
    torch.testing.assert_close(tuple(got), expected)
    weights = torch.linspace(-1, 1, micro.trained)
    assert_same(
        gradients(model, (got.logprobs * weights).sum()), gradients(model, (expected[0] * weights).sum())
    )


def test_a_token_that_is_ruled_out_adds_nothing_to_the_entropy():
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    scores = loss_module._scores_of(logits, torch.tensor([1]), 1.0, True)
    # two equal chances: log 1/2 and entropy log 2, at its largest
    assert scores.logprobs.item() == pytest.approx(-math.log(2))
    assert scores.entropies.item() == pytest.approx(math.log(2))
    scores.entropies.sum().backward()
    assert logits.grad.tolist() == [[pytest.approx(0, abs=1e-6)] * 3]


def test_looking_at_a_model_leaves_its_modes_alone():
    model = make()
    model.model.layers[0].eval()
    token_logprobs(model, *tensors(rows()[0]))
    assert model.training and not model.model.layers[0].mlp.training and model.model.layers[1].mlp.training


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "lm_head"]])
def test_adapters(targets):
    model = make(tie_word_embeddings=False)
    torch.manual_seed(1)
    config = LoraConfig(r=2, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    (micro,) = micro_batches(rows(), 1000)
    got, expected = token_logprobs(adapted, micro.ids, micro.mask), plain(adapted, micro.ids, micro.mask)
    torch.testing.assert_close(got.logprobs, expected[0])
    found, right = gradients(adapted, got.logprobs.sum()), gradients(adapted, expected[0].sum())
    assert_same(found, right)
    assert all("lora" in name for name in found)
    with adapted.disable_adapter():
        base = token_logprobs(adapted, micro.ids, micro.mask).logprobs
    assert not torch.allclose(base, got.logprobs)


def test_no_memory_of_the_whole_vocabulary(llama, monkeypatch):
    """With nothing kept, the graph holds hidden states, not logits."""
    monkeypatch.setattr(lm_head, "_STORE_BYTES", {"cpu": 0})
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        token_logprobs(llama, *tensors(rows((40,))[0]), chunk=4)
    assert not [shape for shape in saved if 61 in shape and shape != (61, 16)]
    assert [shape for shape in saved if shape == (61, 16)]


def test_impossible_requests_are_refused(llama):
    ids, mask = tensors(rows()[0])
    with pytest.raises(InputError, match="temperature is 0"):
        token_logprobs(llama, ids, mask, temperature=0)
    with pytest.raises(InputError, match="first token"):
        token_logprobs(llama, ids, torch.ones_like(mask))


# --- the loss of a batch


def batch_gradients(model, made, tokens, **options):
    total = sum(row.trained for row in made)
    model.zero_grad(set_to_none=True)
    stats, value = [], 0.0
    for micro in micro_batches(made, tokens):
        loss, told = policy_loss(model, micro, total=total, **options)
        loss.backward()
        stats.append(told)
        value += loss.item()
    return value, {name: p.grad.clone() for name, p in model.named_parameters()}, mean_stats(stats)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 60), st.integers(0, 99))
def test_where_a_batch_is_cut_changes_nothing(llama, tokens, seed):
    made = rows(seed=seed)
    options = {"entropy_weight": 0.01, "temperature": 0.9}
    value, expected, told = batch_gradients(llama, made, 1000, **options)
    cut_value, got, cut_told = batch_gradients(llama, made, tokens, **options)
    assert cut_value == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert cut_told == pytest.approx(told, rel=1e-4, abs=1e-6)
    assert_same(got, expected)


def test_loss_is_the_token_mean_of_its_terms(llama):
    made = rows()
    (micro,) = micro_batches(made, 1000)
    logp, entropy = (x.detach() for x in plain(llama, micro.ids, micro.mask))
    old, advantage = micro.logprobs[micro.mask], micro.advantages[micro.mask]
    reference = logp - torch.linspace(-0.3, 0.5, len(logp))
    token, clipped = surrogate(logp, old, advantage)
    # mean of: surrogate + 0.1 KL - 0.01 H
    expected = (token + 0.1 * kl_to(logp, reference) - 0.01 * entropy).mean()
    loss, stats = policy_loss(
        llama, micro, total=micro.trained, kl_weight=0.1, entropy_weight=0.01, reference=reference
    )
    torch.testing.assert_close(loss.detach(), expected)
    told = mean_stats([stats])
    ratio = (logp - old).exp()
    assert told == pytest.approx(
        {
            "loss": expected.item(),
            "clip_fraction": clipped.float().mean().item(),
            "entropy": entropy.mean().item(),
            "kl_old": (ratio - 1 - ratio.log()).mean().item(),
            "kl_ref": (logp - reference).mean().item(),
            "drift": (logp - old).abs().mean().item(),
            "ratio_max": ratio.max().item(),
            "tokens": micro.trained,
        },
        rel=1e-4,
    )
    assert 0 < told["clip_fraction"] < 1


def test_the_distance_from_the_start_is_a_plain_estimate_and_may_be_below_zero(llama):
    """mean(log policy - log start): -0.2 where the start finds every sampled token likelier by e^0.2."""
    (micro,) = micro_batches(rows(), 1000)
    likelier = plain(llama, micro.ids, micro.mask)[0].detach() + 0.2
    _, stats = policy_loss(llama, micro, total=micro.trained, reference=likelier)
    assert mean_stats([stats])["kl_ref"] == pytest.approx(-0.2, abs=1e-5)


def test_on_policy_the_gradient_is_that_of_advantage_times_log_prob(llama):
    (micro,) = micro_batches(rows(), 1000)
    with torch.no_grad():
        micro.logprobs[micro.mask] = token_logprobs(llama, micro.ids, micro.mask).logprobs
    loss, stats = policy_loss(llama, micro, total=micro.trained)
    advantage = micro.advantages[micro.mask]
    expected = gradients(llama, -(advantage * plain(llama, micro.ids, micro.mask)[0]).mean())
    assert_same(gradients(llama, loss), expected)
    told = mean_stats([stats])
    assert told["clip_fraction"] == 0 and told["drift"] < 1e-5 and told["ratio_max"] == pytest.approx(1)


def test_reports_add_up_over_micro_batches():
    def part(tokens, ratio, **sums):
        numbers = {"tokens": tokens, "ratio_max": ratio, "clipped": 1.0, **sums}
        return {name: torch.tensor(float(value)) for name, value in numbers.items()}

    told = mean_stats([part(2, 1.5, entropy=3, kl_ref=4), part(6, 1.2, entropy=math.nan), part(0, 1.0)])
    # clipped: 3 of 8 tokens; kl_ref: 4 over the 2 tokens it was measured on; NaN is not hidden
    assert math.isnan(told.pop("entropy"))
    assert told == {"tokens": 8, "ratio_max": 1.5, "clip_fraction": 3 / 8, "kl_ref": 2}


def test_nothing_to_report():
    assert mean_stats([]) == {}


# --- the layers below


def test_checkpointing_and_its_end(llama):
    model = copy.deepcopy(llama)
    value, expected, _ = batch_gradients(model, rows(), 40)
    seen = []
    layer = model.model.layers[0]
    layer.mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    for checkpointing, passes in ((True, 2), (False, 1)):
        layers.tune_for_training(model, checkpointing=checkpointing, compile=False)
        seen.clear()
        got_value, got, _ = batch_gradients(model, rows(), 1000)
        assert len(seen) == passes
        assert got_value == pytest.approx(value, rel=1e-5)
        assert_same(got, expected)


def test_checkpointing_replays_what_was_dropped():
    model = make(attention_dropout=0.5)
    assert layers._has_dropout(model) and not layers._has_dropout(make())
    assert layers._has_dropout(torch.nn.Sequential(torch.nn.Dropout(0.1)))
    results = []
    for checkpointing in (False, True):
        layers.tune_for_training(model, checkpointing=checkpointing, compile=False)
        torch.manual_seed(5)
        results.append(batch_gradients(model, rows(), 1000)[1])
    assert_same(*results)


def test_compiled_layers_serve_gradients_only(llama, monkeypatch):
    model = copy.deepcopy(llama)
    calls = []

    def fake_compile(function, **_):
        return lambda *args, **kwargs: calls.append(1) or function(*args, **kwargs)

    monkeypatch.setattr(torch, "compile", fake_compile)
    layers.tune_for_training(model, checkpointing=True, compile=True)
    _, got, _ = batch_gradients(model, rows(), 1000)
    assert len(calls) == 4  # two layers, each once more for its checkpoint
    assert_same(got, batch_gradients(llama, rows(), 1000)[1])
    calls.clear()
    with torch.no_grad():
        token_logprobs(model, *tensors(rows()[0]))
    batch_gradients(copy.deepcopy(model), rows(), 1000)  # a copy runs its own weights, as they are
    assert not calls
    layers.tune_for_training(model, checkpointing=False, compile=False)
    batch_gradients(model, rows(), 1000)
    assert not calls
