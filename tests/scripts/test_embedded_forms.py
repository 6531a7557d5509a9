"""Which replies are in the reach of a small policy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "embedded"))
import forms
from linear import train_linear
from texts import Line, Person

LINE = "I was alone on the pier when the ferry left."


@pytest.mark.parametrize(
    ("reply", "marks"),
    [
        ("You were alone on the pier.", ["RUN4"]),
        ("What did you feel when the ferry left?", ["what", "did", "you", "feel", "RUN4"]),
        ("It must hurt.", ["it", "must", "hurt"]),
        ("You missed that lighthouse.", ["you", "NEW", "that", "NEW"]),
        ("You feel your aloneness.", ["you", "feel", "your", "NEAR"]),
    ],
)
def test_a_form_has_marks_for_the_persons_words(reply, marks):
    found = forms.form(LINE, reply)
    assert found[-len(marks) :] == marks


def test_a_form_counts_words_in_a_row_up_to_four():
    assert forms.form("The red boat.", "The boat.") == ["the", "RUN1"]
    assert forms.form("The old red boat sank here.", "The old red boat sank here.") == ["RUN4"]


def test_only_words_that_are_about_something_take_up_a_line():
    assert forms.takes_up(LINE, "What was the ferry like?")
    assert not forms.takes_up(LINE, "What was it like for you?")


def test_a_linear_model_learns_which_features_decide():
    rows = [["a", "x"], ["b", "x"], ["a", "y"], ["b", "y"]] * 50
    probabilities = train_linear(rows, [0, 1, 0, 1] * 50, classes=2, buckets=64, passes=4)
    assert probabilities([["a", "x"], ["b", "z"]]).argmax(1).tolist() == [0, 1]
    assert torch.allclose(probabilities(rows[:3]).sum(1), torch.ones(3))


def test_a_linear_model_gives_nothing_for_no_rows():
    assert train_linear([["a"]], [0], classes=2, buckets=8)([]).shape == (0, 2)


@pytest.fixture
def some_people(monkeypatch):
    """Two people with natural replies, one also with pieces; verdicts find questions sensible."""

    def line(text, *replies, mood="story"):
        return Line(text, mood, replies=list(replies))

    def person(name, *lines):
        return Person(name, list(lines), [])

    asked, told = ("ask", "What did you feel when the ferry left?"), ("feel", "You are the ferry, you feel.")
    natural = [
        person(
            "a", line(LINE, asked, told), line("Never mind.", ("ask", "What do you want?"), mood="guarded")
        ),
        person("b", line("The dog barks.", ("feel", "You feel it."))),
    ]
    pieces = [person("a", line("The harbour shut.", ("detail", "So the harbour shut.")))]
    empty = [
        person("a", line("The harbour shut."), line("Never mind.", mood="guarded"), line(LINE)),
        person("b", line("The dog barks.")),
    ]
    rows = [(LINE, "What did you feel when the ferry left?", 1), (LINE, "You are the ferry, you feel.", 0)]
    verdicts = [{"lines": [a], "reply": b, "sense": c} for a, b, c in rows * 300]
    monkeypatch.setattr(
        forms, "natural_people", lambda folder="natural": pieces if folder == "pieces" else natural
    )
    monkeypatch.setattr(forms, "people_with", lambda: (empty, []))
    monkeypatch.setattr(forms, "sayable_replies", lambda people: people)
    monkeypatch.setattr(forms, "verdicts", lambda: verdicts)
    monkeypatch.setattr(forms, "STRICT_FROM", 0)


@pytest.mark.usefixtures("some_people")
def test_reachable_replies_are_of_sensible_forms_or_written_for_it_in_order_of_the_story():
    (person,) = forms.reachable_people(0.5)
    assert person.id == "a"
    assert [(line.text, [reply for _, reply in line.replies]) for line in person.lines] == [
        ("The harbour shut.", ["So the harbour shut."]),
        ("Never mind.", ["What do you want?"]),
        (LINE, ["What did you feel when the ferry left?"]),
    ]
