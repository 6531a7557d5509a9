"""Chat templates of several families: what they append, what they rewrite, and what nobody can forge."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from mapo.errors import InputError
from mapo.local_model.template import Template, _controls, keep_turns_verbatim, read_template
from mapo.types import Message
from support import tiny, tiny_policy

TALK = [
    Message("system", "Be kind."),
    Message("user", "I am tired."),
    Message("assistant", "That sounds hard."),
    Message("user", "Nobody listens."),
]
END = {"chatml": "<|im_end|>", "llama3": "<|eot|>", "qwen3": "<|im_end|>", "gemma": "<end_of_turn>"}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_end_mark_is_what_the_template_puts_after_a_reply(family):
    tokenizer = tiny.tokenizer(family)
    template = read_template(tokenizer)
    assert tokenizer.convert_tokens_to_ids(END[family]) in template.end_ids
    assert tokenizer.eos_token_id in template.end_ids


@pytest.mark.parametrize("family", ["chatml", "llama3", "gemma"])
def test_appended_ids_spell_the_rendered_conversation(family):
    tokenizer = tiny.tokenizer(family)
    template = read_template(tokenizer)
    assert template.append_only and "append-only" in template.description
    reply = tokenizer.encode("That sounds hard.", add_special_tokens=False)
    mark = tokenizer.convert_tokens_to_ids(END[family])
    opening = template.full_prompt(TALK[:2])
    whole = tokenizer.decode(template.full_prompt(TALK))
    stopped = [*opening, *reply, mark, *template.next_turn("stop", "Nobody listens.")]
    cut = [*opening, *reply, *template.next_turn("length", "Nobody listens.")]
    assert tokenizer.decode(stopped) == whole
    assert cut == stopped


def test_qwen3_rewrites_earlier_turns_with_and_without_thinking():
    tokenizer = tiny.tokenizer("qwen3")
    for options in ({}, {"enable_thinking": True}):
        template = read_template(tokenizer, **options)
        assert not template.append_only and "rewrites" in template.description
        with pytest.raises(InputError, match="rewrites"):
            template.next_turn("stop", "And now?")
    off, on = read_template(tokenizer), read_template(tokenizer, enable_thinking=True)
    thought = tokenizer.convert_tokens_to_ids("<think>")
    assert thought in off.full_prompt(TALK) and thought not in on.full_prompt(TALK)


def test_a_system_prompt_is_folded_where_the_template_refuses_it():
    tokenizer = tiny.tokenizer("gemma")
    text = tokenizer.decode(read_template(tokenizer).full_prompt(TALK))
    assert "<start_of_turn>user\nBe kind.\n\nI am tired.<end_of_turn>" in text
    assert text.count("Be kind.") == 1


def test_no_template_and_impossible_roles_are_refused():
    bare = tiny.tokenizer("chatml").__class__(tokenizer_object=tiny.tokenizer("chatml").backend_tokenizer)
    with pytest.raises(InputError, match="no chat template"):
        read_template(bare)
    with pytest.raises(InputError, match="alternate"):
        read_template(tiny.tokenizer("gemma")).full_prompt([TALK[1], TALK[1]])


@pytest.mark.parametrize("family", tiny.FAMILIES)
@given(data=st.data())
def test_no_words_become_control_tokens(family, data):
    tokenizer = tiny.tokenizer(family)
    template = read_template(tokenizer)
    spelled = [token.content for token in tokenizer.added_tokens_decoder.values()]
    cuts = [s[:at] for s in spelled for at in (1, 4)] + [s[at:] for s in spelled for at in (1, 4)]
    text = "".join(data.draw(st.lists(st.sampled_from([*spelled, *cuts, "a", " ", "\n"]), max_size=8)))
    controls = set(tokenizer.added_tokens_decoder)
    calm = [Message(m.role, "a") for m in TALK]
    loud = [Message(m.role, text) for m in TALK]

    def marks(ids):
        return [token for token in ids if token in controls]

    assert not marks(tokenizer.encode(template.escape_controls(text), add_special_tokens=False))
    assert marks(template.full_prompt(loud)) == marks(template.full_prompt(calm))
    if template.append_only:
        assert marks(template.next_turn("length", text)) == marks(template.next_turn("length", "a"))


ODD = st.text(alphabet=" <|>a\n\u3000\ufffd", min_size=1, max_size=4)


@given(marks=st.lists(ODD, min_size=1, max_size=4, unique=True), data=st.data())
@example(marks=[" <x>"], data=None)
@example(marks=["<x> "], data=None)
@example(marks=["  "], data=None)
@example(marks=["\ufffd"], data=None)
@example(marks=["a", "\ufffd", " "], data=None)
def test_odd_control_tokens_are_pulled_apart_too(marks, data):
    """Some begin or end with a space, some are nothing else."""
    tokenizer = tiny_policy.tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    spelled, controls = _controls(tokenizer)
    template = Template(tokenizer, True, "", frozenset(), controls=controls, spelled=spelled)
    parts = [*marks, *(mark[1:] for mark in marks), *(mark[:1] for mark in marks), " ", "b"]
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=8)) if data else 3 * parts)
    assert not controls & set(tokenizer.encode(template.escape_controls(text), add_special_tokens=False))


def test_text_that_cannot_be_escaped_is_dropped():
    class Stubborn:
        """Reads a control token into everything."""

        def encode(self, text, add_special_tokens):
            return [7, 1] if text else []

        def decode(self, ids):
            return "still here"

    template = Template(Stubborn(), True, "", frozenset(), controls=frozenset({7}))
    assert template.escape_controls("hello") == ""


def test_plain_text_is_unchanged():
    template = read_template(tiny.tokenizer("chatml"))
    for text in ("2 < 3 and 4 > 1", "a|b", "", "émoji 🙂", "[INST] is no token here"):
        assert template.escape_controls(text) == text
    # pulled apart, not dropped
    assert template.escape_controls("stop<|im_end|>here") == "stop< |im_end|>here"


@pytest.mark.parametrize("thinking", [False, True])
def test_a_template_that_rewrites_can_be_made_append_only(thinking):
    tokenizer = tiny.tokenizer("qwen3")
    template = keep_turns_verbatim(read_template(tokenizer, enable_thinking=thinking))
    assert template.append_only and "kept as sampled" in template.description
    assert not read_template(tokenizer, enable_thinking=thinking).append_only
    opening = template.full_prompt([Message("user", "Good morning.")])
    reply = tokenizer.encode("So it is.", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    between = template.next_turn("stop", "And now?")
    seen = tokenizer.decode([*opening, *reply, end, *between])
    asked = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n" + (
        "" if thinking else "<think>\n\n</think>\n\n"
    )
    assert seen == asked.format("Good morning.") + "So it is.<|im_end|>\n" + asked.format("And now?")
    assert template.next_turn("length", "And now?") == [end, *between]
    said = "Well. Good day to you. Good day to you."  # words the check itself uses
    assert said in tokenizer.decode(template.next_turn("stop", said))


def test_an_append_only_template_is_unchanged():
    template = read_template(tiny.tokenizer("chatml"))
    assert keep_turns_verbatim(template) is template


def test_a_template_whose_turns_differ_cannot_be_made_append_only():
    tokenizer = copy.deepcopy(tiny.tokenizer("chatml"))
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.revindex }} {{ loop.index }}\n"
        "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    with pytest.raises(InputError, match="changes from turn to turn"):
        keep_turns_verbatim(read_template(tokenizer))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_prompts_by_piece_are_the_prompts(family):
    """Pieces between control tokens are tokenised once; the ids are those of the whole text."""
    template = read_template(tiny.tokenizer(family))
    assert template.separators is not None
    lines = ["Hello  there.\n", " It rains,\u0338 e\u0301 again ", "", "What\n\nnow?", "\tSo it does"]
    roles = ["user", "assistant"] * 3
    messages = []
    for role, line in zip(roles, lines, strict=False):
        messages.append(Message(role, line))
        if role == "user":
            assert template.full_prompt(messages) == template._ids(template._text(messages))


def test_growing_prompts_tokenise_only_what_is_new():
    template = read_template(tiny.tokenizer())
    messages = [Message("system", "Be kind."), Message("user", "Hello there.")]
    template.full_prompt(messages)
    encoded, own = [], template.tokenizer.encode
    with mock.patch.object(
        template.tokenizer, "encode", lambda text, **o: encoded.append(text) or own(text, **o)
    ):
        template.full_prompt([*messages, Message("assistant", "It snows."), Message("user", "And then?")])
    assert {*encoded} == {"assistant\nIt snows.", "user\nAnd then?"}


def test_a_tokenizer_that_puts_a_space_before_a_text_gets_it_whole():
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    template = read_template(tokenizer)
    assert template.separators is None
    assert template.full_prompt(TALK) == template._ids(template._text(TALK))


def test_texts_are_remembered_within_limits(monkeypatch):
    monkeypatch.setattr("mapo.local_model.template._REMEMBERED", 10)
    template = read_template(tiny.tokenizer())
    for at in range(40):
        template.full_prompt([Message("user", f"Hello {at}")])
    assert len(template._escaped) <= 10 >= len(template._pieces)
