"""What the embedded models read: written people and replies to them, verdicts on the replies of policies, and dialogues drawn
from both."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from dialogues import Exchange, Talk, is_sentence
from documents import is_clean_reply, is_short, words
from nouns import exchanged, nouns
from texts import (
    HERE,
    KINDS,
    Person,
    held_out_people,
    is_held_out,
    known_people,
    people_with,
    train_scenarios,
)

ANSWERED = 0.4
"""Share of dialogues of the people to whom policies have replied most, in their own words: what a trained policy says
deceives a judge that has seldom seen the like."""
EXCHANGED = 0.3
"""Share of the other dialogues in which nouns are exchanged."""
TURNS = (3, 6, 8, 10, 14)
"""Turns of a dialogue that a judge learns from."""
NONSENSE = "nonsense"
STRICT_FROM = 22400
"""Place of the first verdict of `sense.jsonl` that is strict: what is merely odd is nonsense."""
S, T = TypeVar("S"), TypeVar("T")
PolicyReplies = dict[str, list[tuple[str, str]]]
"""Kinds and replies of policies by line; the kind is NONSENSE where a reply makes no sense."""


def with_replies(people: Sequence[Person], wanted: Callable[[str, str], bool]) -> list[Person]:
    """Return the people with those replies to a line that are wanted, given the reply and the line."""
    return [
        Person(
            person.id,
            [replace(x, replies=[p for p in x.replies if wanted(p[1], x.text)]) for x in person.lines],
            person.things,
        )
        for person in people
    ]


FEWEST_LINES = 5
PLAIN_WORDS = 250
CONCRETE = frozenset(
    words(
        """
        boy father man woman girl wife husband sister brother son daughter mother mum mom dad child kids
        children baby parents aunt uncle grandmother grandfather boss teacher doctor friend friends men
        women lady people's school work job bed paper ring shoes tea soup coffee bread floor house flat room
        car drive door street book books fish list letter letters light card cards clock radio music picture
        photo coat hair hands hand feet knees sea train bus garden kitchen table window phone money water
        food lunch dinner breakfast baby's cook clean driving walk swim sunday monday tuesday wednesday
        thursday friday saturday december birthday wedding christmas summer winter spring autumn twelve
        eleven ten nine eight seven six five four three two twenty thirty forty fifty hundred thousand blue
        red green white black pay paid buy bought sell sold read singing drink milk cat dog fun drawer
        numbers count counted counts counting writing write wrote sing sang dance baking company king lord
        silence teach taught play
        """
    )
)
"""Frequent words that are nevertheless about something: a reply may use them only where the person has."""


@lru_cache
def plain_words() -> frozenset[str]:
    """Return words that fit any story: the most frequent ones of written replies, without names of things and people."""
    known = {person.id for person in known_people()}
    people = [person for person in people_with("replies")[0] if person.id in known]
    replies = (reply for p in people for line in p.lines for _, reply in line.replies)
    count = Counter(word for reply in replies for word in {*words(reply)})
    named = nouns()[0] | nouns()[1] | CONCRETE
    return frozenset(word for word, _ in count.most_common(PLAIN_WORDS)) - named


ORDERS = ("order", "advice", "room")
"""Kinds of replies that may be imperatives, which have neither subject nor common verb."""

OTHERS = (
    frozenset(("he", "him", "his", "he's", "he'd", "he'll")),
    frozenset(("she", "her", "hers", "she's", "she'd", "she'll")),
    frozenset(("they", "them", "their", "they're", "they'd", "they'll")),
)


def stays_with(line: str, reply: str) -> bool:
    """Return whether a reply is of plain words and of words that the person has just said, and speaks of nobody else."""
    said, mine = words(line), words(reply)
    stems = {word[:5] for word in said}
    known = all(word in plain_words() or word[:5] in stems for word in mine)
    return known and all(group.isdisjoint(mine) or not group.isdisjoint(said) for group in OTHERS)


def is_sayable(line: str, kind: str, reply: str) -> bool:
    """Return whether a policy learns a reply: a short, clean sentence that stays with the line."""
    whole = kind in ORDERS or is_sentence(reply)
    return whole and is_short(reply) and is_clean_reply(reply, line) and stays_with(line, reply)


def sayable_replies(people: Sequence[Person]) -> list[Person]:
    """Return the people with those of their short, clean replies that are sentences and bring in nothing new.

    Lines without any are left out. A small model does not know what a thing that was mentioned may have to do with
    another, and what it brings in is mostly nonsense. It can learn to take up the person's own words.
    """
    kept = [
        Person(
            person.id,
            [replace(x, replies=[p for p in x.replies if is_sayable(x.text, *p)]) for x in person.lines],
            person.things,
        )
        for person in people
    ]
    answered = [Person(p.id, [line for line in p.lines if line.replies], p.things) for p in kept]
    return [person for person in answered if len(person.lines) >= FEWEST_LINES]


def tokenizer_texts(people: Sequence[Person]) -> list[str]:
    rows = [t for p in people for line in p.lines for t in (line.text, *(r for _, r in line.replies))]
    form = "Trust: low medium high\nperson: reply: C progress? C regression? A progress? A regression? P progress? P regression?"
    return [*rows, *[form] * 200]


def verdicts() -> list[dict[str, Any]]:
    """Return the replies of `sense.jsonl`, with the lines before them and what was said of each: 1 for sense, 0 for
    nonsense, or the kind of a reply that makes sense."""
    return [json.loads(row) for row in (HERE / "sense.jsonl").read_text(encoding="utf-8").splitlines()]


def split(part: str) -> tuple[list[Person], list[Person]]:
    """Return the people to learn from and the held-out ones, with those of the train scenarios in both. `part` is "all", or
    "even" or "odd" for two parts that share nobody to learn from."""
    scenarios = train_scenarios()
    held_scenarios = [person for person in scenarios if is_held_out(person)]
    known, held = (
        with_replies((*known_people(), *(p for p in scenarios if not is_held_out(p))), is_clean_reply),
        with_replies((*held_out_people(), *held_scenarios), is_clean_reply),
    )
    return known if part == "all" else known[{"even": 0, "odd": 1}[part] :: 2], held


def policy_replies(name_kind: Callable[[str, str], str]) -> PolicyReplies:
    """Return the replies with a clear verdict; `name_kind` names the kind of one that makes sense, if the verdict does
    not."""
    replies: PolicyReplies = defaultdict(list)
    for row in verdicts():
        lines, reply, verdict = row["lines"], row["reply"], row["sense"]
        if verdict in KINDS:
            replies[lines[-1]].append((verdict, reply))
        elif verdict in (0, 1):
            replies[lines[-1]].append((name_kind(lines[-1], reply) if verdict else NONSENSE, reply))
    return dict(replies)


class Corpus:
    """People and what policies replied to their lines. `answered` are the people with more than one such reply to a line,
    on average."""

    def __init__(self, people: Sequence[Person], replies: PolicyReplies) -> None:
        self.people, self.replies = people, replies
        self.answered = [
            person
            for person in people
            if sum(len(replies.get(line.text, ())) for line in person.lines) > len(person.lines)
        ]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A dialogue of a person with a policy; the policy is named by how it replies."""

    person: str
    policy: str
    threshold: str
    exchanges: list[Exchange]


def draw_dialogue(rng: random.Random, corpus: Corpus, turns: int = 0) -> Drawn:
    """Draw a person, how good the replies are and how many are spoiled, and the number of turns, if none is given."""
    goodness = rng.choice((0.15, 0.33, 0.5, 0.7, 0.85, 0.95))
    repetitive = rng.random() < 0.1
    spoiled = 0.6 if repetitive else rng.choice((0.0, 0.2, 0.4))
    if corpus.answered and rng.random() < ANSWERED:
        person = rng.choice(corpus.answered)
    else:
        person = rng.choice(corpus.people)
        if rng.random() < EXCHANGED:
            person = exchanged(person, rng, rng.uniform(0.2, 0.6))
    talk = Talk(person, rng, corpus.people, goodness, spoiled, corpus.replies, repetitive)
    policy = f"good {goodness:.0%}, {'repetitive' if repetitive else f'spoiled {spoiled:.0%}'}"
    return Drawn(person.id, policy, talk.threshold, talk.play(turns or rng.choice(TURNS)))


_work: Callable[[object], list[object]]


def _do(job: object) -> list[object]:
    return _work(job)


def on_all_cores(work: Callable[[S], list[T]], jobs: Sequence[S]) -> list[T]:
    """Return what `work` returns for all jobs, in their order."""
    global _work
    _work = work  # type: ignore[assignment]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        return [item for items in pool.imap(_do, jobs) for item in items]  # type: ignore[misc]


def in_parallel(make: Callable[[random.Random], T], count: int, seed: str, shard: int = 250) -> list[T]:
    """Return `count` items, made on all cores. The result does not depend on the number of cores."""
    nouns()  # once, not in every process

    def shard_of(first: int) -> list[T]:
        rng = random.Random(f"{seed}/{first}")
        return [make(rng) for _ in range(min(shard, count - first))]

    return on_all_cores(shard_of, range(0, count, shard))
