"""Choosing the replies that a policy learns from its own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "embedded"))
from choose_replies import SEEN, Choice, best, candidates, places
from dialogues import NOTHING, Exchange


def exchange(line, reply=""):
    return Exchange(line, reply, "vague", NOTHING)


def test_candidates_are_clean_short_and_about_the_line():
    context = [exchange("I left.", "Did that hurt?"), exchange("The boat was gone when I came to the pier.")]
    replies = {
        "You came and the boat was gone.": True,
        "You came to the pier and saw nothing.": True,
        "Did that hurt?": False,  # said before
        "The boat was gone when I came to it.": False,  # copied
        "You miss the harbourmaster.": False,  # nobody spoke of one
        "you came": False,  # no sentence
        "You came, and you came, and you came, and you came, and you came back.": False,  # long
    }
    sampled = [(0, reply) for reply in replies] * 2
    kept = candidates(iter(sampled), [context])
    assert kept == [(0, reply) for reply, wanted in replies.items() if wanted]


def test_the_most_sensible_are_kept_but_few_of_a_place():
    senses = {0: (0.9, 0.8, 0.7, 0.1), 1: (0.6, 0.2)}
    choices = [
        Choice(place, f"line {place}", f"{place}: {sense}", sense, good=True)
        for place, some in senses.items()
        for sense in some
    ]
    kept = best(choices, 4 / 6)
    assert [choice.sense for choice in kept] == [0.9, 0.8, 0.6]


def test_no_reply_to_a_line_is_kept_twice():
    choices = [Choice(place, "line", "reply", 0.5, good=True) for place in range(3)]
    assert best(choices, 1) == choices[:1]


def test_places_hold_the_last_exchanges():
    contexts = places(3, seed=1)
    assert {len(context) for context in contexts} == set(range(1, SEEN + 2))
    assert places(3, seed=1) == contexts
