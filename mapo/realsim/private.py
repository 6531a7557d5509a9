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

from mapo.realsim.names import find_names
from mapo.realsim.patterns import KINDS, Found, find_forms, folded
from mapo.realsim.words import words

_WORDS = ("name", "place", "organisation", "handle", "other")
"""Kinds whose values are looked for once more everywhere, wherever they were recognised."""
PLACEHOLDER = re.compile(rf"\[(?:{'|'.join((*KINDS, 'other'))}) \d+\]")
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_FEW_DIGITS = 5


@dataclass(slots=True)
class Values:
    """The private values of one conversation: squeezed value -> its placeholder, and how they were written.
    Held in memory only."""

    placeholders: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
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
    """Where known words stand that were recognised elsewhere only."""
    plain = folded(text)
    found = []
    for key, written in sorted(values.written.items(), key=lambda item: -len(item[1])):
        kind = values.kinds[key]
        if kind not in _WORDS and not _HAN.search(written):
            pattern = re.compile(re.escape(folded(written)))
            found += [Found(kind, *match.span()) for match in pattern.finditer(plain)]
            continue
        for part in _parts(written, kind):
            found += [Found(kind, *match.span()) for match in _pattern(part).finditer(plain)]
    return found


def _parts(written: str, kind: str) -> list[str]:
    """A value and, of a name, what a person may be called by alone."""
    whole = folded(written).strip()
    parts = [whole]
    if kind == "name" and not _HAN.search(whole):
        parts += [part for part in re.split(r"[\s.]+", whole) if len(part) > 2]
    if kind == "name" and _HAN.search(whole) and len(whole) >= 3:
        parts.append(whole[1:])
    return list(dict.fromkeys(parts))


def _pattern(word: str) -> re.Pattern[str]:
    """A word as it may stand in a text: in any case, unless it is an ordinary word in small letters."""
    ordinary = words("english", "also_words") | words("english", "capitals")
    exact = len(word) < 4 or word.casefold() in ordinary
    spaced = r"\s+".join(map(re.escape, word.split()))
    edged = spaced if _HAN.search(word) else rf"(?<![^\W_]){spaced}(?![^\W_])"
    return re.compile(edged, 0 if exact else re.IGNORECASE)


def squeezed(text: str) -> str:
    """Letters and digits alone, in plain small forms."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def leaks(values: Values, text: str) -> list[str]:
    """The values that stand in `text`, as they were written in the conversation."""
    dense, plain = squeezed(text), folded(text)
    digits = "".join(c if c.isdigit() else " " for c in re.sub(r"(?<=\d)[\s().\-–/]+(?=\d)", "", plain))
    found = []
    for key, written in values.written.items():
        number = "".join(c for c in key if c.isdigit())
        if len(number) >= _FEW_DIGITS and number in digits:
            found.append(written)
        elif values.kinds[key] in _WORDS:
            if any(_pattern(part).search(plain) for part in _parts(written, values.kinds[key])):
                found.append(written)
        elif any(part in dense for part in _dense_parts(written, values.kinds[key])):
            found.append(written)
    return found


def _dense_parts(written: str, kind: str) -> list[str]:
    """What of a value gives it away: all of it, the name in an e-mail, a street without the town."""
    parts = [squeezed(written)]
    if kind == "email":
        parts += [x for x in [squeezed(written.split("@")[0])] if len(x) >= 6]
    if kind == "address":
        pieces = re.split(r"[,，]|\d+", written)
        parts += [x for piece in pieces if len(x := squeezed(piece)) >= (4 if _HAN.search(piece) else 9)]
    return [part for part in parts if len(part) >= (2 if _HAN.search(part) else 4)]
