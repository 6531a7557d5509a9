"""AdamW with masters against the formula; small updates survive bfloat16; the learning rate over a run."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mapo.errors import InputError
from mapo.train import optim
from mapo.train.optim import lr_at, make_optimizer


def layer(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3)).to(dtype)


def fill_grads(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def test_steps_are_adamw_by_the_formula():
    model = layer()
    optimizer = make_optimizer(model, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8)
    weights = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    m = {n: torch.zeros_like(w) for n, w in weights.items()}
    v = {n: torch.zeros_like(w) for n, w in weights.items()}
    for t, lr in enumerate([1e-2, 5e-3, 1e-3], 1):
        fill_grads(model, t)
        for name, p in model.named_parameters():
            # m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
            # w = w (1 - lr wd) - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps); wd 0 below two dimensions
            g = p.grad.double()
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v[name] + 0.01 * g * g
            decay = 0.1 if p.ndim >= 2 else 0.0
            step = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.99**t)).sqrt() + 1e-8)
            weights[name] = weights[name] * (1 - lr * decay) - lr * step
        optimizer.step(lr)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach().double(), weights[name], rtol=1e-6, atol=1e-7)


def test_small_updates_vanish_in_bfloat16_and_survive_in_masters():
    # gradient 1 everywhere: AdamW moves by lr a step; 3000 steps of 1e-6 take 1 to 0.997. Below 1 bfloat16
    # numbers lie 1/256 apart, so 1 - 1e-6 rounds to 1 and plain bfloat16 never leaves it.
    model = torch.nn.Linear(2, 2, bias=False).to(torch.bfloat16)
    plain = torch.nn.Linear(2, 2, bias=False).to(torch.bfloat16)
    for one in (model, plain):
        torch.nn.init.ones_(one.weight)
        one.weight.grad = torch.ones_like(one.weight)
    ours = make_optimizer(model, weight_decay=0.0)
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-6, weight_decay=0.0)
    for _ in range(3000):
        ours.step(1e-6)
        theirs.step()
    assert torch.all(plain.weight == 1.0)
    assert torch.all(model.weight == 1.0 - 1 / 256)
    # each of the 3000 float32 steps rounds by at most 2^-25
    torch.testing.assert_close(ours.masters["weight"], torch.full((2, 2), 0.997), rtol=0, atol=3000 * 2**-25)


def add_up(wide, gradients):
    """The joint gradient of micro-batches whose own is given, one number for every weight."""
    model = torch.nn.Linear(2, 2, bias=False).to(torch.bfloat16)
    optimizer = make_optimizer(model, wide_gradients=wide)
    for gradient in gradients:
        (model.weight * gradient).sum().backward()
        optimizer.absorb()
    return optimizer


def test_small_gradients_vanish_in_bfloat16_and_survive_in_wide_ones():
    # above 1 bfloat16 numbers lie 1/128 apart, so 1 + 1/512 rounds to 1 each time; in float32 the sum is
    # exact: 1 + 299/512
    gradients = [1.0] + 299 * [1 / 512]
    (narrow,) = add_up(False, gradients).gradients()
    (wide,) = add_up(True, gradients).gradients()
    assert narrow.dtype == torch.bfloat16 and torch.all(narrow == 1.0)
    assert wide.dtype == torch.float32 and torch.all(wide == 1 + 299 / 512)


def test_wide_gradients_are_what_is_clipped_and_stepped():
    optimizer = add_up(True, [1.0, 1 / 512])
    assert optimizer.params["weight"].grad is None  # freed
    # four entries of 1 + 1/512
    norm = optimizer.clip(1.0)
    assert norm == pytest.approx(2 * (1 + 1 / 512), rel=1e-6)
    (clipped,) = optimizer.gradients()
    torch.testing.assert_close(clipped, torch.full((2, 2), 0.5), rtol=1e-5, atol=0)
    optimizer.step(1e-3)
    # exp_avg = (1 - 0.9) g
    torch.testing.assert_close(optimizer.tensors()["exp_avg/weight"], 0.1 * clipped)
    optimizer.zero_grad()
    assert not optimizer.gradients()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide", [True, False])
def test_every_parameter_has_a_gradient_to_sum(dtype, wide):
    """A process without rows takes part in the sum with zeros."""
    model = layer(dtype)
    optimizer = make_optimizer(model, wide_gradients=wide)
    model[0].bias.grad = torch.ones_like(model[0].bias)
    assert [g.sum().item() for g in optimizer.gradients()] == [3.0]
    for gradient, parameter in zip(optimizer.gradients(every=True), model.parameters(), strict=True):
        assert gradient.shape == parameter.shape
        assert gradient.dtype == (torch.float32 if wide else dtype)
        gradient += 1  # as a sum over processes does, in place
    # weight 12 ones; bias 3 twos; norm weight and bias 3 ones each: sqrt(12 + 3 * 4 + 3 + 3)
    assert optimizer.clip(100.0) == pytest.approx(math.sqrt(30))


@pytest.mark.parametrize("wide", [True, False])
def test_masters_move_as_a_float32_model_does(monkeypatch, wide):
    """Also when the parameters are stepped in several buckets."""
    whole, half = layer(), layer(torch.bfloat16)
    with torch.no_grad():
        for a, b in zip(whole.parameters(), half.parameters(), strict=True):
            a.copy_(b)
    first = make_optimizer(whole)
    monkeypatch.setattr(optim, "BUCKET", 4)
    second = make_optimizer(half, wide_gradients=wide)
    assert len(second._adams) == 4 and len(first._adams) == 1
    for seed in range(3):
        fill_grads(half, seed)
        for a, b in zip(whole.parameters(), half.parameters(), strict=True):
            a.grad = b.grad.float()
        first.step(1e-2)
        second.step(1e-2)
        second.zero_grad()
    for name, p in whole.named_parameters():
        torch.testing.assert_close(second.masters[name], p.detach(), rtol=1e-6, atol=1e-7)
        assert torch.equal(second.params[name], second.masters[name].to(torch.bfloat16))
    assert all(master.grad is None for master in second.masters.values())


def test_float32_needs_no_masters():
    assert not make_optimizer(layer()).masters


def test_no_decay_on_norms_and_biases():
    model = layer()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    make_optimizer(model, weight_decay=0.5).step(0.1)
    for name, p in model.named_parameters():
        # no gradient, so only decay acts: w (1 - 0.1 * 0.5)
        expected = before[name] * 0.95 if name == "0.weight" else before[name]
        torch.testing.assert_close(p.detach(), expected)


def test_frozen_parameters_are_left_out_and_all_frozen_is_refused():
    model = layer()
    model[1].requires_grad_(False)
    assert set(make_optimizer(model).params) == {"0.weight", "0.bias"}
    with pytest.raises(InputError, match="nothing to train"):
        make_optimizer(model.requires_grad_(False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clip_scales_to_the_joint_norm(dtype):
    model = layer(dtype)
    optimizer = make_optimizer(model)
    assert optimizer.clip(1.0) == 0.0
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    # 12 + 3 + 3 + 3 entries of 2: sqrt(21 * 4)
    norm = optimizer.clip(100.0)
    assert norm == pytest.approx(math.sqrt(84)) and torch.all(optimizer.gradients()[0] == 2.0)
    optimizer.clip(1.0)
    assert optimizer.gradients()[0][0, 0].item() == pytest.approx(2 / math.sqrt(84))
    optimizer.zero_grad()
    assert not optimizer.gradients() and all(p.grad is None for p in model.parameters())


def test_a_gradient_that_is_not_finite_shows_in_the_norm():
    model = layer()
    optimizer = make_optimizer(model)
    fill_grads(model, 0)
    model[0].weight.grad[0, 0] = math.nan
    assert math.isnan(optimizer.clip(1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restored_state_goes_on_bit_for_bit(dtype):
    one, two = layer(dtype), layer(dtype)
    first, second = make_optimizer(one), make_optimizer(two)
    for seed in range(2):
        fill_grads(one, seed)
        first.step(1e-2)
        first.zero_grad()
    with torch.no_grad():
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            b.copy_(a)
    second.restore({name: tensor.clone() for name, tensor in first.tensors().items()})
    for seed in range(2, 4):
        for model, optimizer in ((one, first), (two, second)):
            fill_grads(model, seed)
            optimizer.step(5e-3)
            optimizer.zero_grad()
    for (name, tensor), other in zip(first.tensors().items(), second.tensors().values(), strict=True):
        assert torch.equal(tensor, other), name
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"master/0.weight": None}, "master/0.weight"),
        ({"exp_avg/2.weight": torch.zeros(3)}, "exp_avg/2.weight"),
        ({"exp_avg/0.bias": torch.zeros(4)}, "exp_avg/0.bias"),
        ({"other/0.bias": torch.zeros(3)}, "other/0.bias"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_whole(change, told):
    first, second = (make_optimizer(layer(torch.bfloat16)) for _ in range(2))
    for optimizer in (first, second):
        for parameter in optimizer.params.values():
            parameter.grad = torch.ones_like(parameter)
    first.step(1e-2)
    before = {name: tensor.clone() for name, tensor in second.tensors().items()}
    state = {name: tensor for name, tensor in {**first.tensors(), **change}.items() if tensor is not None}
    with pytest.raises(ValueError, match=told):
        second.restore(state)
    now = second.tensors()
    assert now.keys() == before.keys() and all(torch.equal(now[name], before[name]) for name in now)


def test_masters_are_never_dropped_in_silence():
    half, whole = make_optimizer(layer(torch.bfloat16)), make_optimizer(layer())
    with pytest.raises(ValueError, match="4 tensors .*master/"):
        whole.restore(half.tensors())
    with pytest.raises(ValueError, match="4 tensors .*master/"):
        half.restore(whole.tensors())


def test_learning_rates_by_hand():
    # 20 updates, a fifth of them warm-up: 1/4, 2/4, 3/4, 4/4, then 16 updates of half a cosine
    rates = [lr_at(t, 20, 1.0, 0.2) for t in range(20)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[12] == pytest.approx(0.5)
    assert rates[19] == pytest.approx((1 + math.cos(math.pi * 15 / 16)) / 2)
    assert lr_at(12, 20, 2.0, 0.2, "linear") == pytest.approx(1.0)
    assert lr_at(12, 20, 2.0, 0.2, "constant") == 2.0
    assert lr_at(0, 1, 3.0, 0.0) == 3.0


@given(
    total=st.integers(1, 500),
    warmup=st.floats(0, 1),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
)
def test_learning_rates_rise_then_fall_and_are_never_zero(total, warmup, schedule):
    rates = [lr_at(t, total, 1e-6, warmup, schedule) for t in range(total)]
    top = rates.index(max(rates))
    assert all(0 < rate <= 1e-6 for rate in rates)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
