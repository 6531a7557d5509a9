"""Quoted data stays quoted."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mapo.sandbox.transcript import delimiter_of, quote, quoted_turns
from support.roles import turns_of

MARK = delimiter_of("s", 0)
PIECES = [
    "<<",
    ">>",
    "\n",
    '"',
    "\\",
    "[INST]",
    "[/INST]",
    "[gMASK]",
    "[no",
    MARK,
    MARK.upper(),
    "\\u00",
    "é",
    "字",
    "😀",
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=12).map("".join))
def test_a_quotation_is_one_harmless_line_that_decodes_to_the_text(text):
    quoted = quote(text, MARK)
    assert json.loads(quoted) == text
    assert len(quoted.splitlines()) == 1 and quoted.isprintable()
    assert "<" not in quoted and "[INST" not in quoted and "[/INST" not in quoted and "[gMASK" not in quoted
    assert MARK not in quoted.lower()


def test_a_lone_surrogate_is_escaped_and_survives():
    assert quote("a\ud800", MARK) == '"a\\ud800"'


def test_ordinary_text_reads_as_it_was_written():
    assert quote("我很难过。[sighs] It's 5 > 3, 😀!", MARK) == '"我很难过。[sighs] It\'s 5 > 3, 😀!"'


def test_marks_are_stable_and_differ_between_dialogues():
    assert delimiter_of("s", 0) == MARK
    assert len({delimiter_of(s, n) for s in ("s", "t") for n in range(50)}) == 100
    assert MARK[0] not in "0123456789abcdefu"  # cannot overlap a JSON escape


def test_a_longer_conversation_starts_with_the_shorter_one():
    turns = turns_of(("a", "b"), ("c", "d"), ("e", "f"))
    assert quoted_turns(turns, MARK).startswith(quoted_turns(turns[:2], MARK))
