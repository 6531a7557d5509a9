"""Columns of a comparison: scores that mean the same, and their labels.

A label lists everything that distinguishes a column from others of its name. Tables show a letter instead and
explain it in a legend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mapo.domain_folders import DEFAULT
from mapo.evals.compare.entries import Entry, count

Meaning = tuple[str, str, tuple[tuple[str, str], ...]]
"""Benchmark, score and settings, which must agree before two numbers are compared."""


@dataclass(frozen=True, slots=True)
class Column:
    """One score under one set of settings. `label` includes what distinguishes it from others of its name
    (`distinctions`); `cases` is the hash of the chosen cases; `letter` is shared by scores with the same
    settings, and empty if there is only one set."""

    benchmark: str
    name: str
    meaning: Mapping[str, str]
    cases: str
    label: str
    distinctions: tuple[str, ...] = ()
    letter: str = ""

    @property
    def short(self) -> str:
        """The score's name with its letter."""
        return f"{self.name} {self.letter}".strip()

    @property
    def title(self) -> str:
        """The benchmark's name, or the domain's for dialogues outside of the default domain."""
        domain = self.meaning.get("rubric", "").rpartition(" ")[0]
        return self.benchmark if domain in ("", DEFAULT) else domain

    @property
    def group(self) -> str:
        """The title with the letter."""
        return f"{self.title} {self.letter}".strip()


def meaning_of(entry: Entry) -> Meaning:
    """Return the meaning of an entry in a hashable form."""
    return entry.benchmark, entry.name, tuple(sorted(entry.meaning.items()))


def columns_of(by_key: Mapping[tuple[Meaning, str], Sequence[Entry]]) -> list[Column]:
    """Return the columns, each with a unique label."""
    columns = []
    letters: dict[tuple[str, object, str], str] = {}
    for ((benchmark, name, meaning), chosen), entries in by_key.items():
        alike = [dict(m) for (b, n, m), _ in by_key if (b, n) == (benchmark, name)]
        parts = _distinctions(dict(meaning), alike)
        case_sets = [other for (m, other) in by_key if m == (benchmark, name, meaning)]
        if len(case_sets) > 1:
            parts.append(f"{count(entries[0].cases)} cases ({chosen[:6]})")
        letter = ""
        if len(alike) > 1:
            letter = letters.setdefault((benchmark, meaning, chosen), _letter(len(letters)))
        label = ", ".join([name, *parts])
        columns.append(Column(benchmark, name, entries[0].meaning, chosen, label, tuple(parts), letter))
    return columns


def _letter(number: int) -> str:
    repeat, position = divmod(number, 26)
    return f"{chr(ord('A') + position)}{repeat or ''}"


def _distinctions(meaning: Mapping[str, str], alike: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what distinguishes a score from others of its name: "judge X", "profile released"."""
    keys = [key for key in dict.fromkeys(k for m in alike for k in m) if len({m.get(key) for m in alike}) > 1]
    if "judge" in keys:  # name a model that plays all roles once
        single_player = all(
            m.get(role) in (None, m.get("judge")) for m in alike for role in ("user", "director")
        )
        keys = [key for key in keys if not (single_player and key in ("user", "director"))]
        if len({(m.get("judge"), m.get("prompts")) for m in alike}) == len({m.get("judge") for m in alike}):
            keys = [key for key in keys if key != "prompts"]  # the judge tells the columns apart
    keys.sort(key=lambda key: key != "judge")
    return [f"{key} {meaning.get(key, 'not given')}" for key in keys]
