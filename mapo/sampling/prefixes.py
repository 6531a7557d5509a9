"""Prompts that begin alike: a new session takes over the beginning that another one has in the KV cache.

Siblings have the same scenario, so the prompts of their judges, directors and users begin with the same text.
Only sessions of roles share: the rows of a dialogue's policy are computed as if it were alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mapo.sampling.calls import common_prefix

SHORTEST = 64
"""Ids that two prompts must share at least."""
WORTH_WAITING = 256
"""Ids for which a call waits until the session that computes them now has done so."""


@dataclass(frozen=True, slots=True)
class PrefixCopy:
    """The first `count` positions of slot `source`, to be copied to slot `target`."""

    source: int
    target: int
    count: int


def longest_prefix(
    ids: Sequence[int], prompts: Iterable[tuple[int, Sequence[int], int]]
) -> tuple[int, int | None]:
    """Return the length of the longest beginning of `ids` that is in the cache, and its slot; 0 and None if
    it is too short. A prompt is its slot, its ids and how many of these are in the cache."""
    longest, best, start = SHORTEST - 1, None, ids[:SHORTEST]
    for slot, prompt, cached in prompts:
        if cached > longest and prompt[:SHORTEST] == start:
            count = common_prefix(ids, prompt[:cached])
            if count > longest:
                longest, best = count, slot
    return (0, None) if best is None else (longest, best)


def computed_now(ids: Sequence[int], prompts: Iterable[Sequence[int]], known: int) -> bool:
    """Return whether one of `prompts` has a much longer part of `ids` than the `known` one."""
    enough = known + WORTH_WAITING
    return any(prompt[:enough] == ids[:enough] for prompt in prompts if len(prompt) >= enough < len(ids))
