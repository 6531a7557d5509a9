"""Which numbers of simulated people are out of their usual range, each said in a sentence with its bound.

The bounds lie well above what was measured on the scripted worlds and on published dialogues whose people
were played by a strong model (`benchmarks/health.py`; the table is in docs/sandbox.md, "Simulator health").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mapo.types import StopReason

REPEATED = 0.05
REPEATED_SCRIPTED = 0.60
"""Plain code has a dozen lines to hold back with: of a policy that meets nothing, up to 55 % come again."""
ONE_ENDING = 0.95
FEW = 20
"""Lines, or dialogues for endings, below which a share says nothing."""
BOUNDS = {
    "repeated": ("sentences repeated", REPEATED, "the people say the same again and again"),
    "shared": ("words shared across scenarios", 0.05, "people of different scenarios talk alike"),
    "as_assistant": ("lines as an assistant", 0.02, "the people offer help themselves"),
    "other_language": ("lines in another language", 0.02, "the people leave their language"),
    "told_early": ("lines ahead of the story", 0.05, "the story comes out before its stage"),
    "off_persona": ("lines against the persona", 0.02, "the people forget who they are"),
    "warm_after_miss": (
        "warm after a reply that met nothing or harmed",
        0.15,
        "the people thank and agree whatever was said",
    ),
    "unscored": ("turns unscored", 0.05, "the judge fails often"),
    "incomplete": ("panels without a member", 0.05, "members of the panel fail often"),
}
"""Of each number of a Health: its name, the most it usually is, and what it means to be above that."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One number as a table shows it; `warning` is empty where it is as usual."""

    name: str
    value: float | None
    bound: float
    warning: str = ""


def findings(told: Mapping[str, Any]) -> list[Finding]:
    """The table of a Health as JSON, also of one that was read from a file: what is no number is None."""
    found = []
    for key, (name, usual, words) in BOUNDS.items():
        bound = REPEATED_SCRIPTED if key == "repeated" and told.get("scripted") is True else usual
        count = _number(told.get("misses" if key == "warm_after_miss" else "lines")) or 0.0
        value, good = _number(told.get(key)), _number(told.get("warm_after_good"))
        if key == "warm_after_miss" and good is not None:
            words = f"{words} ({good:.0%} after a good reply)"
        over = value is not None and value > bound and count >= FEW
        found.append(Finding(name, value, bound, f"{words}: {_over(value, bound)}" if over else ""))
    return [*found, _ending(_counts(told.get("endings")))]


def warnings(told: Mapping[str, Any]) -> list[str]:
    return [finding.warning for finding in findings(told) if finding.warning]


def _ending(endings: Mapping[str, float]) -> Finding:
    most, n = max(endings.items(), key=lambda e: e[1], default=("", 0.0))
    total = sum(endings.values())
    share = n / total if total else None
    name = f"dialogues that end alike{f' ({most})' if most else ''}"
    if share is None or share <= ONE_ENDING or total < FEW:
        return Finding(name, share, ONE_ENDING)
    words = f"nearly all dialogues end alike ({most}), so their endings tell nothing apart"
    return Finding(name, share, ONE_ENDING, f"{words}: {_over(share, ONE_ENDING)}")


def _over(value: float | None, bound: float) -> str:
    return f"{value:.0%}, usually at most {bound:.0%}"


def _number(value: object) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value < 1e12 else None  # type: ignore[operator, arg-type]


def _counts(value: object) -> dict[str, float]:
    known = {reason.value for reason in StopReason if reason is not StopReason.BROKEN} | {"unfinished"}
    told = value if isinstance(value, dict) else {}
    return {k: n for k, v in told.items() if k in known and (n := _number(v))}
