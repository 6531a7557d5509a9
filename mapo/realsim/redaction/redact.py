"""Local redaction: replace identifying values by placeholders before any model sees the text.

`redact` replaces what `patterns` and `names` find by placeholders such as `[name 1]` and `[phone 2]`, the
same one for the same value throughout a conversation. Text that already looks like a placeholder gets round
brackets first, so that nothing can hide in one. `leaks` returns the values that occur in a later text,
however they are written: other case, other spacing, full-width forms, without accents, in pieces.
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
from mapo.realsim.redaction.patterns import KINDS, PrivateSpan, find_forms
from mapo.realsim.redaction.value_search import LetterRun, ValueIndex, identifying_parts

_WORDS = ("name", "place", "organisation", "handle", "other")
"""Kinds whose values are words: they only match whole words."""
PLACEHOLDER = re.compile(rf"\[(?:{'|'.join((*KINDS, 'other'))}) \d+\]")
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_MIN_RUN = 5
"""Minimum number of consecutive letters or digits that do not match by chance."""
_LAST_DIGITS = 7
"""Number of last digits that identify a longer number."""
_CARD_DIGITS = 12
"""Minimum number of digits of a number that people refer to by its last four."""
_MAX_NAME_WORDS = 5
"""Maximum number of words of a name whose combinations are stored."""


@dataclass(slots=True)
class PrivateValues:
    """Private values of one conversation: squeezed value -> placeholder, original spelling and kind. Kept in
    memory only."""

    placeholders: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    """Values that were explicitly named, not guessed from a capital letter."""
    made: set[str] = field(default_factory=set)
    """All placeholders in use; nothing else in a text is one."""
    _count: Counter[str] = field(default_factory=Counter)
    _full_names: dict[frozenset[str], str] = field(default_factory=dict)
    _name_parts: dict[frozenset[str], str] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> str:
        """Return the placeholder of a value, creating one if it is new."""
        key = squeeze(text)
        if key not in self.placeholders:
            words = frozenset(fold_all(text).casefold().split()) if kind == "name" else frozenset()
            self.placeholders[key] = self._same_person(words) or self._new(kind)
            self.written[key], self.kinds[key] = text.strip(), kind
            if words:
                self._full_names.setdefault(words, self.placeholders[key])
                for subset in _subsets(words):
                    self._name_parts.setdefault(subset, self.placeholders[key])
        return self.placeholders[key]

    def _new(self, kind: str) -> str:
        self._count[kind] += 1
        placeholder = f"[{kind} {self._count[kind]}]"
        self.made.add(placeholder)
        return placeholder

    def _same_person(self, words: frozenset[str]) -> str:
        """Return the placeholder of a person whose name contains these words or consists of some of them; ""
        if there is none."""
        known = (self._full_names.get(subset, "") for subset in _subsets(words))
        return self._name_parts.get(words, "") or next(filter(None, known), "")


def _subsets(words: frozenset[str]) -> list[frozenset[str]]:
    """Return the words of a name individually and in combination."""
    sizes = range(1, len(words) + 1) if len(words) <= _MAX_NAME_WORDS else (1, len(words))
    return [frozenset(subset) for size in sizes for subset in combinations(sorted(words), size)]


@dataclass(frozen=True, slots=True)
class Redacted:
    """Texts with placeholders, the values they stand for, and the number of matches per kind."""

    texts: tuple[str, ...]
    values: PrivateValues
    counts: Counter[str]


def redact(
    texts: Sequence[str], known: Iterable[tuple[str, str]] = (), values: PrivateValues | None = None
) -> Redacted:
    """Replace private values by placeholders. `known` holds values (kind, text) that were named explicitly:
    speakers, and what a model listed. `values` are those of an earlier pass, whose placeholders stay;
    anything else that looks like a placeholder is treated as text."""
    values = values or PrivateValues()
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
    redacted = []
    for text, found in zip(texts, spans, strict=True):
        again = sorted(index.matches(fold_letters(text)), key=lambda item: item[1] - item[2])
        known_here = [PrivateSpan(values.kinds[keys[0]], start, end) for keys, start, end in again]
        spans_here = [item for item in _merged([*_ours(text, ours), *found, *known_here]) if item.kind]
        counts.update(item.kind for item in spans_here)
        parts, at = [], 0
        for kind, start, end in spans_here:
            parts += [text[at:start], values.add(kind, text[start:end])]
            at = end
        redacted.append("".join([*parts, text[at:]]))
    return Redacted(tuple(redacted), values, counts)


def find(text: str, ours: Collection[str] = ()) -> list[PrivateSpan]:
    """Return everything private in one text, without overlaps; the placeholders `ours` are ignored."""
    plain = fold_forms(text)
    found = _merged([*_ours(text, ours), *find_forms(plain), *find_names(plain)])
    return [item for item in found if item.kind]


def _ours(text: str, made: Collection[str]) -> list[PrivateSpan]:
    return [PrivateSpan("", *match.span()) for match in PLACEHOLDER.finditer(text) if match[0] in made]


def _without_lookalikes(text: str, made: Collection[str]) -> str:
    """Put round brackets around text that looks like a placeholder but is not ours, keeping positions."""
    chars = list(text)
    for match in PLACEHOLDER.finditer(fold_forms(text)):
        if text[match.start() : match.end()] not in made:
            chars[match.start()], chars[match.end() - 1] = "(", ")"
    return "".join(chars)


def _merged(found: Iterable[PrivateSpan]) -> list[PrivateSpan]:
    """Return the spans without overlaps, the earlier in the given order winning; sorted by position."""
    kept: list[PrivateSpan] = []
    starts: list[int] = []
    for item in found:
        at = bisect_left(starts, item.start)
        free_before = at == 0 or kept[at - 1].end <= item.start
        free_after = at == len(kept) or kept[at].start >= item.end
        if item.end > item.start and free_before and free_after:
            starts.insert(at, item.start)
            kept.insert(at, item)
    return kept


def _index(values: PrivateValues, plain: Callable[[str], str]) -> ValueIndex:
    """Return an index of all values, for finding them also where no pattern recognised them."""
    index = ValueIndex()
    for key in sorted(values.written, key=lambda key: -len(key)):
        index.add(key, plain(values.written[key]), values.kinds[key], loose=key in values.named)
    return index


def leaks(values: PrivateValues, text: str) -> list[str]:
    """Return the values that occur in `text`, as they were written in the conversation."""
    plain = fold_all(text)
    dense, pieces, digits = squeeze(plain), LetterRun(plain), _digits(plain)
    indexed = {key for keys, _, _ in _index(values, fold_all).matches(plain) for key in keys}
    found = []
    for key, written in values.written.items():
        kind, own = values.kinds[key], squeeze(fold_all(written))
        identifying = identifying_parts(fold_all(written), kind)
        if not identifying:
            continue
        if kind in _WORDS:
            seen = pieces.contains(identifying)
        else:
            seen = len(own) >= (2 if _HAN.search(own) else _MIN_RUN) and own in dense
        if key in indexed or seen or _same_number(own, kind, digits):
            found.append(written)
    return found


def _digits(plain: str) -> str:
    """Return the numbers of a text, each without separators inside it."""
    together = re.sub(r"(?<=\d)[\s().\-–/]+(?=\d)", "", plain)
    return "".join(c if c.isdigit() else " " for c in together)


def _same_number(own: str, kind: str, digits: str) -> bool:
    """Return whether a value's digits occur: all, or the last ones, because phone numbers are given without
    country code and cards by their last four (unless those may be a year)."""
    number = "".join(c for c in own if c.isdigit())
    if len(number) < _MIN_RUN:
        return False
    last = number[-4:]
    by_last = (
        kind in ("card", "account", "iban")
        and len(number) >= _CARD_DIGITS
        and not last.startswith(("19", "20"))
    )
    return number[-_LAST_DIGITS:] in digits or (by_last and last in digits.split())
