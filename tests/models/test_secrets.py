import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.models.secrets import MIN_RUN, scrub

KEY = "sk-proj-A1b2/C3d4+E5f6_G7h8=I9j0"
TEXT = "I hear you. That sounds like a long week, and nobody asked how you are. " * 3

FORMS = {
    "plain": KEY,
    "reversed": KEY[::-1],
    "upper case": KEY.upper(),
    "spaced": " ".join(KEY),
    "with dots": ".".join(KEY),
    "over lines": "\n".join(KEY[n : n + 5] for n in range(0, len(KEY), 5)),
    "URL": quote(KEY, safe=""),
    "all bytes as URL": "".join(f"%{ord(c):02X}" for c in KEY),
    "hex": KEY.encode().hex(),
    "hex with colons": ":".join(f"{ord(c):02x}" for c in KEY),
    "JSON": json.dumps(KEY).replace("/", "\\/"),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(KEY.encode()).decode(),
    "base64 of the header": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "base64 of a pair": base64.b64encode(f"user:{KEY}\n".encode()).decode(),
    "base64 within JSON": base64.b64encode(json.dumps({"k": KEY}).encode()).decode(),
    "first half": KEY[:22],
    "last half": KEY[12:],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_key_is_removed_in_every_form(form):
    clean = scrub(f"Your key is {FORMS[form]}, isn't it?", KEY)
    assert clean.startswith("Your key is ") and clean.endswith(", isn't it?")
    assert "***" in clean
    letters = "".join(char for char in FORMS[form] if char.isalnum())
    left = "".join(char for char in clean if char.isalnum())
    assert not any(letters[n : n + 12] in left for n in range(len(letters) - 11))


def test_ordinary_text_is_unchanged():
    assert scrub(TEXT, KEY) == TEXT
    assert scrub("the key is none", "none") == "the key is none"
    assert scrub("", KEY) == ""


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("not-needed", "That was not needed."),
        ("sk-local", "Please ask locally."),
        ("sk-no-key-required", "There is no key required here."),
        ("password1", "Pass word 1."),
    ],
)
def test_placeholder_keys_do_not_change_ordinary_text(key, text):
    assert scrub(text, key) == text
    assert scrub(f"{text} {key}", key) == f"{text} ***"


def test_several_occurrences_are_removed():
    assert scrub(f"{KEY} and {KEY[::-1]} and {KEY}", KEY) == "*** and *** and ***"


@given(
    before=st.text(max_size=40),
    after=st.text(max_size=40),
    start=st.integers(0, 20),
    length=st.integers(MIN_RUN, 60),
)
def test_any_long_part_is_removed(before, after, start, length):
    letters = "skprojA1b2C3d4E5f6G7h8I9j0"
    part = letters[start : start + length]
    clean = scrub(before + part + after, KEY)
    assert len(part) < MIN_RUN or part not in clean
