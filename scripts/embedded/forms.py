"""How likely a small policy makes sense with a reply of a form: "What did you feel when ..." with words that the person has
just said mostly does, "It must be ..." with words of its own seldom.

A linear model over the form of a reply learns it from the verdicts in `sense.jsonl`. A form is the reply with the person's
words replaced by how many of them stand in a row.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from corpus import STRICT_FROM, plain_words, sayable_replies, verdicts
from documents import is_clean_reply, is_short, words
from linear import train_linear
from texts import Line, Person, natural_people, people_with

BUCKETS = 1 << 16
LONGEST_SEQUENCE = 4
LONGEST_RUN = 4
PASSES, DECAY = 4, 2e-3
SEEN_BY = {
    "i": "you",
    "me": "you",
    "we": "you",
    "us": "you",
    "my": "your",
    "our": "your",
    "mine": "yours",
    "myself": "yourself",
    "i'm": "you're",
    "i've": "you've",
    "i'd": "you'd",
    "i'll": "you'll",
    "am": "are",
    "was": "were",
    "you": "i",
    "your": "my",
}
"""What the person's words are in the mouth of another."""


def form(line: str, reply: str) -> list[str]:
    """Return the words of a reply to a line, with a mark in place of the person's own: RUN3 for three in a row, NEAR for a
    word that begins like one of theirs, NEW for one that is neither theirs nor plain."""
    said, mine = words(line), words(reply)
    turned = [SEEN_BY.get(word, word) for word in said]
    places = defaultdict[str, set[int]](set)
    for place, pair in enumerate(zip(said, turned, strict=True)):
        for word in pair:
            places[word].add(place)
    stems = {word[:5] for word in said}
    marks, at = list[str](), 0
    while at < len(mine):
        run = 0
        for place in places[mine[at]]:
            count = 0
            for word, pair in zip(mine[at:], zip(said[place:], turned[place:], strict=True), strict=False):
                if word not in pair:
                    break
                count += 1
            run = max(run, count)
        if any(word not in plain_words() for word in mine[at : at + run]):
            marks.append(f"RUN{min(run, LONGEST_RUN)}")
            at += run
            continue
        plain, near = mine[at] in plain_words(), mine[at][:5] in stems
        marks.append(mine[at] if plain else "NEAR" if near else "NEW")
        at += 1
    return marks


def features(line: str, reply: str) -> list[str]:
    """Return the sequences of one to four marks of a reply's form, the whole form and the length of the line."""
    marks = ["<", *form(line, reply), reply[-1:]]
    lengths = range(1, LONGEST_SEQUENCE + 1)
    rows = [" ".join(marks[k : k + n]) for n in lengths for k in range(len(marks) - n + 1)]
    own = [mark for mark in marks if mark.startswith(("RUN", "NEAR", "NEW"))]
    return [
        *rows,
        f"own {len(own)} {max(own, default='')}",
        f"long {len(marks)}",
        f"line {line[-1:]}",
        f"line {min(len(words(line)) // 4, 6)}",
        f"whole {' '.join(marks)}",
    ]


def takes_up(line: str, reply: str) -> bool:
    """Return whether a reply has words of the line that few others say."""
    return any(mark.startswith("RUN") for mark in form(line, reply))


def reachable_people(least: float) -> list[Person]:
    """Return the people that a policy may learn from, and the lines that have such replies: the natural ones whose form has
    at least this chance of making sense, and those that were written to be in reach."""
    strict = [row for row in verdicts()[STRICT_FROM:] if row["sense"] is not None]
    sensible = train_linear(
        [features(row["lines"][-1], row["reply"]) for row in strict],
        [int(row["sense"] != 0) for row in strict],
        classes=2,
        buckets=BUCKETS,
        passes=PASSES,
        decay=DECAY,
    )

    def natural(line: Line) -> list[tuple[str, str]]:
        pairs = [pair for pair in line.replies if line.mood != "story" or takes_up(line.text, pair[1])]
        chances = sensible([features(line.text, reply) for _, reply in pairs])[:, 1].tolist()
        return [pair for pair, chance in zip(pairs, chances, strict=True) if chance >= least]

    def written(line: Line) -> list[tuple[str, str]]:
        return [pair for pair in line.replies if is_short(pair[1]) and is_clean_reply(pair[1], line.text)]

    replies = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
    for people, wanted in ((sayable_replies(natural_people()), natural), (natural_people("pieces"), written)):
        for person in people:
            for line in person.lines:
                replies[person.id, line.text] += wanted(line)
    both = (
        Person(p.id, [replace(x, replies=r) for x in p.lines if (r := replies.get((p.id, x.text)))], p.things)
        for people in people_with()
        for p in people
    )
    return [person for person in both if person.lines]
