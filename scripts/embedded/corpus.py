"""Everything that the embedded models read: written people and those of `write.py`, in training and held-out parts."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from documents import is_clean_reply, parse, words
from nouns import exchanged
from texts import EMPATHY, Person, written_people

HELD_OUT = 14
"""One written person in so many is held out."""
WRITTEN = 0.4
"""Share of dialogues with written people."""
EXCHANGED = 0.4
"""Share of dialogues in which nouns are exchanged."""
T = TypeVar("T")


def generated_people(path: Path | None) -> list[Person]:
    """Return the people of a file that `write.py` made, without those that share seven words in a row with a held-out
    scenario."""
    if path is None:
        return []
    people, seen = [], set()
    held = held_out_grams()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in file:
            data = json.loads(row)
            person = parse(f"generated-{data['id']}", data["text"])
            if person is None or person.lines[0].text in seen:
                continue
            texts = [t for line in person.lines for t in (line.text, *(reply for _, reply in line.replies))]
            if any(grams(text) & held for text in texts):
                continue
            seen.add(person.lines[0].text)
            people.append(person)
    return people


def grams(text: str, n: int = 7) -> set[tuple[str, ...]]:
    tokens = words(text)
    return {tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)}


def held_out_grams() -> set[tuple[str, ...]]:
    """Return the sequences of seven words of validation and test scenarios. They are only compared with."""
    splits = json.loads((EMPATHY / "splits.json").read_text(encoding="utf-8"))
    names = [*splits["validation"], *splits["test"]]
    texts = [(EMPATHY / "scenarios" / f"{name}.toml").read_text(encoding="utf-8") for name in names]
    return set().union(*(grams(row) for text in texts for row in text.split("\n")))


def split(part: str, generated: Sequence[Person]) -> tuple[list[Person], list[Person], list[Person]]:
    """Return written, generated and held-out written people. `part` is "all", or "even" or "odd" for two parts that
    share nobody but the held-out ones."""
    with_replies = [p for p in written_people() if any(line.replies for line in p.lines)]
    held = with_replies[::HELD_OUT]
    written = [p for k, p in enumerate(with_replies) if k % HELD_OUT]
    for person in written:
        for line in person.lines:
            line.replies = [(k, r) for k, r in line.replies if is_clean_reply(r, line.text)]
    if part == "all":
        return written, list(generated), held
    offset = {"even": 0, "odd": 1}[part]
    return written[offset::2], list(generated[offset::2]), held


class Draw:
    """Draws people: written ones with a fixed share, generated ones otherwise."""

    def __init__(self, written: Sequence[Person], generated: Sequence[Person]) -> None:
        self.written, self.generated = written, generated
        self.everybody = [*written, *generated]

    def person(self, rng: random.Random) -> Person:
        from_written = not self.generated or rng.random() < WRITTEN
        person = rng.choice(self.written if from_written else self.generated)
        return exchanged(person, rng, rng.uniform(0.2, 0.6)) if rng.random() < EXCHANGED else person


_make: Callable[[random.Random], object]


def _shard(job: tuple[str, int]) -> list[object]:
    rng = random.Random(job[0])
    return [_make(rng) for _ in range(job[1])]


def in_parallel(make: Callable[[random.Random], T], count: int, seed: str, shard: int = 250) -> list[T]:
    """Return `count` items, made on all cores. The result does not depend on the number of cores."""
    global _make
    _make = make
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    jobs = [(f"{seed}/{k}", min(shard, count - k)) for k in range(0, count, shard)]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        return [item for items in pool.imap(_shard, jobs) for item in items]  # type: ignore[misc]
