"""What a trained role is fit for: training, screening, evaluation.

The limits are conventions and stand in the report. Training needs steps that follow the recorded ones inside
a dialogue, because advantages compare turns, and no reward for worthless additions. Screening needs the right
order of policies and scenarios. Evaluation needs levels and scores that can stand in for the recorded
judge's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapo.judges.audit.limits import MIN_RANKS, MIN_SCORES

Limits = tuple[tuple[str, str, float], ...]
"""Measure, its name in the report, and the smallest acceptable value."""

JUDGE: dict[str, Limits] = {
    "training": (("correlation", "step correlation", 0.5), ("within", "correlation within dialogues", 0.3)),
    "screening": (
        ("correlation", "step correlation", 0.5),
        ("spearman", "rank correlation of policies", MIN_RANKS),
    ),
    "evaluation": (
        ("kappa", "mean kappa", 0.6),
        ("correlation", "step correlation", MIN_SCORES),
        ("spearman", "rank correlation of policies", MIN_SCORES),
    ),
}
"""Two careful judges reach a kappa of about 0.6."""
_USER: Limits = (
    ("improvement", "reduction of the perplexity", 0.3),
    ("fresh", "sentences that are not repeated, against the recorded user's", 0.95),
    ("in_role", "lines that do not sound like an assistant", 0.98),
)
USER: dict[str, Limits] = {
    "training": _USER,
    "evaluation": (
        *_USER,
        ("same_ending", "dialogues that end as recorded when replayed", 0.8),
        ("ending_gain", "that share above the most common recorded ending", 0.1),
    ),
}
DIRECTOR: dict[str, Limits] = {"training": (("gain", "accuracy above the most common act", 0.05),)}


def verdicts(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return, for every use, whether the role is fit for it and what speaks against it."""
    role = result["role"]
    numbers = _numbers(result)
    uses = {"judge": JUDGE, "user": USER, "director": DIRECTOR}[role]
    decided = {}
    for use, limits in uses.items():
        against = [
            f"{name} {_text(numbers.get(key))}, needs {least:g}"
            for key, name, least in limits
            if numbers.get(key) is None or numbers[key] < least
        ]
        if role == "judge" and use in ("training", "evaluation"):
            against += _exploitable(result.get("probes") or {})
        decided[use] = {"fit": not against, "against": against}
    return decided


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    test = result["tests"]["both"]
    numbers = dict(test)
    if result["role"] == "judge":
        numbers["spearman"] = ranking(result)
    elif result["role"] == "user":
        before, after = result["before"]["both"]["perplexity"], test["perplexity"]
        numbers["improvement"] = 1 - after / before if before and after else None
        numbers |= _replayed(result.get("replay") or {})
    else:
        numbers["gain"] = test["accuracy"] - test["majority"]
    return numbers


def _replayed(replay: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a replay that are compared with limits."""
    recorded, played = replay.get("recorded") or {}, replay.get("played") or {}
    again, before, as_assistant = played.get("repeated"), recorded.get("repeated"), played.get("as_assistant")
    return {
        "fresh": None if again is None or before is None or before >= 1 else (1 - again) / (1 - before),
        "in_role": None if as_assistant is None else 1 - as_assistant,
        "same_ending": replay.get("same_ending"),
        "ending_gain": replay.get("ending_gain"),
    }


def ranking(result: Mapping[str, Any]) -> float | None:
    """Return the rank correlation of policies on unseen scenarios: the lower one of unseen and known
    policies."""
    ranks: list[float | None] = [
        own["policies"]["spearman"]
        for name in ("both", "new_scenario")
        if (own := result["tests"].get(name)) is not None
    ]
    known = [rank for rank in ranks if rank is not None]
    return min(known) if known else None


def _exploitable(probes: Mapping[str, Any]) -> list[str]:
    """Return the probes that the judge rewards."""
    if not probes:
        return ["the probes were not measured"]
    rewarded = [name for name, own in probes["effects"].items() if not own["fine"]]
    lines = [f"it reacts to {', '.join(rewarded)}"] if rewarded else []
    attacks = probes["attacks"]
    return lines + (
        [] if attacks["fine"] else [f"{len(attacks['worked'])} of {attacks['tried']} attacks worked"]
    )
