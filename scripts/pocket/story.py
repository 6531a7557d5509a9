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

from grammar import EMPATHY, HERE, Rng, Speaker, Told, feelings, noun, plural, proper, toml, words, you
from shaken import shaken, stirred

WRITTEN = 0.60
"""Share of the beats that somebody wrote, for a train scenario or for this; most of their things exchanged."""

EXCHANGED = 0.55

STIRRED = 0.50
"""Share of the written beats in which other words are exchanged too."""

SHAKEN = 0.20
"""Share of the beats in frames nobody has seen (`shaken.py`)."""


@dataclass(frozen=True, slots=True)
class Mould:
    """A beat of a train scenario: its lines with gaps, and what stood in the gaps."""

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
    """Things become gaps \\x01, \\x02 ..., unless a gap would tear a sign apart."""
    says, cues = list(beat["says"]), dict(beat["cues"])
    signs = [s.lower() for s in feelings()[cues["feeling"]]["signs"]]
    things, dets = [], []
    for thing in beat["about"]:
        gap, whole = (
            chr(1 + len(things)),
            re.compile(rf"(?<![\w-]){re.escape(thing)}(?![\w-])", re.IGNORECASE),
        )
        made = [whole.sub(gap, line) for line in says]
        kept = all(any(s in new.lower() for s in signs) or not any(s in old.lower() for s in signs)
                   for new, old in zip(made, says, strict=True))  # fmt: skip
        if made == says or not kept:
            continue
        dets.append(_determiner(thing, says, whole))
        things.append(thing)
        says = made
        cues = {k: whole.sub(gap, v) for k, v in cues.items()}
    return Mould(tuple(says), tuple(things), tuple(dets), cues)


def _determiner(thing: str, says: list[str], whole: re.Pattern[str]) -> str:
    """What a reply puts before the thing: nothing before names, "your" for what is mine."""
    line = next(line for line in says if whole.search(line))
    match = whole.search(line)
    before = line[: match.start()].split() if match else []
    last = before[-1].lower().strip("'\",") if before else ""
    if last in ("my", "our"):
        return "your"
    if last in ("his", "her", "their"):
        return last
    return "" if match and match[0][0].isupper() and before and not thing.isupper() else "the"


@lru_cache
def particulars() -> tuple[str, ...]:
    """What people talk about, names aside."""
    every = [term for person in people() for beat in person["beats"] for term in beat["about"]]
    return tuple(dict.fromkeys(term for term in every if term[0].islower()))


def from_mould(rng: Rng, mould: Mould) -> list[Told]:
    """The beat with other things in it."""
    fill = []
    for thing, det in zip(mould.things, mould.dets, strict=True):
        if rng.random() > EXCHANGED:
            fill.append(thing)
        elif not det:
            fill.append(proper(rng))
        elif thing.endswith("s") and not thing.endswith("ss"):
            many = plural(noun(rng))
            fill.append(
                f"{rng.pick(words('numbers'))} {many}" if " " in thing and rng.random() < 0.3 else many
            )
        else:
            fill.append(rng.pick(particulars()) if rng.random() < 0.55 else noun(rng))
    lines = []
    share = rng.random() if rng.random() < STIRRED else 0.0
    keep = tuple(mould.cues[kind] for kind in ("deed", "wish", "value") if kind in mould.cues)
    signs = [s.lower() for s in feelings()[mould.cues["feeling"]]["signs"]]
    for says in mould.says:
        told = Told()
        for i, det in enumerate(mould.dets):
            if chr(1 + i) in says:
                told.things.append(f"{det} {fill[i]}".strip())
        text = _filled(stirred(rng, says, share, keep, _all_lines()) if share else says, fill)
        for cue, into in (("deed", told.deeds), ("wish", told.wishes), ("value", told.values)):
            phrase = mould.cues.get(cue, "")
            if phrase and phrase.lower() in says.lower():
                into.append(you(_filled(phrase, fill)))
        if any(s in text.lower() for s in signs) or mould.cues.get("shown") == "yes":
            told.feeling = mould.cues["feeling"]
        told.text = text[:1].upper() + text[1:] if says[:1] in "\x01\x02\x03\x04" else text
        lines.append(told)
    return lines


def _filled(text: str, fill: list[str]) -> str:
    for i, thing in enumerate(fill):
        text = text.replace(chr(1 + i), thing)
    return text


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
    around = rng.random()
    sign = (
        sign
        if around < 0.4
        else f"and {sign}"
        if around < 0.6
        else f"I {sign}"
        if around < 0.8
        else f"{sign} again"
    )
    lines = [shaken(rng, _all_lines()), shaken(rng, _all_lines(), sign)]
    lines[1].feeling = feeling
    if rng.random() < 0.2:
        lines.reverse()
    return lines


_NEAR = re.compile(r"\b(my|the|a|an|his|her|our) ([a-z]{3,})", re.IGNORECASE)


def opening(rng: Rng, speaker: Speaker) -> Told:
    if rng.random() < SHAKEN:
        return shaken(rng, _all_lines())
    if rng.random() > WRITTEN:
        return speaker.line(rng.pick(toml("lines.toml")["open"]), tail=0.05)
    text = rng.pick(people())["opening"]
    told = Told(text)
    for det, thing in _NEAR.findall(text):
        told.things.append(
            f"{ {'my': 'your', 'our': 'your', 'his': 'his', 'her': 'her'}.get(det.lower(), 'the') } {thing}"
        )
    return told if told.things else speaker.line(rng.pick(toml("lines.toml")["open"]), tail=0.05)


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
        sort = self.rng.random()
        if sort < 0.2:
            return Told(shaken(self.rng, _all_lines(), most=1).text)
        if sort < 0.7:
            return Told(self.rng.pick(self.rng.pick(people())[kind]))
        return Told(self.rng.pick(toml("lines.toml")[kind]))
