"""Training of roles: loss, class balance, early stopping, resume."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mapo.local_model.policy import LocalPolicy
from mapo.roles.learning import Answers, Data, Predictions, Settings, mean_loss, predict, train
from mapo.roles.packing import Example, pack
from support import tiny

OPTIONS = ((11, 12, 13), (14, 15))


def policy():
    return LocalPolicy(
        tiny.model("qwen2"), tiny.tokenizer(), "tiny", "", False, torch.device("cpu"), torch.float32
    )


def data(count=8, start=0):
    """Prompts whose fifth token decides the answers."""
    made = []
    for n in range(start, start + count):
        word = 40 + n % 3
        ids = (20, 21, 22, 23, word, 24, 25, 26, 27, 28)
        made.append(Example(f"t{n}", ids, (6, 9), OPTIONS, (n % 3, n % 2)))
    return Data(made, [row for n, e in enumerate(made) for row in pack([e], [n], 100)])


def test_options_that_a_place_does_not_allow_have_no_probability():
    made = data()
    predicted = predict(policy(), made.examples, made.rows, 64)
    for places in predicted.reads:
        assert [len(p) for p in places] == [3, 2]
        assert [sum(map(math.exp, p)) for p in places] == pytest.approx([1, 1], abs=1e-5)


def test_rare_answers_weigh_more():
    made = [Example(f"t{n}", (1, 2), (1,), ((11, 12),), (int(n == 0),)) for n in range(4)]
    # frequencies 3/4 and 1/4: weights ~ (3/4)^-1 and (1/4)^-1, scaled to mean 1 -> 2/3 and 2
    assert Answers.of(made, 1.0).weights == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert Answers.of(made, 0.0).weights == pytest.approx([1, 1, 1, 1])


def test_mean_loss_adds_answers_and_text():
    made = [Example("a", (1, 2), (1,), ((11, 12),), (1,)), Example("b", (1, 2, 3), text=1)]
    predictions = Predictions([[[-0.5, -1.0]], []], np.array([0.0, -6.0]), np.array([0, 2]))
    assert mean_loss(made, predictions, 0.5) == pytest.approx(1.0 + 0.5 * 3.0)


def run(folder, settings, validation=None, **options):
    own, records = policy(), []
    state = train(own, data(24), validation, settings, folder, records.append, **options)
    return own, state, records


def weights(own):
    return torch.cat([p.detach().flatten() for p in own.model.parameters()])


def test_training_learns_what_the_prompts_show(tmp_path):
    settings = Settings(epochs=12, lr=5e-3, tokens=80, checks=1, patience=99)
    own, state, _ = run(tmp_path, settings, data(6, 100))
    predicted = predict(own, data(6).examples, data(6).rows, 64)
    first = [int(np.argmax(places[0])) for places in predicted.reads]
    assert first == [n % 3 for n in range(6)]
    assert state.best_loss < 0.6


def test_the_best_weights_are_kept_and_training_stops(tmp_path):
    wrong = data(6, 100)
    flipped = [
        Example(e.name, e.ids, e.reads, e.options, ((e.answers[0] + 1) % 3, 1 - e.answers[1]))
        for e in wrong.examples
    ]
    settings = Settings(epochs=40, lr=5e-3, tokens=80, checks=1, patience=2)
    own, state, records = run(tmp_path, settings, Data(flipped, wrong.rows))
    assert state.step < 40 * 3 and state.worse == 2
    measured = mean_loss(flipped, predict(own, flipped, wrong.rows, 64))
    assert measured == pytest.approx(state.best_loss, abs=1e-5)
    assert min(r["validation_loss"] for r in records if "validation_loss" in r) == state.best_loss


class Killed(Exception):
    pass


def test_a_killed_run_continues_to_the_same_result(tmp_path):
    settings = Settings(epochs=3, lr=5e-3, tokens=80, checks=1, patience=99, save_minutes=0)
    whole, state, _ = run(tmp_path / "whole", settings, data(6, 100))
    steps = state.planned

    def die(record):
        if record["step"] == steps - 2:
            raise Killed

    with pytest.raises(Killed):
        train(policy(), data(24), data(6, 100), settings, tmp_path / "killed", die)
    resumed, after, records = run(tmp_path / "killed", settings, data(6, 100))
    assert torch.equal(weights(resumed), weights(whole))
    assert after.best_loss == state.best_loss
    assert records[0]["step"] == steps - 2  # the step that was not saved is the only one to be repeated


def test_a_share_of_the_steps_stops_early(tmp_path):
    settings = Settings(epochs=4, tokens=80)
    _, state, records = run(tmp_path, settings, stop_at=0.5)
    assert state.step == state.planned // 2 == records[-1]["of"]


def test_a_time_limit_ends_training(tmp_path):
    _, state, _ = run(tmp_path, Settings(epochs=4, tokens=80, max_minutes=0.0))
    assert state.step <= 1


def test_the_last_weights_within_a_time_limit_are_validated(tmp_path):
    settings = Settings(epochs=1000, lr=1e-4, tokens=80, checks=1, patience=9999, max_minutes=0.01)
    _, state, _ = run(tmp_path, settings, data(6, 100))
    assert state.losses[-1][0] == state.step < state.planned


def test_a_step_of_several_passes_is_one_step(tmp_path, monkeypatch):
    settings = Settings(epochs=1, lr=1e-3, tokens=128)
    once, _, whole = run(tmp_path / "once", settings)
    monkeypatch.setattr("mapo.roles.learning.MICRO", 20)  # two rows
    parts, _, divided = run(tmp_path / "parts", settings)
    assert [r["loss"] for r in divided] == pytest.approx([r["loss"] for r in whole], rel=1e-4)
    assert torch.allclose(weights(parts), weights(once), atol=1e-4)
