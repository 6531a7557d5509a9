"""Who judged a set of dialogues, and on which scenarios: what a score must be read with."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from mapo.scoring.context import UNKNOWN, ScoreContext, scenario_set

PLAYERS = (
    "SELECT domain, user_player, director, judge, prompts, scenario FROM dialogues"
    " WHERE run = ? AND part = ? AND counts AND NOT error GROUP BY 1, 2, 3, 4, 5, 6 LIMIT 20000"
)
"""The roles and scenarios of one set."""
_COLUMNS = ("user_player", "director", "judge")
_KEYS = ("domain", "judge", "scenarios", "notice", "prompts", "prompts_note", "reference", "world", "roles")


def context_of(rows: Sequence[sqlite3.Row]) -> dict[str, Any]:
    """Return the context of the dialogues in `rows`, as plain data for pages.

    `world` is the domain if all roles are scripted, and then `reference` names its reference scores.
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
        "world": domain if context.reference else "",
        "roles": context.roles,
    }
