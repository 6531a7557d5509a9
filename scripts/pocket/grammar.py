"""Words and sentence frames of the grammar that generates the pocket model's pretraining text.

The text consists of dialogues as they could happen in the scripted world: a user tells a story in beats (`story.py`)
and an assistant replies, sometimes well, often badly (`answers.py`). The content of a reply follows from the user's
messages: it repeats their things, deeds and feelings. What the reply does with them is drawn at random, regardless
of what would help; choosing well is left to training.

Frames and word lists are in `lines.toml`, `signs.toml`, `words.toml` and `replies.toml`; written people are in
`../embedded/people/*.toml` and the train scenarios. Names and signs of feelings are those of the scripted world (`feelings.toml` in
mapo/domains/empathy). Only the standard library is used. The same seed gives the same text.
"""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EMPATHY = HERE.parents[1] / "mapo" / "domains" / "empathy"

SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"


@lru_cache
def toml(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


@lru_cache
def feelings() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads((EMPATHY / "feelings.toml").read_text(encoding="utf-8"))


@lru_cache
def feeling_words() -> frozenset[str]:
    """Return the words in all names of feelings. They never replace another word."""
    return frozenset(w for known in feelings().values() for name in known["names"] for w in name.split())


@lru_cache
def function_words() -> frozenset[str]:
    english = EMPATHY.parents[1] / "scripted" / "english.toml"
    return frozenset(tomllib.loads(english.read_text(encoding="utf-8"))["function_words"].split())


@lru_cache
def words(*kinds: str) -> tuple[str, ...]:
    listed = " ".join(toml("words.toml")[kind] for kind in kinds).split()
    return tuple(dict.fromkeys(word.replace("-", " ") for word in listed))


@lru_cache
def verbs() -> tuple[tuple[str, str], ...]:
    return tuple(tuple(pair.split(":")) for pair in toml("words.toml")["verbs"].split())  # type: ignore[misc]


class Rng(random.Random):
    """`random.Random` with a faster choice."""

    def pick(self, options: Any) -> Any:
        return options[int(self.random() * len(options))]


@dataclass(slots=True)
class Utterance:
    """One message of the user, and what it mentions, in the form in which a reply repeats it."""

    text: str = ""
    things: list[str] = field(default_factory=list)
    deeds: list[str] = field(default_factory=list)
    wishes: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    feeling: str = ""


_SWAP = {
    "i": "you", "my": "your", "me": "you", "myself": "yourself", "mine": "yours", "am": "are", "i'm": "you're",
    "i'd": "you'd", "i've": "you've", "i'll": "you'll", "our": "your", "we": "you", "us": "you",
}  # fmt: skip


def you(phrase: str) -> str:
    """Turn a phrase from the first to the second person."""
    return " ".join(_SWAP.get(word.lower(), word) for word in phrase.split())


def pseudo(rng: Rng, ending: str = "") -> str:
    """Return a made-up word with this ending."""
    onsets, vowels, codas = words("onsets"), words("vowels"), words("codas")
    parts = [rng.pick(onsets) + rng.pick(vowels) for _ in range(1 + (rng.random() < 0.75))]
    word = "".join(parts) + (rng.pick(codas) if rng.random() < 0.7 else "") + ending
    known = word in feeling_words() or word in function_words()
    return pseudo(rng, ending) if known else word


def noun(rng: Rng) -> str:
    """Return a thing: usually one word, sometimes two, sometimes a made-up word."""
    bank, r = words("nouns", "more_nouns"), rng.random()
    if r < 0.58:
        return str(rng.pick(bank))
    if r < 0.70:
        return f"{rng.pick(bank)} {rng.pick(bank)}"
    if r < 0.80:
        return f"{rng.pick(words('adjectives'))} {rng.pick(bank)}"
    if r < 0.97:
        return pseudo(rng)
    return f"{pseudo(rng)} {rng.pick(bank)}"


def plural(one: str) -> str:
    if one.endswith(("s", "x", "ch", "sh", "z")):
        return one + "es"
    if one.endswith("y") and one[-2:-1] not in "aeiou":
        return one[:-1] + "ies"
    return one + "s"


def proper(rng: Rng) -> str:
    return str(rng.pick(words("names"))) if rng.random() < 0.5 else pseudo(rng).capitalize()


_SLOT = re.compile(r"(\{\w+\})")
MINE = {"my": "your", "our": "your", "his": "his", "her": "her", "their": "their"}


@lru_cache(maxsize=4096)
def _pieces(frame: str) -> tuple[tuple[str, str], ...]:
    """Parse a frame into (slot, determiner for the reply) or ("", literal), in order."""
    parts = [part for part in _SLOT.split(frame) if part]
    pieces: list[tuple[str, str]] = []
    for i, part in enumerate(parts):
        if not _SLOT.fullmatch(part):
            pieces.append(("", part))
            continue
        before = "".join(parts[:i]).replace("{j} ", "").split()
        last = before[-1].lower() if before else ""
        pieces.append((part[1:-1], "{n}" if last == "{n}" else MINE.get(last, "the")))
    return tuple(pieces)


class Speaker:
    """Expands frames for one person; what they mention is collected in `utterance`."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.utterance = Utterance()
        self.number = ""
        self.feeling = ""

    def expand(self, frame: str) -> str:
        out = []
        for slot, det in _pieces(frame):
            out.append(det if not slot else self.slot(slot, det))
        return "".join(out)

    def slot(self, slot: str, det: str) -> str:
        rng, utterance = self.rng, self.utterance
        if slot == "a":
            thing = noun(rng)
            utterance.things.append(f"{det} {thing}")
            return thing
        if slot == "as":
            things = plural(noun(rng))
            if det == "{n}":
                utterance.things.append(
                    f"the {self.number} {things}" if rng.random() < 0.5 else f"the {things}"
                )
            else:
                utterance.things.append(f"{det} {things}")
            return things
        if slot == "n":
            self.number = rng.pick(words("numbers"))
            return self.number
        if slot == "who":
            if rng.random() < 0.2:
                return self.slot("N", "")
            person, mine = rng.pick(words("persons")), rng.random() < 0.8
            utterance.things.append(f"your {person}" if mine else f"the {person}")
            return f"my {person}" if mine else f"the {person}"
        if slot in ("N", "P"):
            name = proper(rng) if slot == "N" or rng.random() < 0.3 else rng.pick(words("places"))
            utterance.things.append(name)
            return str(name)
        return self.rest(slot)

    def rest(self, slot: str) -> str:
        rng, utterance, bank = self.rng, self.utterance, toml("lines.toml")
        if slot == "j":
            return str(rng.pick(words("adjectives")))
        if slot == "t":
            return str(rng.pick(bank["time"]))
        if slot in ("V", "B"):
            if rng.random() < 0.12:
                return pseudo(rng, "ed" if slot == "V" else "")
            return rng.pick(verbs())[slot == "B"]
        if slot == "vp":
            deed = articles(self.expand(rng.pick(bank["vp"])))
            utterance.deeds.append(you(deed))
            return deed
        if slot == "w":
            wish = articles(self.expand(rng.pick(bank["wish"])))
            utterance.wishes.append(you(wish))
            return wish
        if slot == "v":
            value = articles(self.expand(rng.pick(bank["value"])))
            utterance.values.append(you(value))
            return value
        if slot == "f":
            return str(rng.pick(toml("replies.toml")["adjectives"][self.feeling]))
        if slot == "F":
            return str(rng.pick(toml("replies.toml")["nouns"][self.feeling]))
        raise ValueError(f"no slot {{{slot}}}")

    def line(self, *frames: str, tail: float = 0.15) -> Utterance:
        """Return a message made of these frames."""
        self.utterance = utterance = Utterance()
        sentences = []
        for frame in frames:
            if frame.endswith(".") and self.rng.random() < tail:
                frame = frame[:-1] + self.rng.pick(toml("lines.toml")["tail"]) + "."
            sentences.append(capital(articles(self.expand(frame))))
        utterance.text = " ".join(sentences)
        return utterance


_ARTICLE = re.compile(r"(\ban?|(?:^|(?<=[.!?:\"“] ))An?)(?= ([^\W\d_][\w-]*))")
_VOWEL = re.compile(
    r"(?!one\b|once\b|eu|ewe|u-|uni(?![dmnr])|us[aeiu]|ut[eio]|ur[aiou]|uk)[aeiouáåæéíóöøúü]|hour|honest|honou?r|heir",
    re.IGNORECASE,
)
_SPELT = re.compile(r"[AEFHILMNORSX][A-Z]{0,2}\b|[aefhilmnorsx]\b")


def articles(text: str) -> str:
    """Correct "a" and "an" for the word that follows."""
    return _ARTICLE.sub(lambda m: m[1][0] + ("n" if _VOWEL.match(m[2]) or _SPELT.match(m[2]) else ""), text)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
