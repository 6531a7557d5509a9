"""Generation of the user's side of a dialogue: an opening, then beats of about two messages.

A beat mentions things, perhaps a deed, a wish or a value, and shows a feeling: usually by a sign in its last message,
sometimes by name. Beats come from the grammar's frames, from shaken frames (`shaken.py`), or from written people
(`../embedded/people/*.toml`) and train scenarios, with their things replaced and often stirred. Validation and test scenarios are
never read.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grammar import (
    EMPATHY,
    HERE,
    MINE,
    Rng,
    Speaker,
    Utterance,
    articles,
    capital,
    feelings,
    noun,
    plural,
    proper,
    toml,
    words,
    you,
)
from shaken import shaken, small_words, stirred

WRITTEN = 0.60
"""Share of written beats, from train scenarios or `../embedded/people/*.toml`."""

EXCHANGED = 0.55
"""Share of the things in written beats that are replaced."""

STIRRED = 0.50
"""Share of written beats in which other words are replaced too."""

SHAKEN = 0.20
"""Share of beats in new frames (`shaken.py`)."""


@dataclass(frozen=True, slots=True)
class Mould:
    """A written beat: its messages with gaps, the things from the gaps, and the determiners for replies."""

    says: tuple[str, ...]
    things: tuple[str, ...]
    dets: tuple[str, ...]
    cues: dict[str, str]


@lru_cache
def train_scenarios() -> tuple[dict[str, Any], ...]:
    names = json.loads((EMPATHY / "splits.json").read_text(encoding="utf-8"))["train"]
    paths = [EMPATHY / "scenarios" / f"{name}.toml" for name in sorted(names)]
    return tuple(tomllib.loads(path.read_text(encoding="utf-8")) for path in paths)


@lru_cache
def people() -> tuple[dict[str, Any], ...]:
    """Return all written people with `opening`, `guarded`, `eased` and `beats`."""
    written = [{**s, "beats": [*s["stages"], *s["memories"]]} for s in train_scenarios()]
    names = ("body", "bonds", "family", "making", "night", "pastimes", "places", "work", "youth")
    for path in (HERE.parent / "embedded" / "people" / f"{name}.toml" for name in names):
        written += tomllib.loads(path.read_text(encoding="utf-8"))["people"]
    return tuple(written)


@lru_cache
def moulds() -> tuple[Mould, ...]:
    return tuple(_mould(beat) for person in people() for beat in person["beats"])


def _mould(beat: dict[str, Any]) -> Mould:
    """Replace things by gaps \\x01, \\x02 ..., unless a gap would split what shows the feeling."""
    says, cues = list(beat["says"]), dict(beat["cues"])
    shown = _showing(cues["feeling"])
    things, dets = [], []
    for thing in map(bare, beat["about"]):
        gap = chr(1 + len(things))
        whole = re.compile(rf"(?<![\w-]){re.escape(thing)}(?![\w-])", re.IGNORECASE)
        made = [whole.sub(gap, line) for line in says]
        kept = all(shown.search(new) or not shown.search(old) for new, old in zip(made, says, strict=True))
        if made == says or not kept:
            continue
        dets.append(_determiner(thing, says, whole))
        things.append(thing)
        says = made
        cues = {k: whole.sub(gap, v) for k, v in cues.items()}
    return Mould(tuple(says), tuple(things), tuple(dets), cues)


@lru_cache
def _showing(feeling: str) -> re.Pattern[str]:
    """Return the pattern of what shows this feeling: a sign, or a name as a whole word."""
    known = feelings()[feeling]
    signs, names = (sorted(map(re.escape, known[kind]), key=len, reverse=True) for kind in ("signs", "names"))
    return re.compile(rf"{'|'.join(signs)}|\b(?:{'|'.join(names)})\b", re.IGNORECASE)


_LEADING = re.compile(
    r"(?:the|an?|my|our|your|his|her|its|their|this|that|these|those|every|each|no|any|some|another) (?=.)",
    re.IGNORECASE,
)


def bare(thing: str) -> str:
    """Remove the determiner; a reply adds its own."""
    return _LEADING.sub("", thing, count=1) if _LEADING.match(thing) else thing


def _determiner(thing: str, says: list[str], whole: re.Pattern[str]) -> str:
    """Return the determiner a reply uses for the thing: none for names, "your" for "my"."""
    line = next(line for line in says if whole.search(line))
    match = whole.search(line)
    before = line[: match.start()].split() if match else []
    last = before[-1].lower().strip("'\",") if before else ""
    if last in MINE:
        return MINE[last]
    name = thing[0].isupper() and not thing.isupper() and last not in ("the", "a", "an")
    return "" if name else "the"


@lru_cache
def particulars() -> tuple[str, ...]:
    """Return the things that people mention, without duplicates and names."""
    every = [bare(term) for person in people() for beat in person["beats"] for term in beat["about"]]
    counts = {*words("numbers"), "one", "two", "both", "half", "all", "own", "nothing"}
    one = (term for term in every if term[0].islower() and not _many(term))
    return tuple(dict.fromkeys(term for term in one if term.split()[0] not in counts))


def _many(thing: str) -> bool:
    return thing.endswith("s") and not thing.endswith("ss")


def from_mould(rng: Rng, mould: Mould) -> list[Utterance]:
    """Return the beat with its things replaced."""
    fill = []
    for thing, det in zip(mould.things, mould.dets, strict=True):
        if rng.random() > EXCHANGED:
            fill.append(thing)
        elif not det:
            fill.append(proper(rng))
        elif _many(thing):
            some = plural(noun(rng))
            counted = " " in thing and rng.random() < 0.3
            fill.append(f"{rng.pick(words('numbers'))} {some}" if counted else some)
        else:
            fill.append(rng.pick(particulars()) if rng.random() < 0.55 else noun(rng))
    lines = []
    share = rng.random() if rng.random() < STIRRED else 0.0
    keep = tuple(mould.cues[kind] for kind in ("deed", "wish", "value") if kind in mould.cues)
    shown = _showing(mould.cues["feeling"])
    for says in mould.says:
        utterance = Utterance()
        for i, det in enumerate(mould.dets):
            if chr(1 + i) in says:
                utterance.things.append(f"{det} {fill[i]}".strip())
        utterance.text = _filled(stirred(rng, says, share, keep, _all_lines()) if share else says, fill)
        for cue, into in (("deed", utterance.deeds), ("wish", utterance.wishes), ("value", utterance.values)):
            phrase = mould.cues.get(cue, "")
            if phrase and phrase.lower() in says.lower():
                into.append(you(_filled(phrase, fill)))
        if shown.search(says):
            utterance.feeling = mould.cues["feeling"]
        lines.append(utterance)
    return lines


_BEGINS = re.compile(r"(?:(?<=[.!?] )|^(?=.*[.!?]))[\x01-\x04]")


def _filled(text: str, fill: list[str]) -> str:
    """Fill the gaps and capitalise the start of sentences."""
    text = _BEGINS.sub(lambda gap: capital(fill[ord(gap[0]) - 1]), text)
    for i, thing in enumerate(fill):
        text = text.replace(chr(1 + i), thing)
    return articles(text)


def own_beat(rng: Rng, speaker: Speaker, late: bool) -> list[Utterance]:
    """Return a beat made from the grammar's frames."""
    bank = toml("lines.toml")
    feeling = speaker.feeling = rng.pick(tuple(feelings()))
    if rng.random() < 0.17:
        nouns = feeling in toml("replies.toml")["nouns"] and rng.random() < 0.25
        sign = rng.pick(bank["shown_noun" if nouns else "shown"])
    else:
        sign = rng.pick(toml("signs.toml")[feeling])
    plain = [rng.pick(bank["tell"]) for _ in range(1 + (rng.random() < 0.7))]
    if late and rng.random() < 0.3:
        plain.insert(0, rng.pick(bank["values"]))
    rest = [rng.pick(bank["tell"])] if rng.random() < 0.6 else []
    if late and rng.random() < 0.3:
        rest.append(rng.pick(bank["wishes"]))
    rest.insert(rng.random() < 0.7 and len(rest), sign)
    if rng.random() < 0.15:
        plain, rest = rest, plain
    lines = []
    for frames in (plain, rest):
        utterance = speaker.line(*frames)
        if sign in frames:
            utterance.feeling = feeling
        lines.append(utterance)
    return lines


@lru_cache
def _all_lines() -> tuple[str, ...]:
    """Return the lines from which shaken lines take clauses and stirred lines take words."""
    spare = [line for p in people() for line in [*p["guarded"], *p["eased"], p["opening"]]]
    return tuple([line for p in people() for beat in p["beats"] for line in beat["says"]] + spare)


def shaken_beat(rng: Rng) -> list[Utterance]:
    """Return a beat in which only the sign of the feeling is known text."""
    feeling = rng.pick(tuple(feelings()))
    sign = rng.pick(feelings()[feeling]["signs"])
    around = rng.choices(("{}", "and {}", "I {}", "{} again"), weights=(2, 1, 1, 1))[0]
    sign = around.format(sign)
    lines = [shaken(rng, _all_lines()), shaken(rng, _all_lines(), sign)]
    lines[1].feeling = feeling
    if rng.random() < 0.2:
        lines.reverse()
    return lines


_NEAR = re.compile(r"\b(my|the|a|an|his|her|our) ([^\W\d_]{3,})", re.IGNORECASE)


def near(text: str) -> list[str]:
    """Return the things of a line without annotations: the words after determiners."""
    matches = [
        (det.lower(), thing) for det, thing in _NEAR.findall(text) if thing.lower() not in small_words()
    ]
    return [f"{MINE.get(det, 'the')} {thing}" for det, thing in matches]


def opening(rng: Rng, speaker: Speaker) -> Utterance:
    if rng.random() < SHAKEN:
        return shaken(rng, _all_lines())
    text = rng.pick(people())["opening"]
    if rng.random() < WRITTEN and near(text):
        return Utterance(text, near(text))
    return speaker.line(rng.pick(toml("lines.toml")["open"]), tail=0.05)


class Story:
    """The user's side of one dialogue: continues with the next beat, or answers with a guarded or eased line."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.speaker = Speaker(rng)
        self.coming: list[Utterance] = [opening(rng, self.speaker)]
        self.beats = 0

    def go_on(self) -> Utterance:
        """Return the next message. A beat begins with its first message."""
        if not self.coming:
            self.beats += 1
            sort = self.rng.random()
            if sort < WRITTEN:
                self.coming = from_mould(self.rng, self.rng.pick(moulds()))
            elif sort < WRITTEN + SHAKEN:
                self.coming = shaken_beat(self.rng)
            else:
                self.coming = own_beat(self.rng, self.speaker, late=self.beats > 2)
        return self.coming.pop(0)

    def spare(self, kind: str) -> Utterance:
        """Return a guarded or eased message, which mentions nothing new."""
        if self.rng.random() < 0.6:
            return Utterance(self.rng.pick(self.rng.pick(people())[kind]))
        return Utterance(self.rng.pick(toml("lines.toml")[kind]))
