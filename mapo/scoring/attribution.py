"""Whose fault it was: how often each role was at fault, and which role failed dialogues are attributed to.

A dialogue has failed if it ended without success. It is attributed to the user, the director or the judge if
that role was at fault in at least a fifth of its turns (to the one with the most faults), and to the policy
otherwise. Faults are those recorded with the turns (`Turn.faults`); records of earlier versions have none.
Broken dialogues are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mapo.sandbox.faults.detect import ROLES, role_of
from mapo.types import Dialogue, Ending, StopReason

SIMULATOR = tuple(role for role in ROLES if role != "policy")
OFTEN = 0.2
"""Share of a dialogue's turns from which a role at fault is the cause of its failure."""

Faults = Sequence[Sequence[str]]
"""The faults of each turn of a dialogue."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Faults of a set of dialogues.

    `turns` has the share of turns in which each role was at fault, `kinds` the number of turns with each
    fault. `failed` dialogues are counted by the role they are attributed to in `blamed`.
    """

    turns: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    blamed: dict[str, int] = field(default_factory=dict)

    @property
    def simulator_share(self) -> float | None:
        """The share of failed dialogues that are not attributed to the policy."""
        return sum(self.blamed.get(role, 0) for role in SIMULATOR) / self.failed if self.failed else None

    def as_json(self) -> dict[str, Any]:
        return {"turns": self.turns, "kinds": self.kinds, "failed": self.failed, "blamed": self.blamed}


def attribution(dialogues: Iterable[Dialogue]) -> Attribution:
    """Return the faults of dialogues that did not break."""
    usable = [d for d in dialogues if d.usable and d.turns]
    return attribution_of((d.ending, [turn.faults for turn in d.turns]) for d in usable)


def attribution_of(dialogues: Iterable[tuple[Ending | None, Faults]]) -> Attribution:
    """Return the faults of dialogues, each given by its ending and the faults of its turns."""
    turns, roles, kinds, blamed = 0, Counter[str](), Counter[str](), Counter[str]()
    for ending, faults in dialogues:
        turns += len(faults)
        roles.update(_turns_at_fault(faults))
        kinds.update(fault for turn in faults for fault in dict.fromkeys(turn) if role_of(fault))
        if failed(ending):
            blamed[role_to_blame(faults)] += 1
    return Attribution(
        turns={role: roles[role] / turns for role in ROLES} if turns else {},
        kinds=dict(kinds.most_common()),
        failed=blamed.total(),
        blamed={role: blamed[role] for role in ROLES if blamed[role]},
    )


def failed(ending: Ending | None) -> bool:
    """Return whether a dialogue ended without success."""
    return ending is not None and ending.reason is not StopReason.SUCCESS


def roles_at_fault(faults: Faults) -> list[str]:
    """Return the roles that were at fault in any turn."""
    counts = _turns_at_fault(faults)
    return [role for role in ROLES if counts[role]]


def role_to_blame(faults: Faults) -> str:
    """Return the role that a failed dialogue is attributed to."""
    counts = _turns_at_fault(faults)
    worst = max(SIMULATOR, key=lambda role: counts[role])
    return worst if counts[worst] and counts[worst] >= OFTEN * len(faults) else "policy"


def _turns_at_fault(faults: Faults) -> Counter[str]:
    return Counter(role for turn in faults for role in {role_of(fault) for fault in turn} if role)
