"""Warnings about simulated users whose numbers are outside the usual range.

The bounds lie well above what was measured in the scripted worlds and in published dialogues whose users were
played by a strong model (`benchmarks/health.py`; the table is in docs/sandbox.md, "Simulator health").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mapo.types import StopReason, ending_label

REPEATED = 0.05
REPEATED_SCRIPTED = 0.60
"""Scripted users have about a dozen guarded lines: with an unhelpful policy, up to 55 % are repeated."""
ONE_ENDING = 0.95
FEW = 20
"""Fewest lines (dialogues, for endings) from which a share is reported."""
BOUNDS = {
    "repeated": ("sentences repeated", REPEATED, "users repeat themselves"),
    "shared": ("words shared across scenarios", 0.05, "users of different scenarios use the same phrases"),
    "as_assistant": ("lines that sound like an assistant", 0.02, "users speak like an assistant"),
    "other_language": ("lines in another language", 0.02, "users change the language"),
    "told_early": ("lines that reveal a stage early", 0.05, "users reveal a stage early"),
    "off_persona": ("lines that contradict the persona", 0.02, "users contradict their persona"),
    "warm_after_miss": (
        "user warms up after an unhelpful or harmful reply",
        0.15,
        "users thank and agree regardless of the reply",
    ),
    "unscored": ("unscored turns", 0.05, "the judge fails often"),
    "incomplete": ("incomplete panel judgements", 0.05, "members of the panel fail often"),
}
"""For each number of `Health`: its label, its usual maximum, and the warning above that."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One number with its usual maximum; `warning` is empty if it is within the usual range.

    The value is None if there was nothing to count, or less than `FEW`.
    """

    name: str
    value: float | None
    bound: float
    warning: str = ""


def findings(numbers: Mapping[str, Any]) -> list[Finding]:
    """Return one finding per number of a `Health` as JSON, perhaps from a file: invalid values are None."""
    result = []
    for key, (name, usual, words) in BOUNDS.items():
        bound = REPEATED_SCRIPTED if key == "repeated" and numbers.get("scripted") is True else usual
        count = _number(numbers.get("misses" if key == "warm_after_miss" else "lines")) or 0.0
        value = _number(numbers.get(key)) if count >= FEW else None
        good = _number(numbers.get("warm_after_good"))
        if key == "warm_after_miss" and good is not None:
            words = f"{words} ({good:.0%} after a good reply)"
        warning = f"{words}: {_over(value, bound)}" if value is not None and value > bound else ""
        result.append(Finding(name, value, bound, warning))
    return [*result, _ending(_counts(numbers.get("endings")))]


def warnings(numbers: Mapping[str, Any]) -> list[str]:
    """Return the warnings of all findings."""
    return [finding.warning for finding in findings(numbers) if finding.warning]


def _ending(endings: Mapping[str, float]) -> Finding:
    name, total = "dialogues with the most frequent ending", sum(endings.values())
    if total < FEW:
        return Finding(name, None, ONE_ENDING)
    ending, n = max(endings.items(), key=lambda e: e[1])
    share, most = n / total, ending_label(ending)
    name = f"{name} ({most})"
    if share <= ONE_ENDING:
        return Finding(name, share, ONE_ENDING)
    words = f"nearly all dialogues have the same ending ({most}), so endings carry no information"
    return Finding(name, share, ONE_ENDING, f"{words}: {_over(share, ONE_ENDING)}")


def _over(value: float, bound: float) -> str:
    """Return both as percentages, the value with as many digits as it takes to tell it from the bound."""
    digits = next((d for d in range(3) if f"{value:.{d}%}" != f"{bound:.{d}%}"), 3)
    return f"{value:.{digits}%}, usual maximum {bound:.0%}"


def _number(value: object) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value < 1e12 else None  # type: ignore[operator, arg-type]


def _counts(value: object) -> dict[str, float]:
    known = {reason.value for reason in StopReason if reason is not StopReason.BROKEN} | {"unfinished"}
    counts = value if isinstance(value, dict) else {}
    return {k: n for k, v in counts.items() if k in known and (n := _number(v))}
