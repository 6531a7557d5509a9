"""Who judged a set of dialogues, and on which scenarios: what a score must be read with."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from mapo.scoring.context import UNKNOWN, ScoreContext, scenario_set
from mapo.scripted.world import World

PLAYERS = (
    "SELECT domain, user_player, director, judge, prompts, scenario FROM dialogues"
    " WHERE run = ? AND part = ? AND counts AND NOT error GROUP BY 1, 2, 3, 4, 5, 6 LIMIT 20000"
)
"""The roles and scenarios of one set."""
_COLUMNS = ("user_player", "director", "judge")
_KEYS = ("domain", "judge", "scenarios", "notice", "prompts", "prompts_note", "reference", "world", "roles")


def world_in(context: dict[str, Any] | None) -> World | None:
    """Return the test world of a context."""
    return World(context["domain"], context["judge"]) if context and context["world"] else None


def context_of(rows: Sequence[sqlite3.Row]) -> dict[str, Any]:
    """Return the context of the dialogues in `rows`, as plain data for pages.

    `world` says whether it is a test world (`world_in`), and `reference` names its reference scores.
    """
    if not rows:
        return dict.fromkeys(_KEYS, "")
    domain = rows[0]["domain"]
    user, director, judge = (
        " or ".join(dict.fromkeys(row[column] or UNKNOWN for row in rows))[:300] for column in _COLUMNS
    )
    cases = scenario_set(domain, {row["scenario"] for row in rows})
    prompts = " or ".join(dict.fromkeys(row["prompts"] for row in rows))[:300]
    context = ScoreContext(domain, user, director, judge, cases, prompts)
    return {
        "domain": domain,
        "judge": judge,
        "scenarios": cases,
        "notice": context.notice,
        "prompts": prompts,
        "prompts_note": context.prompts_note,
        "reference": context.reference,
        "world": context.world is not None,
        "roles": context.roles,
    }
