"""The tasks of the writing model: what it is trained on, and what it is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dialogues import broken, with_other_nouns
from documents import (
    NONSENSE,
    document,
    is_short,
    kinds_answer,
    kinds_request,
    replies_answer,
    replies_request,
)
from nouns import exchanged, known_nouns, known_numbers, other, with_nouns
from texts import GOOD, KINDS, Line, Person, known_people, train_scenarios

SPOILED = 0.35
"""Share of spoiled replies among those whose kinds are to be named."""
FIRST_LINK = 5
"""Lines of the story before replies link to earlier ones or leave a step to the person."""

Pair = tuple[str, str]
"""Request and answer."""


def training_pairs(rng: random.Random, *, only_short: bool = False) -> list[Pair]:
    """Return one pass over all tasks, or over that of writing short replies alone, in random order."""
    people = known_people()
    pairs = [] if only_short else [document(p, rng) for p in (*people, *people, *train_scenarios())]
    for person in people:
        for line, lines in in_context(person):
            some = rng.sample(line.replies, len(line.replies))
            if len(short := [pair for pair in some if is_short(pair[1])]) > 1:
                request = replies_request(lines, [kind for kind, _ in short], short=True)
                pairs.append((request, replies_answer(short)))
            if only_short:
                continue
            if line.mood == "story" or rng.random() < 0.5:
                pairs.append((replies_request(lines, [kind for kind, _ in some]), replies_answer(some)))
            if rng.random() < (0.5 if line.mood == "story" else 0.2):
                pairs.append(kinds_pair(person, line, lines, people, rng))
    rng.shuffle(pairs)
    return pairs


def in_context(person: Person) -> Iterator[tuple[Line, list[str]]]:
    """Yield each line with replies and what is shown of the story: a guarded or eased line follows a line of the story."""
    story = person.of_mood("story")
    told = [line.text for line in story]
    for k, line in enumerate(story):
        if line.replies:
            yield line, told[: k + 1]
    for k, line in enumerate((*person.of_mood("guarded"), *person.of_mood("eased"))):
        if line.replies:
            yield line, [*told[: 2 + (5 * k) % max(1, len(told) - 2)], line.text]


def kinds_pair(
    person: Person, line: Line, lines: Sequence[str], people: Sequence[Person], rng: random.Random
) -> Pair:
    """Return a task of naming kinds, of replies to the line and spoiled ones."""
    some = [
        (NONSENSE, spoiled)
        if rng.random() < SPOILED and (spoiled := spoil(text, person, lines, people, rng))
        else (kind, text)
        for kind, text in rng.sample(line.replies, len(line.replies))
    ]
    return kinds_request(lines, [text for _, text in some]), kinds_answer([kind for kind, _ in some])


def spoil(
    text: str, person: Person, lines: Sequence[str], people: Sequence[Person], rng: random.Random
) -> str:
    """Return a reply that does not fit the story, or is not English; "" if none was found."""
    way = rng.randrange(5)
    known = set().union(*map(known_nouns, lines))
    if way == 0:
        return broken(text, rng)
    if way == 1:  # to something that has not been told
        later = [line for line in person.of_mood("story") if line.text not in lines]
        replies = [reply for line in later for _, reply in line.replies if known_nouns(reply) - known]
        return rng.choice(replies) if replies else ""
    if way == 2:  # to another person
        replies = [
            reply
            for line in rng.choice(people).of_mood("story")
            for kind, reply in line.replies
            if kind in GOOD and known_nouns(reply) - known
        ]
        return rng.choice(replies) if replies else ""
    if way == 3:
        return with_other_nouns(
            text, " ".join([*lines, *(x.text for x in rng.choice(people).lines[:4])]), rng
        )
    numbers = known_numbers(text) & set().union(*map(known_numbers, lines))
    mentioned = sorted(known_nouns(text) | numbers)
    return with_nouns(text, {noun: other(noun, rng) for noun in mentioned}) if mentioned else ""


@dataclass(frozen=True, slots=True)
class Job:
    """A line that replies are wanted to. Variants after the first tell the story with other nouns."""

    person: str
    variant: int
    line: int
    text: str
    request: str


def reply_jobs(seed: int) -> Iterator[Job]:
    """Yield lines of all people, variant after variant, without end."""
    people = [*known_people(), *train_scenarios()]
    variant = 0
    while True:
        rng = random.Random(f"jobs/{seed}/{variant}")
        for person in rng.sample(people, len(people)):
            told = person if variant < 2 else exchanged(person, rng, 0.4)
            story = [line.text for line in told.lines if line.mood == "story"]
            for k, line in enumerate(told.lines):
                lines = (
                    story[: k + 1]
                    if line.mood == "story"
                    else [*story[: rng.randint(2, len(story))], line.text]
                )
                kinds = wanted_kinds(line, k, rng)
                yield Job(person.id, variant, k, line.text, replies_request(lines, kinds))
        variant += 1


def short_jobs(people: Sequence[Person], seed: int) -> Iterator[tuple[list[str], str]]:
    """Yield lines, as far as the story was told, and requests for short replies to the last one."""
    rng = random.Random(f"short/{seed}")
    for person in rng.sample(people, len(people)):
        for number, (line, lines) in enumerate(in_context(person)):
            yield lines, replies_request(lines, wanted_kinds(line, number, rng), short=True)


def wanted_kinds(line: Line, number: int, rng: random.Random) -> list[str]:
    """Return kinds that may suit a line, good and poor ones in random order."""
    poor = [kind for kind in KINDS if kind not in GOOD]
    if line.mood == "guarded":
        good, count = ["room", "room", "ask", "detail"], 2
    elif line.mood == "eased":
        good, count = ["detail", "ask", "affirm", "step", "link"], 2
    else:
        good, count = [kind for kind in GOOD if kind != "room"], 3
        if number < FIRST_LINK:
            good = [kind for kind in good if kind not in ("link", "step")]
    kinds = [*dict.fromkeys(rng.sample(good, count)), *rng.sample(poor, count)]
    rng.shuffle(kinds)
    return kinds
