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


def chosen(place, line, reply, sense):
    return Choice(place, line, reply, sense, good=True)


def test_one_reply_is_kept_where_it_makes_most_sense():
    senses = {0: (0.9, 0.8), 1: (0.3, 0.85), 2: (0.5, 0.1)}
    choices = [
        chosen(place, f"line {place}", f"{place}: {sense}", sense)
        for place, some in senses.items()
        for sense in some
    ]
    assert [choice.sense for choice in best(choices, 2 / 3)] == [0.9, 0.85]


def test_no_reply_to_a_line_is_kept_twice():
    choices = [chosen(place, "line", "reply", 0.5) for place in range(3)]
    assert best(choices, 1) == choices[:1]


def test_few_replies_begin_alike():
    alike = [chosen(n, f"line {n}", f"You must be {n}.", 0.9) for n in range(50)]
    others = [chosen(n, f"line {n}", f"{n} times?", 0.1) for n in range(100)]
    kept = best(alike + others, 1)
    assert sum(choice.reply.startswith("You must be") for choice in kept) == 3 and len(kept) == 100


def test_places_hold_the_last_exchanges():
    contexts = places(3, seed=1)
    lengths = {len(context) for context in contexts}
    assert min(lengths) == 1 and max(lengths) == SEEN + 1
    assert places(3, seed=1) == contexts
