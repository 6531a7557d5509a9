"""The texts that the embedded models learn from: people, what they say, and replies of known kinds.

`people/*.toml` are written stories. `replies/*.txt`, `natural/*.txt` and `pieces/*.txt` are written replies to them and to
the train scenarios of the package, one per line: `PERSON LABEL KIND REPLY`. The natural ones are short sentences, as they
would be spoken. Those of `pieces` are such sentences too, most with a piece of the line and plain words around it.
Validation and test scenarios are never read.
"""

from __future__ import annotations

import json
import tomllib
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
EMPATHY = HERE.parents[1] / "mapo" / "domains" / "empathy"

GOOD = ("detail", "ask", "feel", "beneath", "link", "affirm", "step", "room")
POOR = ("advice", "order", "console", "self", "misread", "dismiss", "vague")
KINDS = GOOD + POOR

FOLDERS = ("replies", "natural", "pieces")
"""Folders of written replies."""

HELD_OUT = 14
"""About one written person in so many is held out from everything that is trained."""

Mood = Literal["story", "guarded", "eased"]


@dataclass(slots=True)
class Line:
    """A message of a person. `feeling` is that of the moment, `shown` whether it is said openly."""

    text: str
    mood: Mood = "story"
    feeling: str = ""
    shown: bool = False
    replies: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of kind and text."""


@dataclass(slots=True)
class Person:
    """A person's messages in order of the story; guarded and eased ones can come anywhere. `things` are
    particulars of the story."""

    id: str
    lines: list[Line]
    things: list[str]

    def of_mood(self, mood: Mood) -> list[Line]:
        return [line for line in self.lines if line.mood == mood]


def _person(name: str, data: dict[str, Any], beats: list[dict[str, Any]]) -> tuple[Person, dict[str, Line]]:
    """Return the person and its lines by label: 0a the opening, 1a and 1b the first beat, g1 and e1 the first
    guarded and eased lines."""
    labels = {"0a": Line(data["opening"])}
    for number, beat in enumerate(beats, 1):
        cues = beat["cues"]
        for letter, text in zip("abcdef", beat["says"], strict=False):
            labels[f"{number}{letter}"] = Line(text, "story", cues["feeling"], cues.get("shown") == "yes")
    moods: tuple[Mood, ...] = ("guarded", "eased")
    for mood in moods:
        for number, text in enumerate(data[mood], 1):
            labels[f"{mood[0]}{number}"] = Line(text, mood)
    things = [thing for beat in beats for thing in beat["about"]]
    return Person(name, list(labels.values()), things), labels


@lru_cache
def people_with(*folders: str) -> tuple[list[Person], list[Person]]:
    """Return the written people and the people of the train scenarios, with the replies in `folders`."""
    written, scenarios, labels = [], [], {}
    for file in sorted((HERE / "people").glob("*.toml")):
        for number, data in enumerate(tomllib.loads(file.read_text(encoding="utf-8"))["people"], 1):
            person, by_label = _person(f"{file.stem}-{number:02d}", data, data["beats"])
            written.append(person)
            labels[person.id] = by_label
    for name in sorted(json.loads((EMPATHY / "splits.json").read_text(encoding="utf-8"))["train"]):
        data = tomllib.loads((EMPATHY / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"))
        stages, memories = data["stages"], data["memories"]
        beats = stages[:2]
        for stage in stages[2:]:
            beats += [*([memories.pop(0)] if memories else []), stage]
        person, labels[name] = _person(name, data, beats + memories)
        scenarios.append(person)
    for file in (file for folder in folders for file in sorted((HERE / folder).glob("*.txt"))):
        for row in file.read_text(encoding="utf-8").splitlines():
            name, label, kind, text = row.split(" ", 3)
            if kind not in KINDS:
                raise ValueError(f"{file}: unknown kind '{kind}' in: {row}")
            labels[name][label].replies.append((kind, text))
    return written, scenarios


def written_people() -> list[Person]:
    """Return the people of `people/*.toml` with all replies written to them."""
    return people_with(*FOLDERS)[0]


def train_scenarios() -> list[Person]:
    """Return the people of the package's train scenarios with the replies written to them."""
    return people_with(*FOLDERS)[1]


def natural_people(folder: str = "natural") -> list[Person]:
    """Return the people that models may learn from, with the replies of a folder and the lines that have some."""
    written, scenarios = people_with(folder)
    return _answered([*(person for person in written if not is_held_out(person)), *scenarios])


def held_out_natural_people() -> list[Person]:
    """Return the held-out people with natural replies, and their lines that have some."""
    return _answered([person for person in people_with("natural")[0] if is_held_out(person)])


def _answered(people: list[Person]) -> list[Person]:
    answered = [Person(p.id, [line for line in p.lines if line.replies], p.things) for p in people]
    return [person for person in answered if person.lines]


def known_people() -> list[Person]:
    """Return the written people that models may learn from."""
    return [person for person in _with_replies() if not is_held_out(person)]


def held_out_people() -> list[Person]:
    """Return the written people that no model learns from."""
    return [person for person in _with_replies() if is_held_out(person)]


def is_held_out(person: Person) -> bool:
    """Return whether nothing may learn from a written person, and no judge from the replies to the person of a train
    scenario; further people do not change that."""
    return zlib.crc32(person.id.encode()) % HELD_OUT == 0


def _with_replies() -> list[Person]:
    return [person for person in written_people() if any(line.replies for line in person.lines)]
