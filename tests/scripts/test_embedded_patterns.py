"""Which replies are in the reach of a small policy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "embedded"))
import patterns
from linear import train_linear
from texts import Line, Person

LINE = "I was alone on the pier when the ferry left."
OTHER = "The harbour shut."
GUARDED = "Never mind."
SENSIBLE = "What did you feel when the ferry left?"


@pytest.mark.parametrize(
    ("reply", "marks"),
    [
        ("You were alone on the pier.", ["RUN4"]),
        (SENSIBLE, ["what", "did", "you", "feel", "RUN4"]),
        ("It must hurt.", ["it", "must", "hurt"]),
        ("You missed that lighthouse.", ["you", "NEW", "that", "NEW"]),
        ("You feel your aloneness.", ["you", "feel", "your", "NEAR"]),
        ("You miss the pier.", ["you", "miss", "RUN2"]),
    ],
)
def test_a_pattern_has_marks_for_words_that_are_not_plain(reply, marks):
    assert patterns.pattern(LINE, reply) == marks


def test_only_words_that_are_not_plain_take_up_a_line():
    assert patterns.takes_up(LINE, "What was the ferry like?")
    assert not patterns.takes_up(LINE, "What was it like for you?")


def test_a_linear_model_learns_which_features_decide():
    rows = [["a", "x"], ["b", "x"], ["a", "y"], ["b", "y"]] * 50
    probabilities = train_linear(rows, [0, 1, 0, 1] * 50, classes=2, buckets=64, passes=4)
    assert probabilities([["a", "x"], ["b", "z"]]).argmax(1).tolist() == [0, 1]
    assert torch.allclose(probabilities(rows[:3]).sum(1), torch.ones(3))


def test_decay_makes_a_linear_model_less_certain():
    rows, labels = [["a"], ["b"]] * 50, [0, 1] * 50
    certain, careful = (
        train_linear(rows, labels, classes=2, buckets=8, passes=4, decay=decay)([["a"]])[0, 0]
        for decay in (0.0, 0.1)
    )
    assert 0.5 < careful < certain


def test_a_linear_model_gives_nothing_for_no_rows():
    assert train_linear([["a"]], [0], classes=2, buckets=8)([]).shape == (0, 2)


def test_training_a_linear_model_draws_no_random_numbers_of_torch():
    before = torch.random.get_rng_state()
    train_linear([["a"]], [0], classes=2, buckets=8)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.fixture
def reachable(monkeypatch):
    """Return a function that gives the reachable replies by line, in the order of the story, of a person
    with these natural replies and pieces by line. Strict verdicts find SENSIBLE sensible, and lenient ones
    what is not."""

    def reachable(natural, pieces=()):
        lines = [Line(OTHER), Line(GUARDED, "guarded"), Line(LINE)]

        def people(replies):
            some = [Line(x.text, x.mood, replies=replies[x.text]) for x in lines if x.text in replies]
            return [Person("a", some, [])]

        folders = {"natural": people(dict(natural)), "pieces": people(dict(pieces))}
        monkeypatch.setattr(patterns, "natural_people", lambda folder="natural": folders[folder])
        monkeypatch.setattr(patterns, "people_with", lambda: ([Person("a", lines, [])], []))
        return {x.text: [r for _, r in x.replies] for p in patterns.reachable_people(0.5) for x in p.lines}

    nonsense = "You are the ferry, you feel."
    strict = [(LINE, SENSIBLE, "ask"), (LINE, nonsense, 0)] * 300
    lenient = [(LINE, SENSIBLE, 0), (LINE, nonsense, 1)] * 900
    rows = [{"lines": [line], "reply": reply, "sense": sense} for line, reply, sense in lenient + strict]
    monkeypatch.setattr(patterns, "verdicts", lambda: rows)
    monkeypatch.setattr(patterns, "STRICT_FROM", len(lenient))
    monkeypatch.setattr(patterns, "sayable_replies", lambda people: people)
    monkeypatch.setattr(patterns, "FEWEST_STORY_LINES", 1)
    return reachable


def test_natural_replies_of_sensible_patterns_are_reachable(reachable):
    replies = [("ask", SENSIBLE), ("feel", "You are the ferry, you feel.")]
    assert reachable({LINE: replies}) == {LINE: [SENSIBLE]}


def test_natural_replies_to_a_story_must_take_up_something(reachable):
    general, about = "What did you feel when you saw it?", "What did you feel when the harbour shut?"
    natural = {LINE: [("ask", general)], GUARDED: [("ask", general)], OTHER: [("ask", about)]}
    assert reachable(natural) == {OTHER: [about], GUARDED: [general]}


def test_clean_short_pieces_are_reachable_and_stand_in_order_of_the_story(reachable):
    pieces = [
        ("detail", "So the harbour shut."),
        ("detail", "the harbour shut"),
        ("detail", "The harbour shut, and the harbour shut, and then the whole harbour shut."),
    ]
    replies = reachable({LINE: [("ask", SENSIBLE)]}, {OTHER: pieces})
    assert list(replies.items()) == [(OTHER, ["So the harbour shut."]), (LINE, [SENSIBLE])]


def test_people_without_enough_of_a_story_are_left_out(reachable, monkeypatch):
    monkeypatch.setattr(patterns, "FEWEST_STORY_LINES", 2)
    assert not reachable({LINE: [("ask", SENSIBLE)]})
