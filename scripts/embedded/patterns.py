"""Which replies are in the reach of a small policy: those whose pattern mostly makes sense when such a policy says them.

"What did you feel when ..." with words that the person has just said mostly does, "It must be ..." with words of its own seldom.
A linear model learns it from the strict verdicts in `sense.jsonl`.
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
FEWEST_STORY_LINES = 2
PERSON_SWAP = {
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
"""First-person words as the listener says them, and the reverse."""


def pattern(line: str, reply: str) -> list[str]:
    """Return the words of a reply to a line, with marks in place of those that are not plain: RUN1 to RUN4 for so many words
    of the line in a row (RUN4 also for more), NEAR for a word that begins like one of the line, NEW for any other."""
    said, reply_words = words(line), words(reply)
    swapped = [PERSON_SWAP.get(word, word) for word in said]
    places = defaultdict[str, set[int]](set)
    for place, pair in enumerate(zip(said, swapped, strict=True)):
        for word in pair:
            places[word].add(place)
    stems = {word[:5] for word in said}
    marks, at = list[str](), 0
    while at < len(reply_words):
        run = 0
        for place in places[reply_words[at]]:
            count = 0
            pairs = zip(said[place:], swapped[place:], strict=True)
            for word, pair in zip(reply_words[at:], pairs, strict=False):
                if word not in pair:
                    break
                count += 1
            run = max(run, count)
        if any(word not in plain_words() for word in reply_words[at : at + run]):
            marks.append(f"RUN{min(run, LONGEST_RUN)}")
            at += run
            continue
        word = reply_words[at]
        marks.append(word if word in plain_words() else "NEAR" if word[:5] in stems else "NEW")
        at += 1
    return marks


def features(line: str, reply: str) -> list[str]:
    """Return the sequences of one to four marks of a reply's pattern, the whole pattern, how many marks are not plain words,
    and the lengths of reply and line."""
    marks = ["<", *pattern(line, reply), reply[-1:]]
    lengths = range(1, LONGEST_SEQUENCE + 1)
    sequences = [" ".join(marks[k : k + n]) for n in lengths for k in range(len(marks) - n + 1)]
    return [
        *sequences,
        f"whole {' '.join(marks)}",
        f"not plain {sum(mark.isupper() for mark in marks)}",
        f"marks {len(marks)}",
        f"line words {min(len(words(line)) // 4, 6)}",
        f"line ends {line[-1:]}",
    ]


def takes_up(line: str, reply: str) -> bool:
    """Return whether a reply repeats a word of the line that is not plain."""
    return any(mark.startswith("RUN") for mark in pattern(line, reply))


def reachable_people(least: float) -> list[Person]:
    """Return the people that a policy may learn from, with the replies in its reach and the lines that have some.

    Of the natural replies these are the ones whose pattern makes sense with at least the probability `least`; replies to lines
    of a story must also take up something, because others could be said to anybody. Replies of `pieces` were written for it.
    """
    strict = verdicts()[STRICT_FROM:]
    sense = train_linear(
        [features(row["lines"][-1], row["reply"]) for row in strict],
        [int(row["sense"] != 0) for row in strict],
        classes=2,
        buckets=BUCKETS,
        passes=PASSES,
        decay=DECAY,
    )

    def natural(line: Line) -> list[tuple[str, str]]:
        pairs = [pair for pair in line.replies if line.mood != "story" or takes_up(line.text, pair[1])]
        chances = sense([features(line.text, reply) for _, reply in pairs])[:, 1].tolist()
        return [pair for pair, chance in zip(pairs, chances, strict=True) if chance >= least]

    def piece(line: Line) -> list[tuple[str, str]]:
        return [pair for pair in line.replies if is_short(pair[1]) and is_clean_reply(pair[1], line.text)]

    replies = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
    for people, wanted in ((sayable_replies(natural_people()), natural), (natural_people("pieces"), piece)):
        for person in people:
            for line in person.lines:
                replies[person.id, line.text] += wanted(line)
    both = (
        Person(p.id, [replace(x, replies=r) for x in p.lines if (r := replies.get((p.id, x.text)))], p.things)
        for people in people_with()
        for p in people
    )
    return [person for person in both if len(person.of_mood("story")) >= FEWEST_STORY_LINES]
