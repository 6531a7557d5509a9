"""What a language model learns to write about the texts, as pairs of request and answer, and how answers are read.

There are three tasks. A story is written after a header that names things of it:

    person: We have had twins, in February. ...
    inside: overwhelmed, not said
    ask: ...
    console: ...
    person: ...

`inside` names the feeling of the moment, or says that the line is guarded or eased. Each line has a few replies, each
after its kind. Replies to a line are written after the lines before it, one of each kind that is asked for; and the kinds
of given replies are named, among them `nonsense` for what does not fit the story or is not English.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from texts import KINDS, Line, Person, known_people, train_scenarios

REPLIES = 3
"""Most replies per line in a document."""


def header(things: Iterable[str], replies: bool) -> str:
    """Return the request for a document."""
    wanted = f"up to {REPLIES} replies of different kinds to each line" if replies else "no replies"
    return f"Write a person's story with {wanted}. Things in it: {', '.join(things)}."


def document(person: Person, rng: random.Random) -> tuple[str, str]:
    """Return header and document of a person: the story in order, with guarded and eased lines between."""
    order = person.of_mood("story")
    spare = [*person.of_mood("guarded"), *person.of_mood("eased")]
    for line in rng.sample(spare, rng.randint(len(spare) // 3, len(spare))):
        order.insert(rng.randint(2, len(order)), line)
    replies = any(line.replies for line in person.lines)
    rows = []
    for line in order:
        rows += [f"person: {line.text}", f"inside: {inside(line)}"]
        some = rng.sample(line.replies, min(len(line.replies), rng.randint(2, REPLIES)))
        rows += [f"{kind}: {text}" for kind, text in some]
    return header(rng.sample(person.things, min(3, len(person.things))), replies), "\n".join(rows)


def inside(line: Line) -> str:
    if line.mood != "story":
        return line.mood
    return f"{line.feeling}, {'said' if line.shown else 'not said'}" if line.feeling else "opening"


BEFORE = 3
"""Lines of the story that are shown before the line in question."""
NONSENSE = "nonsense"


def shown_lines(lines: Sequence[str]) -> str:
    """Return the end of a story up to the line in question."""
    *before, last = lines[-BEFORE - 1 :]
    return "\n".join([*(f"before: {text}" for text in before), f"person: {last}"])


def replies_request(lines: Sequence[str], kinds: Sequence[str], *, short: bool = False) -> str:
    reply = "short reply" if short else "reply"
    return f"{shown_lines(lines)}\nWrite one {reply} of each kind: {', '.join(kinds)}."


def replies_answer(replies: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{kind}: {text}" for kind, text in replies)


def read_replies(answer: str, line: str) -> list[tuple[str, str]]:
    """Return the clean replies of an answer; a last one that was cut off is not clean."""
    matches = [_ROW.fullmatch(row.strip()) for row in answer.split("\n")]
    pairs = [(match[1], match[2].strip()) for match in matches if match and match[1] in KINDS]
    return [(kind, text) for kind, text in pairs if is_clean_reply(text, line)]


def kinds_request(lines: Sequence[str], replies: Sequence[str]) -> str:
    numbered = "\n".join(f"{number}: {text}" for number, text in enumerate(replies, 1))
    return f"{shown_lines(lines)}\n{numbered}\nName the kind of each reply, or {NONSENSE}."


def kinds_answer(kinds: Sequence[str]) -> str:
    return "\n".join(f"{number}: {kind}" for number, kind in enumerate(kinds, 1))


def read_kinds(answer: str, count: int) -> list[str]:
    """Return the kind of each reply, "" where the answer does not name one."""
    kinds = [""] * count
    for row in answer.split("\n"):
        number, _, kind = row.partition(": ")
        if number.isdecimal() and 1 <= int(number) <= count and kind in (*KINDS, NONSENSE):
            kinds[int(number) - 1] = kind
    return kinds


def new_headers(count: int, seed: int) -> list[str]:
    """Return requests for new stories, with things of different people."""
    rng = random.Random(f"headers/{seed}")
    things = sorted({thing for p in (*known_people(), *train_scenarios()) for thing in p.things})
    return [header(rng.sample(things, rng.choice((2, 3, 3))), True) for _ in range(count)]


_ROW = re.compile(rf"(person|inside|{'|'.join(KINDS)}): (.+)")


def parse(name: str, text: str) -> Person | None:
    """Return the person of a written document; lines and replies that are not well-formed are left out. A
    last row that was cut off is dropped."""
    rows = text.split("\n")[:-1]
    lines: list[Line] = []
    for row in rows:
        match = _ROW.fullmatch(row.strip())
        if match is None:
            continue
        kind, content = match[1], match[2].strip()
        if kind == "person":
            lines.append(Line(content))
        elif not lines:
            continue
        elif kind == "inside":
            _set_inside(lines[-1], content)
        else:
            lines[-1].replies.append((kind, content))
    lines = [line for line in lines if is_clean_line(line.text)]
    for line in lines:
        line.replies = [(kind, reply) for kind, reply in line.replies if is_clean_reply(reply, line.text)]
    return Person(name, lines, []) if len(lines) >= 6 else None


def _set_inside(line: Line, content: str) -> None:
    if content in ("guarded", "eased"):
        line.mood = content  # type: ignore[assignment]
    elif ", " in content:
        line.feeling, _, shown = content.partition(", ")
        line.shown = shown == "said"


@contextmanager
def new_rows(path: Path) -> Iterator[Callable[[object], object]]:
    """Write JSON rows to a compressed file, which has its name only when it is complete."""
    part = path.with_name(path.name + ".part")
    with gzip.open(part, "wt", encoding="utf-8", compresslevel=3) as file:
        yield lambda row: file.write(json.dumps(row) + "\n")
    os.replace(part, path)


_WORD = re.compile(r"[\w']+")
_PLAIN = re.compile(r"[\w\s.,;:?!'\"()&%/-]+")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


SHORT = 9
"""Words of the longest reply that is called short. Small models make sense of these far more often than of longer ones."""


def is_short(reply: str) -> bool:
    return len(words(reply)) <= SHORT


def is_clean_line(text: str) -> bool:
    return 3 <= len(words(text)) <= 70 and bool(_PLAIN.fullmatch(text)) and text[-1] in ".?!"


def is_clean_reply(text: str, line: str) -> bool:
    """Return whether a reply is a sentence or a few, and does not copy six words of the line."""
    tokens = words(text)
    if not (3 <= len(tokens) <= 40 and _PLAIN.fullmatch(text) and text[-1] in ".?!" and text[0].isupper()):
        return False
    spoken = words(line)
    grams = {tuple(spoken[k : k + 6]) for k in range(len(spoken) - 5)}
    return not any(tuple(tokens[k : k + 6]) in grams for k in range(len(tokens) - 5))
