"""Naming the kind of a reply from its words, for replies that are known to make sense but not what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dialogues import content
from documents import words
from linear import train_linear
from texts import KINDS, Person

BUCKETS = 1 << 18


def features(line: str, reply: str) -> list[str]:
    """Return the sequences of one to three words of a reply, and what it shares with the line."""
    tokens = ["<", *words(reply), reply[-1:]]
    rows = [" ".join(tokens[k : k + n]) for n in (1, 2, 3) for k in range(len(tokens) - n + 1)]
    shared = len(content(line) & content(reply))
    return [*rows, f"shared {min(shared, 3)}", f"line {line[-1:]}", f"long {len(tokens) // 3}"]


def train_namer(people: Sequence[Person], passes: int = 1) -> Callable[[str, str], str]:
    """Return a function that names the kind of a reply to a line, learned from the replies of `people`."""
    pairs = [
        (features(line.text, r), KINDS.index(k)) for p in people for line in p.lines for k, r in line.replies
    ]
    rows, labels = zip(*pairs, strict=True)
    kinds = train_linear(rows, labels, classes=len(KINDS), buckets=BUCKETS, passes=passes)
    return lambda line, reply: KINDS[int(kinds([features(line, reply)]).argmax())]
