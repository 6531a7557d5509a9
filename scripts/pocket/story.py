"""The grammar, middle part: what a person tells, in which order.

A story is an opening and beats of about two lines. In a beat things are told, perhaps a deed, a wish or a
conviction, and a feeling shows: mostly in a sign in its last line, now and then by name. Beats are our own
frames, shaken ones (`shaken.py`), or those of people written for this (`read/*.toml`) and of train scenarios, with
their things exchanged for others and often stirred. Other splits are never opened.
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
    Told,
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
"""Share of the beats that somebody wrote, for a train scenario or as reading matter (`read/*.toml`)."""

EXCHANGED = 0.55
"""Share of the things in them that others take the place of."""

STIRRED = 0.50
"""Share of the written beats in which other words are exchanged too."""

SHAKEN = 0.20
"""Share of the beats in frames nobody has seen (`shaken.py`)."""


@dataclass(frozen=True, slots=True)
class Mould:
    """A written beat: its lines with gaps, what stood in the gaps, and what a reply puts before it."""

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
    """Everybody whose lines are read: `opening`, `guarded`, `eased` and `beats`."""
    told = [{**s, "beats": [*s["stages"], *s["memories"]]} for s in train_scenarios()]
    for path in sorted((HERE / "read").glob("*.toml")):
        told += tomllib.loads(path.read_text(encoding="utf-8"))["people"]
    return tuple(told)


@lru_cache
def moulds() -> tuple[Mould, ...]:
    return tuple(_mould(beat) for person in people() for beat in person["beats"])


def _mould(beat: dict[str, Any]) -> Mould:
    """Things become gaps \\x01, \\x02 ..., unless a gap would tear apart what shows the feeling."""
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
    """What shows this feeling: a sign as it stands, or a name as a word."""
    known = feelings()[feeling]
    signs, names = (sorted(map(re.escape, known[kind]), key=len, reverse=True) for kind in ("signs", "names"))
    return re.compile(rf"{'|'.join(signs)}|\b(?:{'|'.join(names)})\b", re.IGNORECASE)


_LEADING = re.compile(
    r"(?:the|an?|my|our|your|his|her|its|their|this|that|these|those|every|each|no|any|some|another) (?=.)",
    re.IGNORECASE,
)


def bare(thing: str) -> str:
    """Without a determiner: a reply brings its own."""
    return _LEADING.sub("", thing, count=1) if _LEADING.match(thing) else thing


def _determiner(thing: str, says: list[str], whole: re.Pattern[str]) -> str:
    """What a reply puts before the thing: nothing before names, "your" for what is mine."""
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
    """What people talk about, one of a kind each, names aside."""
    every = [bare(term) for person in people() for beat in person["beats"] for term in beat["about"]]
    counts = {*words("numbers"), "one", "two", "both", "half", "all", "own", "nothing"}
    one = (term for term in every if term[0].islower() and not _many(term))
    return tuple(dict.fromkeys(term for term in one if term.split()[0] not in counts))


def _many(thing: str) -> bool:
    return thing.endswith("s") and not thing.endswith("ss")


def from_mould(rng: Rng, mould: Mould) -> list[Told]:
    """The beat with other things in it."""
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
        told = Told()
        for i, det in enumerate(mould.dets):
            if chr(1 + i) in says:
                told.things.append(f"{det} {fill[i]}".strip())
        told.text = _filled(stirred(rng, says, share, keep, _all_lines()) if share else says, fill)
        for cue, into in (("deed", told.deeds), ("wish", told.wishes), ("value", told.values)):
            phrase = mould.cues.get(cue, "")
            if phrase and phrase.lower() in says.lower():
                into.append(you(_filled(phrase, fill)))
        if shown.search(says):
            told.feeling = mould.cues["feeling"]
        lines.append(told)
    return lines


_BEGINS = re.compile(r"(?:(?<=[.!?] )|^(?=.*[.!?]))[\x01-\x04]")


def _filled(text: str, fill: list[str]) -> str:
    """Its gaps filled; a sentence begins with a capital."""
    text = _BEGINS.sub(lambda gap: capital(fill[ord(gap[0]) - 1]), text)
    for i, thing in enumerate(fill):
        text = text.replace(chr(1 + i), thing)
    return articles(text)


def own_beat(rng: Rng, speaker: Speaker, late: bool) -> list[Told]:
    """A beat from our frames."""
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
        told = speaker.line(*frames)
        if sign in frames:
            told.feeling = feeling
        lines.append(told)
    return lines


@lru_cache
def _all_lines() -> tuple[str, ...]:
    """Where shaken lines take their clauses from, and stirred ones their words."""
    spare = [line for p in people() for line in [*p["guarded"], *p["eased"], p["opening"]]]
    return tuple([line for p in people() for beat in p["beats"] for line in beat["says"]] + spare)


def shaken_beat(rng: Rng) -> list[Told]:
    """A beat of which only the sign of its feeling was ever heard before."""
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
    """The things of a line that nobody annotated: what stands after a determiner."""
    found = [(det.lower(), thing) for det, thing in _NEAR.findall(text) if thing.lower() not in small_words()]
    return [f"{MINE.get(det, 'the')} {thing}" for det, thing in found]


def opening(rng: Rng, speaker: Speaker) -> Told:
    if rng.random() < SHAKEN:
        return shaken(rng, _all_lines())
    text = rng.pick(people())["opening"]
    if rng.random() < WRITTEN and near(text):
        return Told(text, near(text))
    return speaker.line(rng.pick(toml("lines.toml")["open"]), tail=0.05)


class Story:
    """Tells beat after beat when asked to go on; keeps to the surface when not."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.speaker = Speaker(rng)
        self.coming: list[Told] = [opening(rng, self.speaker)]
        self.beats = 0

    def go_on(self) -> Told:
        """The next line. A beat has begun when its first line is told."""
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

    def spare(self, kind: str) -> Told:
        """A guarded or an eased line: it says nothing new, so a reply goes back to what was told."""
        if self.rng.random() < 0.6:
            return Told(self.rng.pick(self.rng.pick(people())[kind]))
        return Told(self.rng.pick(toml("lines.toml")[kind]))
