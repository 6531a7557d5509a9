"""The local pass: what identifies people becomes placeholders, before any model sees a word.

`clean` replaces what `patterns` and `names` find by `[name 1]`, `[phone 2]`: the same value, the same
placeholder, throughout a conversation. What looks like a placeholder in the text itself gets round brackets
first, so that nothing hides in one. `leaks` says which of the values stand in a later text all the same,
however they are written: in other case, with other spaces, in full-width forms, without accents, in pieces.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from mapo.realsim.redaction.folding import fold_all, fold_forms, fold_letters, squeeze
from mapo.realsim.redaction.names import find_names
from mapo.realsim.redaction.patterns import KINDS, Found, find_forms
from mapo.realsim.redaction.value_search import LetterRun, ValueIndex, telling_parts

_WORDS = ("name", "place", "organisation", "handle", "other")
"""Kinds whose values are words: they count where they stand as words."""
PLACEHOLDER = re.compile(rf"\[(?:{'|'.join((*KINDS, 'other'))}) \d+\]")
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_FEW = 5
"""Letters or digits in a row that do not meet by chance."""
_TELLING = 7
"""Last digits of a longer number that tell it."""
_CARD = 12
"""Digits of a number that people name by its last four."""
_MOST_WORDS = 5
"""Words of a name whose combinations are remembered."""


@dataclass(slots=True)
class Values:
    """The private values of one conversation: squeezed value -> its placeholder, and how they were written.
    Held in memory only."""

    placeholders: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    """Those that somebody named: no guess by a capital letter."""
    made: set[str] = field(default_factory=set)
    """Every placeholder given out; nothing else in a text is one."""
    _count: Counter[str] = field(default_factory=Counter)
    _whole: dict[frozenset[str], str] = field(default_factory=dict)
    _part: dict[frozenset[str], str] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> str:
        """The placeholder of a value, a new one if it is new."""
        key = squeeze(text)
        if key not in self.placeholders:
            own = frozenset(fold_all(text).casefold().split()) if kind == "name" else frozenset()
            self.placeholders[key] = self._same_person(own) or self._new(kind)
            self.written[key], self.kinds[key] = text.strip(), kind
            if own:
                self._whole.setdefault(own, self.placeholders[key])
                for some in _some_of(own):
                    self._part.setdefault(some, self.placeholders[key])
        return self.placeholders[key]

    def _new(self, kind: str) -> str:
        self._count[kind] += 1
        placeholder = f"[{kind} {self._count[kind]}]"
        self.made.add(placeholder)
        return placeholder

    def _same_person(self, own: frozenset[str]) -> str:
        """A given name alone is the person whose whole name was said before, and the other way round."""
        known = (self._whole.get(some, "") for some in _some_of(own))
        return self._part.get(own, "") or next(filter(None, known), "")


def _some_of(own: frozenset[str]) -> list[frozenset[str]]:
    """Words of a name, one by one and together."""
    sizes = range(1, len(own) + 1) if len(own) <= _MOST_WORDS else (1, len(own))
    return [frozenset(some) for size in sizes for some in combinations(sorted(own), size)]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Texts with placeholders, and how often each kind was found."""

    texts: tuple[str, ...]
    values: Values
    counts: Counter[str]


def clean(
    texts: Sequence[str], known: Iterable[tuple[str, str]] = (), values: Values | None = None
) -> Cleaned:
    """`known` are values (kind, text) somebody has named: speakers, what a model found. `values` are those
    of an earlier pass; their placeholders stay, and everything else that looks like one is text."""
    values = values or Values()
    texts = [_without_lookalikes(text, values.made) for text in texts]
    ours = frozenset(values.made)
    for kind, value in known:
        values.add(kind, value)
        values.named.add(squeeze(value))
    spans = [find(text, ours) for text in texts]
    for text, found in zip(texts, spans, strict=True):
        for kind, start, end in found:
            values.add(kind, text[start:end])
    index = _index(values, fold_letters)
    counts: Counter[str] = Counter()
    cleaned = []
    for text, found in zip(texts, spans, strict=True):
        again = sorted(index.matches(fold_letters(text)), key=lambda item: item[1] - item[2])
        known_here = [Found(values.kinds[keys[0]], start, end) for keys, start, end in again]
        spans_here = [item for item in _merged([*_ours(text, ours), *found, *known_here]) if item.kind]
        counts.update(item.kind for item in spans_here)
        parts, at = [], 0
        for kind, start, end in spans_here:
            parts += [text[at:start], values.add(kind, text[start:end])]
            at = end
        cleaned.append("".join([*parts, text[at:]]))
    return Cleaned(tuple(cleaned), values, counts)


def find(text: str, ours: Collection[str] = ()) -> list[Found]:
    """Everything private in one text, none overlapping another; the placeholders `ours` are left alone."""
    plain = fold_forms(text)
    found = _merged([*_ours(text, ours), *find_forms(plain), *find_names(plain)])
    return [item for item in found if item.kind]


def _ours(text: str, made: Collection[str]) -> list[Found]:
    return [Found("", *match.span()) for match in PLACEHOLDER.finditer(text) if match[0] in made]


def _without_lookalikes(text: str, made: Collection[str]) -> str:
    """Round brackets, position by position, where a placeholder seems to stand that is none of ours."""
    chars = list(text)
    for match in PLACEHOLDER.finditer(fold_forms(text)):
        if text[match.start() : match.end()] not in made:
            chars[match.start()], chars[match.end() - 1] = "(", ")"
    return "".join(chars)


def _merged(found: Iterable[Found]) -> list[Found]:
    """The first of those that overlap, in the order given; sorted by place."""
    kept: list[Found] = []
    starts: list[int] = []
    for item in found:
        at = bisect_left(starts, item.start)
        free_before = at == 0 or kept[at - 1].end <= item.start
        free_after = at == len(kept) or kept[at].start >= item.end
        if item.end > item.start and free_before and free_after:
            starts.insert(at, item.start)
            kept.insert(at, item)
    return kept


def _index(values: Values, plain: Callable[[str], str]) -> ValueIndex:
    """Return an index of all values, for finding them also where no pattern recognised them."""
    index = ValueIndex()
    for key in sorted(values.written, key=lambda key: -len(key)):
        index.add(key, plain(values.written[key]), values.kinds[key], loose=key in values.named)
    return index


def leaks(values: Values, text: str) -> list[str]:
    """The values that stand in `text`, as they were written in the conversation."""
    plain = fold_all(text)
    dense, pieces, digits = squeeze(plain), LetterRun(plain), _digits(plain)
    there = {key for keys, _, _ in _index(values, fold_all).matches(plain) for key in keys}
    found = []
    for key, written in values.written.items():
        kind, own = values.kinds[key], squeeze(fold_all(written))
        if kind in _WORDS:
            seen = pieces.contains(telling_parts(fold_all(written), kind))
        else:
            seen = len(own) >= (2 if _HAN.search(own) else _FEW) and own in dense
        if key in there or seen or _same_number(own, kind, digits):
            found.append(written)
    return found


def _digits(plain: str) -> str:
    """The numbers of a text, each without what divides it."""
    together = re.sub(r"(?<=\d)[\s().\-–/]+(?=\d)", "", plain)
    return "".join(c if c.isdigit() else " " for c in together)


def _same_number(own: str, kind: str, digits: str) -> bool:
    """Whether a value's digits stand there: all, or the last ones, as a telephone number is said without its
    country and a card by its last four (unless they may be a year)."""
    number = "".join(c for c in own if c.isdigit())
    if len(number) < _FEW:
        return False
    last = number[-4:]
    by_last = (
        kind in ("card", "account", "iban") and len(number) >= _CARD and not last.startswith(("19", "20"))
    )
    return number[-_TELLING:] in digits or (by_last and last in digits.split())
