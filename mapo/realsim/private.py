"""The local pass: what identifies people becomes placeholders, before any model sees a word.

`clean` replaces what `patterns` and `names` find by `[name 1]`, `[phone 2]`: the same value, the same
placeholder, throughout a conversation. `leaks` says which of the values stand in a later text all the same,
however they are written: in other case, with other spaces, in full-width forms.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mapo.realsim.names import find_names
from mapo.realsim.patterns import KINDS, Found, find_forms, folded
from mapo.realsim.words import ordinary, words

_WORDS = ("name", "place", "organisation", "handle", "other")
"""Kinds whose values are words: they count where they stand as words."""
PLACEHOLDER = re.compile(rf"\[(?:{'|'.join((*KINDS, 'other'))}) \d+\]")
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_FEW = 5
"""Letters or digits in a row that do not meet by chance."""


@dataclass(slots=True)
class Values:
    """The private values of one conversation: squeezed value -> its placeholder, and how they were written.
    Held in memory only."""

    placeholders: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    """Those that somebody named: no guess by a capital letter."""
    _count: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, text: str) -> str:
        """The placeholder of a value, a new one if it is new."""
        key = squeezed(text)
        if key not in self.placeholders:
            self.placeholders[key] = self._known_part(kind, text) or self._new(kind)
            self.written[key], self.kinds[key] = text.strip(), kind
        return self.placeholders[key]

    def _new(self, kind: str) -> str:
        self._count[kind] += 1
        return f"[{kind} {self._count[kind]}]"

    def _known_part(self, kind: str, text: str) -> str:
        """A given name alone is the person whose whole name was said before, and the other way round."""
        if kind != "name":
            return ""
        own = {*text.casefold().split()}
        for key, placeholder in self.placeholders.items():
            other = {*self.written[key].casefold().split()}
            if self.kinds[key] == "name" and own & other and (own <= other or other <= own):
                return placeholder
        return ""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Texts with placeholders, and how often each kind was found."""

    texts: tuple[str, ...]
    values: Values
    counts: Counter[str]


def clean(
    texts: Sequence[str], known: Iterable[tuple[str, str]] = (), values: Values | None = None
) -> Cleaned:
    """`known` are values (kind, text) somebody has named: speakers, what a model found."""
    values = values or Values()
    for kind, value in known:
        values.add(kind, value)
        values.named.add(squeezed(value))
    spans = [find(text) for text in texts]
    for text, found in zip(texts, spans, strict=True):
        for kind, start, end in found:
            values.add(kind, text[start:end])
    counts: Counter[str] = Counter()
    cleaned = []
    for text, found in zip(texts, spans, strict=True):
        everywhere = _merged([*found, *_again(text, values)])
        counts.update(item.kind for item in everywhere)
        parts, at = [], 0
        for kind, start, end in everywhere:
            parts += [text[at:start], values.add(kind, text[start:end])]
            at = end
        cleaned.append("".join([*parts, text[at:]]))
    return Cleaned(tuple(cleaned), values, counts)


def find(text: str) -> list[Found]:
    """Everything private in one text, none overlapping another; placeholders are left alone."""
    plain = folded(text)
    ours = [Found("", *match.span()) for match in PLACEHOLDER.finditer(plain)]
    found = _merged([*ours, *find_forms(plain), *find_names(plain)])
    return [item for item in found if item.kind]


def _merged(found: Iterable[Found]) -> list[Found]:
    """The first of those that overlap, in the order given; sorted by place."""
    kept: list[Found] = []
    covered: list[tuple[int, int]] = []
    for item in found:
        if item.end > item.start and all(item.end <= start or item.start >= end for start, end in covered):
            covered.append((item.start, item.end))
            kept.append(item)
    return sorted(kept, key=lambda item: item.start)


def _again(text: str, values: Values) -> list[Found]:
    """Where values stand that were recognised elsewhere only."""
    plain = folded(text)
    return [
        Found(values.kinds[key], *match.span())
        for key in sorted(values.written, key=lambda key: -len(key))
        for pattern in _patterns(key, values)
        for match in pattern.finditer(plain)
    ]


def _patterns(key: str, values: Values) -> list[re.Pattern[str]]:
    """A value and its telling parts, as they may stand in a text."""
    loose = key in values.named
    return [_pattern(part, loose) for part in _parts(values.written[key], values.kinds[key])]


def _parts(written: str, kind: str) -> list[str]:
    """A value, and what of it tells alone: a given name, the name in an e-mail, a street without the town."""
    whole = folded(written).strip()
    parts = [whole]
    if kind == "name" and _HAN.search(whole):
        alone = len(whole) >= 3 and not whole.endswith(tuple(words("chinese", "titles")))
        parts += [whole[1:]] if alone else []
    elif kind == "name":
        parts += [part for part in re.split(r"[\s.]+", whole) if len(part) > 2]
    elif kind == "email":
        parts += [x for x in [whole.split("@")[0]] if len(x) >= 6]
    elif kind == "address":
        pieces = (piece.strip(" .-") for piece in re.split(r"[,，]|\d+", whole))
        parts += [piece for piece in pieces if len(squeezed(piece)) >= (4 if _HAN.search(piece) else 9)]
    return list(dict.fromkeys(parts))


@lru_cache(maxsize=4096)
def _pattern(word: str, loose: bool) -> re.Pattern[str]:
    """A word as it may stand in a text: in any case, unless it may be an ordinary word in small letters."""
    low = word.casefold()
    also = low in words("english", "also_words") | words("english", "capitals")
    any_case = len(word) >= 4 and not also and (loose or not ordinary(low))
    spaced = r"\s+".join(map(re.escape, word.split()))
    edged = spaced if _HAN.search(word) else rf"(?<![^\W_]){spaced}(?![^\W_])"
    return re.compile(edged, re.IGNORECASE if any_case else 0)


def squeezed(text: str) -> str:
    """Letters and digits alone, in plain small forms."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def leaks(values: Values, text: str) -> list[str]:
    """The values that stand in `text`, as they were written in the conversation."""
    dense, plain = squeezed(text), folded(text)
    together = re.sub(r"(?<=\d)[\s().\-–/]+(?=\d)", "", plain)
    digits = "".join(c if c.isdigit() else " " for c in together)
    found = []
    for key, written in values.written.items():
        number = "".join(c for c in key if c.isdigit())
        formed = values.kinds[key] not in _WORDS and len(key) >= (2 if _HAN.search(key) else _FEW)
        if (
            (len(number) >= _FEW and number in digits)
            or (formed and key in dense)
            or any(pattern.search(plain) for pattern in _patterns(key, values))
        ):
            found.append(written)
    return found
