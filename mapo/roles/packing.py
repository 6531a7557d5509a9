"""Token rows that hold all prompts of a dialogue at once.

The prompts of a dialogue's turns start alike, so most of their tokens need to be computed only once. A row is
the longest prompt of a dialogue (its trunk), followed by a branch for every other prompt: the tokens after
the part that it shares with the trunk. A branch sees that part and itself, nothing else, and its positions
continue from there, so every answer is computed exactly as if its prompt stood alone. A prompt that is a
prefix of the trunk needs no branch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mapo.errors import InputError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Example:
    """The tokens of one prompt and what is learned or read there.

    The answer to `reads[k]` is one of the tokens `options[k]`, namely `options[k][answers[k]]`; the logits at
    that index predict it. The tokens from `text` on are learned as text. `name` is the turn, `kind` where the
    example comes from: recorded, addition or reason.
    """

    name: str
    ids: tuple[int, ...]
    reads: tuple[int, ...] = ()
    options: tuple[tuple[int, ...], ...] = ()
    answers: tuple[int, ...] = ()
    text: int | None = None
    kind: str = "recorded"

    @property
    def needed(self) -> int:
        """The number of tokens whose logits are used."""
        last = max(self.reads, default=-1) + 1
        return last if self.text is None else max(last, len(self.ids) - 1)


@dataclass(frozen=True, slots=True)
class Row:
    """Packed examples as arrays. `segment` is 0 on the trunk and counts branches from 1; a token sees the
    first `visible` tokens of the trunk besides its own segment. `read_*` and `text_*` have one entry per
    answer."""

    ids: Ints
    positions: Ints
    segment: Ints
    visible: Ints
    read_at: Ints
    read_example: Ints
    read_place: Ints
    text_at: Ints
    text_target: Ints
    text_example: Ints

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def branches(self) -> bool:
        """Whether the row is more than plain text and needs an attention mask."""
        return bool(self.segment[-1])


def pack(
    examples: Sequence[Example], numbers: Sequence[int], limit: int, *, branching: bool = True
) -> list[Row]:
    """Return rows of at most `limit` tokens with all examples of one dialogue; `numbers` are their indices.

    Without `branching`, an example that is not a prefix of the trunk gets a row of its own.
    """
    pairs = list(zip(examples, numbers, strict=True))
    if not pairs:
        return []
    recorded = [pair for pair in pairs if pair[0].kind == "recorded"] or pairs
    trunk, _ = max(recorded, key=lambda pair: pair[0].needed)
    if trunk.needed > limit:
        raise InputError(f"{trunk.name} has {trunk.needed} tokens, more than {limit}", fix="Raise --tokens")
    base = np.array(trunk.ids[: trunk.needed], np.int64)
    cuts = [_shared(base, example) for example, _ in pairs]
    apart = [pair for pair, cut in zip(pairs, cuts, strict=True) if cut < pair[0].needed]
    if not branching and apart:
        together = [pair for pair in pairs if pair not in apart]
        rows = [row for pair in apart for row in pack([pair[0]], [pair[1]], limit)]
        return _row(base, together, [e.needed for e, _ in together]) + rows
    size = len(base) + sum(e.needed - cut for (e, _), cut in zip(pairs, cuts, strict=True))
    if size > limit and len(pairs) > 1:
        half = len(pairs) // 2
        return pack(examples[:half], numbers[:half], limit) + pack(examples[half:], numbers[half:], limit)
    return _row(base, pairs, cuts)


def _shared(base: Ints, example: Example) -> int:
    """Return how many of an example's needed tokens the trunk starts with."""
    n = min(len(base), example.needed)
    different = np.flatnonzero(base[:n] != np.array(example.ids[:n], np.int64))
    return int(different[0]) if len(different) else n


def _row(base: Ints, pairs: Sequence[tuple[Example, int]], cuts: Sequence[int]) -> list[Row]:
    ids, positions = [base], [np.arange(len(base))]
    segment, visible = [np.zeros(len(base), np.int64)], [np.full(len(base), len(base))]
    reads: list[tuple[int, int, int]] = []
    texts: list[tuple[int, int, int]] = []
    size = len(base)
    for branch, ((example, number), cut) in enumerate(zip(pairs, cuts, strict=True), 1):
        tail = example.needed - cut

        def place(at: int, cut: int = cut, start: int = size) -> int:
            return at if at < cut else start + at - cut

        reads += [(place(at), number, k) for k, at in enumerate(example.reads)]
        if example.text is not None:
            texts += [
                (place(at - 1), example.ids[at], number) for at in range(example.text, len(example.ids))
            ]
        if tail:
            ids.append(np.array(example.ids[cut : example.needed], np.int64))
            positions.append(np.arange(cut, example.needed))
            segment.append(np.full(tail, branch))
            visible.append(np.full(tail, cut))
            size += tail
    arrays = tuple(np.concatenate(parts) for parts in (ids, positions, segment, visible))
    return [Row(*arrays, *_columns(reads), *_columns(texts))]  # type: ignore[call-arg]


def _columns(entries: Sequence[tuple[int, int, int]]) -> tuple[Ints, Ints, Ints]:
    table = np.array(entries, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def batches(rows: Sequence[Row], tokens: int, seed: int | None = None) -> list[list[int]]:
    """Return the indices of rows in batches of at most `tokens` tokens with padding, of rows of similar
    length.

    A seed shuffles rows of about the same length, and the batches. Without one, the longest come first.
    """
    order = list(range(len(rows)))
    rng = random.Random(seed)  # noqa: S311 (an order, not security)
    if seed is not None:
        rng.shuffle(order)
        order.sort(key=lambda i: -(len(rows[i]) // 256))
    else:
        order.sort(key=lambda i: -len(rows[i]))
    result: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, len(rows[i]))
        if not result or (len(result[-1]) + 1) * longest > tokens:
            result.append([])
            longest = len(rows[i])
        result[-1].append(i)
    if seed is not None:
        rng.shuffle(result)
    return result
