"""Guides: whatever a model would say, its form parses and follows the schema."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import ANY_OBJECT, Request
from mapo.models.structured import read_json
from mapo.realsim.json_schema import BOOLEAN, TEXT, check_form, form, form_from, list_of, one_of
from mapo.realsim.model_steps import scenario_schema
from mapo.sampling import guides as guides_module
from mapo.sampling.guides import LONGEST_TEXT, Guides, allowed_tokens
from mapo.sandbox.director import FORM
from mapo.sandbox.judge import parse_start, parse_turn, start_schema, turn_schema
from mapo.types import Message
from support import tiny
from support.sampled import sampler, together
from support.tiny_policy import tiny_tokenizer

RUBRIC = Rubric.load("empathy")
SCENARIO = scenario_schema(RUBRIC, ("work", "family"))
FACTS = form_from(
    {"identifying": list_of(form(text=TEXT, kind=one_of(("name", "place")))), "usable": BOOLEAN}
)


def is_object(data):
    assert isinstance(data, dict)


FORMS = {
    "turn": (turn_schema(RUBRIC), lambda data: parse_turn(data, RUBRIC)),
    "start": (start_schema(RUBRIC), lambda data: parse_start(data, RUBRIC)),
    "director": (FORM, lambda data: check_form(data, FORM)),
    "scenario": (SCENARIO, lambda data: check_form(data, SCENARIO)),
    "facts": (FACTS, lambda data: check_form(data, FACTS)),
    "any": (ANY_OBJECT, is_object),
}
TOKENIZERS = {
    "bytes": Guides(tiny_tokenizer(), 258, frozenset([1])),
    "merges": Guides(tiny.tokenizer(), 448, frozenset([1, 2])),
}


def allowed(guide):
    return np.flatnonzero(np.unpackbits(allowed_tokens([guide])[0].view(np.uint8), bitorder="little"))


def random_form(guides, schema, limit, seed):
    """Fill in a form with tokens drawn evenly from those allowed; its text, and whether it was completed."""
    guide, rng = guides.guide(schema, limit), np.random.default_rng(seed)
    ids = guide.force()
    while not guide.ended and len(ids) < limit:
        ids.append(int(rng.choice(allowed(guide))))
        guide.consume(ids[-1])
        if not guide.ended:
            ids += guide.force()
    assert len(ids) <= limit
    return guides._tokenizer.decode(ids, skip_special_tokens=True), guide.complete


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), spare=st.one_of(st.integers(0, 40), st.integers(0, 600)))
def test_random_tokens_fill_in_every_form_within_the_limit(name, kind, seed, spare):
    guides, (schema, parse) = TOKENIZERS[kind], FORMS[name]
    text, complete = random_form(guides, schema, guides.needed(schema) + spare, seed)
    assert complete
    parse(json.loads(text) if name == "any" else read_json(text))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_random_model_fills_in_every_form(name, temperature):
    schema, parse = FORMS[name]
    made = sampler(slots=2, context=900)
    limit = made.guides.needed(schema) + 30
    messages = (Message("user", "Fill in the form."),)
    request = Request(messages, temperature=temperature, max_tokens=limit, schema=schema, seed=3)
    answer = together(made, lambda s: s.role("judge").reply(request))[0]
    assert answer.reply.finish == "stop"
    parse(read_json(answer.text))


def test_a_form_ends_only_when_it_is_complete():
    guides = TOKENIZERS["merges"]
    guide = guides.guide(FORM, 200)
    while not guide.complete:
        choices = allowed(guide)
        assert not {1, 2} & {*choices}
        guide.consume(int(choices[0]))
    assert {*allowed(guide)} <= {1, 2}


def test_many_masks_at_once_are_those_of_each():
    guides = TOKENIZERS["merges"]
    made = [guides.guide(schema, 900) for schema, _ in FORMS.values()]
    for guide in made[:3]:
        guide.force()
    masks = allowed_tokens(made)
    assert [list(row) for row in masks] == [list(allowed_tokens([guide])[0]) for guide in made]
    assert len({row.tobytes() for row in masks}) > 1


def test_texts_are_bounded_by_their_share_of_the_limit():
    guides = TOKENIZERS["bytes"]
    quote = guides._tokenizer.encode('"')[0]
    for limit, longest in ((60, 40), (100, 60), (5000, LONGEST_TEXT)):
        schema = form(text=TEXT)
        guide = guides.guide(schema, limit)
        for token in guides._tokenizer.encode('{"text":"'):
            guide.consume(token)
        length = 0
        while len(choices := allowed(guide)) > 1:
            guide.consume(int(next(c for c in choices if c != quote and c < 100)))
            length += 1
        assert length <= longest
        assert [*choices] == [quote]


def test_bounds_of_a_schema_are_kept():
    guides = TOKENIZERS["bytes"]
    schema = {
        "type": "object",
        "properties": {
            "few": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
            "short": {"type": "string", "maxLength": 1},
            "whatever": {},
        },
        "required": ["few", "short", "whatever"],
        "additionalProperties": False,
    }
    for seed in range(20):
        data = json.loads(random_form(guides, schema, 300, seed)[0])
        assert len(data["few"]) <= 2
        assert len(data["short"]) <= 1


def test_grammars_are_compiled_once_per_schema():
    guides = Guides(tiny.tokenizer(), 448, frozenset([1]))
    guides.guide(FORM, 2000)
    guides.guide(FORM, 1999)
    assert len(guides._grammars) == 1
    for at in range(guides_module._MAX_GRAMMARS + 3):
        guides.guide(form_from({f"key{at}": TEXT}), 500)
    assert len(guides._grammars) <= guides_module._MAX_GRAMMARS


def test_a_schema_that_cannot_be_enforced_is_refused():
    schema = form(text={"type": "string", "pattern": "("})
    with pytest.raises(InputError, match="cannot be enforced"):
        TOKENIZERS["bytes"].guide(schema, 500)


def test_a_tokenizer_without_its_json_is_refused():
    slow = SimpleNamespace(encode=lambda *_, **__: [1], name_or_path="slow")
    with pytest.raises(InputError, match="does not support this tokenizer"):
        Guides(slow, 10, frozenset([1])).guide(FORM, 500)


def test_without_llguidance_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"pip install 'mapo-rl\[train\]'"):
        Guides(tiny.tokenizer(), 448, frozenset([1])).guide(FORM, 500)
