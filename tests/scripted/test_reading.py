"""What words show, in any domain; the empathy world's own tests hold the numbers."""

from __future__ import annotations

import pytest

from mapo.scripted.reading import Reader, content, function_words, particulars, phrase_book, skeleton

BOOK = phrase_book({"thank": ["thank(?:s| you)"], "order": ["you (?:must|have to)"]})


def test_phrases_are_found_at_word_boundaries_and_in_any_case():
    reading = Reader(BOOK).read("THANK you for it, I mean it as I say it.")
    assert reading.finds("thank") == "thank you" and reading.does("thank")
    assert Reader(BOOK).read("A thankyou card is what you musty people like to get.").finds("order") == ""
    with pytest.raises(KeyError):
        reading.finds("nothing of that name")


def test_a_worn_formula_does_nothing_but_is_still_there():
    reader = Reader(BOOK)
    texts = [f"I thank you for the {thing} that you brought." for thing in ("kettle", "coat", "lamp")]
    readings = [reader.read(text) for text in texts]
    assert [r.does("thank") for r in readings] == [True, True, False]
    assert readings[2].finds("thank") == "thank you" and readings[2].stale and not readings[2].sound


def test_particulars_and_meaning():
    assert particulars("The kettle, and my old coat!") == ["kettle", "coat"]
    assert content("Kettles and kettle") == {"kettl"}
    assert "the" in function_words() and "kettle" not in function_words()
    assert skeleton("The kettle and the coat.") == skeleton("A lamp.")


def test_what_is_taken_up_and_what_is_handed_back():
    reader = Reader()
    reader.user_said("I weighed the dough on the old scale before anybody came.")
    assert reader.read("What did the scale say to you then?").mentions(["old scale", "dough"]) == [
        "old scale"
    ]
    copied = reader.read("So you say I weighed the dough on the old scale before anybody came.")
    assert copied.copied and not copied.sound and copied.covers("weighed the dough")
