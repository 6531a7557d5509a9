"""Which prompt's beginning a new session takes over, and for which it waits."""

from __future__ import annotations

from mapo.sampling.prefixes import SHORTEST, WORTH_WAITING, computed_now, longest_prefix

IDS = list(range(1000))


def test_the_longest_beginning_in_the_cache_is_taken():
    prompts = [
        (0, [*IDS[:200], 7, 7], 202),
        (1, [*IDS[:500], 7], 501),
        (2, IDS, 300),  # the rest of its ids is not in the cache
        (3, [7, *IDS[1:]], 1000),
    ]
    assert longest_prefix(IDS, prompts) == (500, 1)
    assert longest_prefix(IDS, [prompts[2]]) == (300, 2)


def test_short_beginnings_are_not_worth_a_copy():
    assert longest_prefix(IDS, [(0, [*IDS[: SHORTEST - 1], 7, 7], SHORTEST + 1)]) == (0, None)
    assert longest_prefix(IDS, [(0, IDS, SHORTEST - 1)]) == (0, None)
    assert longest_prefix(IDS, [(0, IDS, SHORTEST)]) == (SHORTEST, 0)
    assert longest_prefix(IDS, []) == (0, None)


def test_a_call_waits_only_for_much_more_than_it_has():
    assert computed_now(IDS, [[*IDS[:WORTH_WAITING], 7]], known=0)
    assert not computed_now(IDS, [[*IDS[:WORTH_WAITING], 7]], known=1)
    assert not computed_now(IDS, [[*IDS[: WORTH_WAITING - 1], 7, 7]], known=0)
    assert not computed_now(IDS[:WORTH_WAITING], [IDS], known=0)  # its own end is all that is left
    assert not computed_now(IDS, [], known=0)
