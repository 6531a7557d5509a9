"""Replies that `writer.py` has written or rated."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from documents import is_clean_reply, is_short
from texts import KINDS, Line, Person

REPLIES = "replies-*.jsonl.gz"
"""Files of a folder of writer.py."""
MOST = 10
"""Replies that are added to a line at most."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of a known kind; `sense` is the probability that it makes sense."""

    kind: str
    text: str
    sense: float


Written = dict[str, list[Reply]]
"""Replies by line."""


def load_written(folders: Iterable[Path], files: Iterable[Path] = ()) -> Written:
    """Return what is in the folders of `writer.py write` and in the files of `writer.py read`."""
    written: Written = {}
    paths = []
    for folder in folders:
        shards = sorted(folder.glob(REPLIES))
        if not shards:
            raise ValueError(
                f"{folder} has no files {REPLIES}. Make them with: writer.py write --out {folder}"
            )
        paths += shards
    for path in (*paths, *files):
        for where, row in _rows(path):
            line, reply = _reply(row, where)
            written.setdefault(line, []).append(reply)
    return written


def with_written(people: Sequence[Person], written: Written, least: float) -> list[Person]:
    """Return the people with written replies added to their lines: short, clean ones that make sense with a probability of at
    least `least`, up to MOST per line. Those of a line are always the same."""

    def added(line: Line) -> Line:
        known = {text for _, text in line.replies}
        new = {
            r.text: r.kind
            for r in written.get(line.text, ())
            if r.sense >= least
            and r.text not in known
            and is_short(r.text)
            and is_clean_reply(r.text, line.text)
        }
        chosen = random.Random(line.text).sample(sorted(new), min(MOST, len(new)))
        return replace(line, replies=[*line.replies, *((new[text], text) for text in chosen)])

    return [replace(person, lines=[added(line) for line in person.lines]) for person in people]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a file, each with where it is."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            where = f"{path}, row {number}"
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{where} is not an object.")
            yield where, row


def _reply(row: dict[str, Any], where: str) -> tuple[str, Reply]:
    line = row["lines"][-1] if isinstance(row.get("lines"), list) and row["lines"] else row.get("line")
    kind, text, sense = row.get("kind"), row.get("reply"), row.get("sense")
    if not (isinstance(line, str) and isinstance(text, str) and text):
        raise ValueError(f"{where} needs texts: 'reply', and 'line' or a list 'lines'.")
    if kind not in KINDS:
        raise ValueError(f"{where} has the unknown kind {kind!r}; the kinds are {', '.join(KINDS)}.")
    if isinstance(sense, bool) or not isinstance(sense, int | float) or not 0 <= sense <= 1:
        raise ValueError(f"{where} needs a probability as 'sense', not {sense!r}.")
    return line, Reply(kind, text, sense)
