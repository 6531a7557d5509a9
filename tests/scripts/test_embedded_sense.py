"""The reader that tells sense from nonsense (scripts/embedded/sense.py), with a tiny model of its kind."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

pytest.importorskip("peft")
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "embedded"))

import sense
import texts


class Letters:
    """A tokenizer with one id per letter."""

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [[ord(letter) % 250 for letter in text] for text in texts]}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def read(model, items):
    encoder = sense.Encoder(Letters())
    encoder.yes, encoder.no = 1, 2
    rows = sense.rows_of(encoder.parts(items))
    with torch.no_grad():
        return sense.answers(model, encoder, rows, "cpu")


def test_replies_of_a_line_do_not_see_each_other(model):
    items = [
        sense.Item(["I sold the boat."], ["What did it cost?", "A boat.", "Then I'll leave it there."]),
        sense.Item(
            ["It rained.", "I stayed in and read the same page again."], ["Which one?", "Go out more."]
        ),
    ]
    alone = [sense.Item(item.lines, [reply]) for item in items for reply in item.replies]
    together = read(model, items)
    assert len(set(together.tolist())) == 5
    torch.testing.assert_close(
        together, torch.cat([read(model, [item]) for item in alone]), atol=1e-5, rtol=1e-4
    )


def test_the_story_before_a_line_counts(model):
    short, long = (sense.Item([*before, "I sold it."], ["The boat?"]) for before in ([], ["I had a boat."]))
    assert read(model, [short]).item() != pytest.approx(read(model, [long]).item(), abs=1e-7)


def test_some_written_replies_are_spoiled_and_known_to_be():
    people = texts.known_people()[:40]
    items = sense.written(people, 200, random.Random(0))
    replies = {reply for person in people for line in person.lines for _, reply in line.replies}
    pairs = [pair for item in items for pair in zip(item.replies, item.sense, strict=True)]
    assert all(reply in replies for reply, makes_sense in pairs if makes_sense)
    assert 0.1 < sum(not makes_sense for _, makes_sense in pairs) / len(pairs) < 0.35


def test_batches_stay_within_their_budget():
    encoded = [([0] * length, [[0] * 5] * 2) for length in range(5, 60)]
    groups = sense.batches(encoded, 256)
    assert sorted(index for group in groups for index in group) == list(range(55))
    assert all(len(group) == 1 or len(group) * (max(group) + 5 + 10) <= 256 for group in groups)
