"""Examples of roles: what a model learns is what it sees when it plays."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from mapo.local_model.policy import load_policy, load_tokenizer
from mapo.local_model.template import read_template
from mapo.measure.calibration import Calibration
from mapo.models.chat import ReadRequest
from mapo.roles.examples import (
    Encoder,
    added_examples,
    director_examples,
    judge_examples,
    packed,
    reason_examples,
    replies_elsewhere,
    turn_name,
    user_examples,
)
from mapo.roles.kinds import HeldOut, UserKind
from mapo.roles.learning import Predictions, predict
from mapo.roles.probes import probe
from mapo.sampling.local import local_sampler
from mapo.sandbox.readout import BRIEF, judge_messages, turn_places
from support.recordings import EMPATHY, recordings

OWN = recordings(1, 2, turns=3)


@pytest.fixture(scope="module")
def encoder(model_folder):
    return Encoder(read_template(load_tokenizer(str(model_folder))))


def test_predictions_in_training_equal_what_is_read_in_a_dialogue(model_folder, encoder):
    policy = load_policy(str(model_folder), device="cpu")
    data, dropped = packed([judge_examples(r, encoder) for r in OWN], 4096, branching=True)
    assert dropped == 0 and not any(row.branches for row in data.rows)
    trained = predict(policy, data.examples, data.rows, 8192)

    async def play():
        async with local_sampler("", slots=2, context=4096, loaded=policy) as sampler:
            chat = sampler.role("judge")
            return {
                turn_name(r, n): await chat.read(
                    ReadRequest(
                        judge_messages(r.scenario, EMPATHY, r.dialogue.turns[:n]), turn_places(EMPATHY), r.id
                    )
                )
                for r in OWN
                for n in range(1, 4)
            }

    played = asyncio.run(play())
    for example, places in zip(data.examples, trained.reads, strict=True):
        for mine, theirs in zip(places, played[example.name], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)


def test_all_examples_of_a_brief_judge_have_its_layout(encoder):
    own = OWN[0]
    made = [
        *judge_examples(own, encoder, BRIEF),
        *added_examples(own, encoder, ["Elsewhere."], 1.0, 0, BRIEF),
        *reason_examples(own, encoder, 1, 0, BRIEF),
    ]
    assert {example.kind for example in made} == {"recorded", "addition", "reason"}
    shown = [encoder.tokenizer.decode(example.ids) for example in made]
    assert all(f"Trust: {own.scenario.threshold}" in text for text in shown)
    assert not [text for text in shown if own.scenario.persona.name in text]


def test_the_answers_of_a_judge_are_the_recorded_magnitudes(encoder):
    [first, *_] = judge_examples(OWN[0], encoder)
    marks = OWN[0].dialogue.turns[0].levels
    assert first.answers == tuple(
        abs(m.level) for key in EMPATHY.keys for m in (marks[key].progress, marks[key].regression)
    )
    digits = [encoder.tokenizer.decode([token]) for token in first.options[0]]
    assert digits == ["0", "1", "2"]


def text_of(encoder, example):
    return encoder.tokenizer.decode(example.ids[example.text :])


def test_a_user_learns_its_lines_but_the_opening(encoder):
    examples = user_examples(OWN[0], encoder)
    lines = [turn.user for turn in OWN[0].dialogue.turns[1:]]
    assert [text_of(encoder, e).removesuffix("<|im_end|>") for e in examples] == lines
    assert all(e.ids[-1] == encoder.tokenizer.eos_token_id for e in examples)


def test_a_user_does_not_learn_the_texts_of_failed_calls(encoder):
    first, second, third = OWN[0].dialogue.turns
    failed = replace(second, user="（错误：API调用失败）")
    own = replace(OWN[0], dialogue=replace(OWN[0].dialogue, turns=(first, failed, third)))
    assert [e.name for e in user_examples(own, encoder)] == [turn_name(own, 3)]


def test_bits_per_character_count_the_measured_lines_only(encoder):
    own = user_examples(OWN[0], encoder)[:1]
    line = OWN[0].dialogue.turns[1].user
    predictions = Predictions([[]], np.array([-math.log(2) * len(line)]), np.array([7]))
    measured = UserKind(encoder).measure(HeldOut(OWN[:1], own, predictions), Calibration())
    assert measured["bits_per_character"] == pytest.approx(1.0)


def test_worthless_replies_come_from_other_scenarios():
    here, there = OWN
    replies = replies_elsewhere(OWN)
    assert replies[here.scenario.id] == [turn.reply.text for turn in there.dialogue.turns]


def test_probes_that_do_not_fit_are_left_out(encoder):
    def ask(examples):
        assert all(example.needed <= longest for example in examples)
        return [[[-1.0] * len(options) for options in e.options] for e in examples]

    longest = max(e.needed for e in judge_examples(OWN[0], encoder))
    effects = probe(OWN[:1], encoder, ask, Calibration(), 3, 0, longest)["effects"]
    assert effects["length"]["turns"] < 3
    longest = 10
    assert probe(OWN[:1], encoder, ask, Calibration(), 3, 0, longest) == {}


def test_reasons_are_learned_as_text_marks_other_than_zero_first(encoder):
    examples = reason_examples(OWN[0], encoder, 2, 0)
    assert len(examples) == 6
    assert all("it says" in text_of(encoder, e) for e in examples)
    assert reason_examples(OWN[0], encoder, 0, 0) == []


def test_a_director_learns_its_acts_among_those_allowed(encoder):
    examples = director_examples(OWN[0], encoder)
    assert [e.name for e in examples] == [turn_name(OWN[0], 2), turn_name(OWN[0], 3)]
    letters = [encoder.tokenizer.decode([e.options[0][e.answers[0]]]) for e in examples]
    assert letters == ["B", "A"]  # wait, go_on


def test_prompts_beyond_the_limit_are_counted(encoder):
    data, dropped = packed([judge_examples(OWN[0], encoder)], 100, branching=True)
    assert dropped == 3 and not data.examples
