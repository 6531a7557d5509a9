"""Everything that the embedded models read: written people and what `write.py` made, in training and held-out parts, and
dialogues drawn from them."""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from dialogues import Exchange, Talk, repeats_itself
from documents import NONSENSE, is_clean_reply, is_short, parse, words
from nouns import exchanged, nouns
from texts import EMPATHY, Line, Person, held_out_people, known_people, train_scenarios

EXCHANGED = 0.4
"""Share of dialogues in which nouns are exchanged."""
SHARES = (2, 3, 5)
"""How often written people, written people with generated replies, and generated people are drawn. There is much more
generated text: with equal shares a model knows the written text by heart before it has learned to reply to others."""
TURNS = 24
"""Turns of the longest dialogue."""
T = TypeVar("T")
PolicyReplies = dict[str, list[tuple[str, str]]]
"""Kinds and replies of a policy by line."""
Sense = dict[tuple[str, str], float]
"""Probabilities that replies make sense, by line and reply."""
SENSIBLE, NONSENSICAL = 0.7, 0.3
"""A generated reply is learned from this probability on; below the other one it is an example of nonsense."""
FEWEST_LINES = 5
"""Lines with replies to learn from that a person must have."""


def generated_people(paths: Sequence[Path]) -> list[Person]:
    """Return the people of files that `write.py` made, without those that share seven words in a row with a held-out
    scenario."""
    if not paths:
        return []
    held_out_grams()  # once, not in every process
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        parsed = [p for p in pool.imap(_generated_person, rows_of(paths), chunksize=100) if p is not None]
    return with_new_openings(parsed)


def with_new_openings(people: Iterable[Person]) -> list[Person]:
    """Return the people without those whose opening line an earlier one has."""
    first: dict[str, Person] = {}
    for person in people:
        first.setdefault(person.lines[0].text, person)
    return list(first.values())


def _generated_person(row: tuple[int, dict[str, Any]]) -> Person | None:
    number, data = row
    person = parse(f"generated-{number}-{data['id']}", data["text"])
    if person is None:
        return None
    for line in person.lines:
        line.replies = [pair for pair in line.replies if not repeats_itself(pair[1])]
    texts = [t for line in person.lines for t in (line.text, *(reply for _, reply in line.replies))]
    return None if any(grams(text) & held_out_grams() for text in texts) else person


def rows_of(paths: Sequence[Path]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of the file and a row, for each row."""
    for number, path in enumerate(paths):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from ((number, json.loads(row)) for row in file)


def grams(text: str, n: int = 7) -> set[tuple[str, ...]]:
    tokens = words(text)
    return {tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)}


@lru_cache
def held_out_grams() -> set[tuple[str, ...]]:
    """Return the sequences of seven words of validation and test scenarios and of held-out people. They are only compared
    with: a text that was generated when others were held out must not bring them back."""
    splits = json.loads((EMPATHY / "splits.json").read_text(encoding="utf-8"))
    names = [*splits["validation"], *splits["test"]]
    texts = [(EMPATHY / "scenarios" / f"{name}.toml").read_text(encoding="utf-8") for name in names]
    rows = [row for text in texts for row in text.split("\n")]
    rows += [line.text for person in held_out_people() for line in person.lines]
    return set().union(*map(grams, rows))


def people_with_new_replies(paths: Sequence[Path]) -> list[Person]:
    """Return known people, some with other nouns, with the replies of `write.py replies` alone."""
    people = {person.id: person for person in (*known_people(), *train_scenarios())}
    lines: dict[tuple[str, int, int], dict[int, Line]] = {}
    held = held_out_grams() if paths else set()
    for number, row in rows_of(paths):
        if row["person"] not in people:
            continue
        known = people[row["person"]].lines[row["line"]]
        fine = [
            (kind, reply)
            for kind, reply in row["replies"]
            if not grams(reply) & held and not repeats_itself(reply)
        ]
        line = Line(row["text"], known.mood, known.feeling, known.shown, fine)
        lines.setdefault((row["person"], row["variant"], number), {})[row["line"]] = line
    return [
        Person(name, [mine[k] for k in sorted(mine)], people[name].things)
        for (name, _, _), mine in lines.items()
        if len(mine) >= 0.8 * len(people[name].lines)
    ]


@dataclass(frozen=True, slots=True)
class Texts:
    """What a model learns from. `replies` are those of policies, with their kinds, by line."""

    written: list[Person]
    generated: list[Person]
    held_out: list[Person]
    replies: PolicyReplies


def add_text_options(parser: argparse.ArgumentParser) -> None:
    for name, made_by in (
        ("stories", "write.py stories"),
        ("replies", "write.py replies"),
        ("short", "write.py short"),
        ("policy-replies", "write.py kinds"),
        ("sense", "sense.py read"),
    ):
        parser.add_argument(
            f"--{name}", type=Path, nargs="+", default=[], help=f"files that `{made_by}` made"
        )
    parser.add_argument("--only-short", action="store_true", help="learn short replies alone")


def read_texts(args: argparse.Namespace, part: str) -> Texts:
    """Return the texts of `part` and of the files in `args`. With --sense, generated replies that make no sense are not
    among those of a line but among the replies of policies, as nonsense."""
    sense = senses(args.sense)
    replies = policy_replies(args.policy_replies, sense)
    people = [
        *people_with_new_replies(args.replies),
        *with_short_replies(generated_people(args.stories), args.short),
    ]
    if sense:
        for person in people:
            for line in person.lines:
                bad = [r for _, r in line.replies if sense.get((line.text, r), 1.0) < NONSENSICAL]
                replies.setdefault(line.text, []).extend((NONSENSE, reply) for reply in bad)
        people = with_replies(people, lambda line, reply: sense.get((line, reply), 0.0) >= SENSIBLE)
    groups = split(part, people)
    if args.only_short:
        groups = tuple(with_replies(group, lambda _, reply: is_short(reply)) for group in groups)
        replies = {line: [pair for pair in pairs if is_short(pair[1])] for line, pairs in replies.items()}
    return Texts(*groups, replies)


def senses(paths: Sequence[Path]) -> Sense:
    """Return what `sense.py read` found."""
    return {(row["line"], reply): p for _, row in rows_of(paths) for reply, p in row["replies"]}


def with_short_replies(people: list[Person], paths: Sequence[Path]) -> list[Person]:
    """Add the replies of `write.py short` to the lines they are for."""
    held = held_out_grams() if paths else set()
    found: dict[str, list[tuple[str, str]]] = {}
    for _, row in rows_of(paths):
        pairs = [(kind, reply) for kind, reply in row["replies"] if not grams(reply) & held]
        found.setdefault(row["lines"][-1], []).extend(pairs)
    for person in people:
        for line in person.lines:
            line.replies += found.get(line.text, [])
    return people


def with_replies(people: Sequence[Person], wanted: Callable[[str, str], bool]) -> list[Person]:
    """Return the people with those replies to their lines that are wanted, without lines and people that keep too few."""
    result = []
    for person in people:
        lines = [
            replace(line, replies=[pair for pair in line.replies if wanted(line.text, pair[1])])
            for line in person.lines
        ]
        lines = [line for line in lines if line.replies]
        if len(lines) >= FEWEST_LINES:
            result.append(Person(person.id, lines, person.things))
    return result


def policy_replies(paths: Sequence[Path], sense: Sense | None = None) -> PolicyReplies:
    """Return replies of a policy by line, with the kinds that `write.py kinds` named. Those that repeat themselves,
    contain a word that does not exist or make no sense are nonsense whatever it named; those that may or may not make
    sense are left out."""
    sense = sense or {}
    found: PolicyReplies = {}
    for _, row in rows_of(paths):
        for kind, reply in row["replies"]:
            probability = sense.get((row["line"], reply), 1.0)
            if probability < NONSENSICAL or repeats_itself(reply) or has_unknown_word(reply, row["line"]):
                kind = NONSENSE
            elif probability < SENSIBLE:
                continue
            found.setdefault(row["line"], []).append((kind, reply))
    return found


@lru_cache
def known_words() -> frozenset[str]:
    """Return the words of the written texts that models may learn from."""
    people = (*known_people(), *train_scenarios())
    texts = [
        t for p in people for line in p.lines for t in (line.text, *(reply for _, reply in line.replies))
    ]
    return frozenset(word for text in texts for word in words(text))


_LOWER = re.compile(r"(?<![\w'])[a-z][a-z']+")
_ENDINGS = ("", "s", "'s", "ed", "ing")


def has_unknown_word(reply: str, line: str) -> bool:
    """Return whether a reply has a word, not a name, that is neither in the written texts nor in the line."""
    known, heard = known_words(), set(words(line))
    return any(
        not any((stem := word.removesuffix(ending)) in known or stem in heard for ending in _ENDINGS)
        for word in _LOWER.findall(reply)
    )


def split(part: str, generated: Sequence[Person]) -> tuple[list[Person], list[Person], list[Person]]:
    """Return written, generated and held-out written people. `part` is "all", or "even" or "odd" for two parts that
    share nobody but the held-out ones."""
    written, held = known_people(), held_out_people()
    for person in written:
        for line in person.lines:
            line.replies = [(k, r) for k, r in line.replies if is_clean_reply(r, line.text)]
    if part == "all":
        return written, list(generated), held
    offset = {"even": 0, "odd": 1}[part]
    mine = {person.id for person in written[offset::2]}
    others = {person.id for person in written} - mine
    rest = [person for person in generated if person.id not in others]
    new = list(dict.fromkeys(person.id for person in rest if person.id not in mine))
    mine.update(new[offset::2])  # by id: someone may be there several times
    return written[offset::2], [person for person in rest if person.id in mine], held


class Draw:
    """Draws people of each origin with a fixed share; some with other nouns."""

    def __init__(
        self, written: Sequence[Person], generated: Sequence[Person], exchanged: float = EXCHANGED
    ) -> None:
        self.written, self.exchanged = written, exchanged
        names = {person.id for person in (*written, *train_scenarios())}
        self.with_new_replies = [person for person in generated if person.id in names]
        self.generated = [person for person in generated if person.id not in names]
        self.people = [*written, *generated]

    def person(self, rng: random.Random) -> Person:
        groups = [
            pair
            for pair in zip((self.written, self.with_new_replies, self.generated), SHARES, strict=True)
            if pair[0]
        ]
        people, shares = zip(*groups, strict=True)
        person = rng.choice(rng.choices(people, shares)[0])
        return exchanged(person, rng, rng.uniform(0.2, 0.6)) if rng.random() < self.exchanged else person


@dataclass(frozen=True, slots=True)
class Drawn:
    """A dialogue of a person with a policy; the policy is named by how it replies."""

    person: str
    policy: str
    threshold: str
    exchanges: list[Exchange]


def draw_dialogue(rng: random.Random, draw: Draw, policy_replies: PolicyReplies) -> Drawn:
    """Draw a person, how good the replies are and how many are spoiled, and the length; `policy_replies` by line."""
    goodness = rng.choice((0.15, 0.33, 0.5, 0.7, 0.85, 0.95))
    repetitive = rng.random() < 0.1
    spoiled = 0.6 if repetitive else rng.choice((0.0, 0.2, 0.4))
    person = draw.person(rng)
    talk = Talk(person, rng, draw.people, goodness, spoiled, policy_replies, repetitive)
    policy = f"good {goodness:.0%}, {'repetitive' if repetitive else f'spoiled {spoiled:.0%}'}"
    return Drawn(person.id, policy, talk.threshold, talk.play(rng.choice((3, 6, 10, 14, 18, TURNS))))


_make: Callable[[random.Random], object]


def _shard(job: tuple[str, int]) -> list[object]:
    rng = random.Random(job[0])
    return [_make(rng) for _ in range(job[1])]


def in_parallel(make: Callable[[random.Random], T], count: int, seed: str, shard: int = 250) -> list[T]:
    """Return `count` items, made on all cores. The result does not depend on the number of cores."""
    global _make
    _make = make
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    nouns()  # once, not in every process
    jobs = [(f"{seed}/{k}", min(shard, count - k)) for k in range(0, count, shard)]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        return [item for items in pool.imap(_shard, jobs) for item in items]  # type: ignore[misc]
