"""The advantage (credit) of every turn of a batch, and the numbers it was computed from.

Records hold rewards, not advantages. Advantages depend on the whole batch and the run's settings, and are
computed here with the function that the trainer uses.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mapo.config import Advantage
from mapo.errors import MapoError
from mapo.estimators.methods import ESTIMATORS
from mapo.measure.rubric import Rubric
from mapo.runs.contents import credit, dialogue_credit, needs_of, plausible_rewards
from mapo.runs.explanation import Continued, CreditedBatch, TurnCredit
from mapo.types import Dialogue

LOADED = 64_000_000
"""Bytes of dialogues that are read for a method that needs more than rewards."""

Load = Callable[[sqlite3.Row], Dialogue]


@dataclass(frozen=True, slots=True)
class Credit:
    """The credit of a batch by the number of the dialogue; `problem` says why there is none."""

    settings: Advantage | None
    turns: dict[int, list[TurnCredit]]
    problem: str = ""
    continued: dict[int, Continued] | None = None

    def largest_of(self, numbers: Iterable[int]) -> float:
        """Return the largest part in these dialogues, the scale of the bars."""
        turns = [turn for n in numbers for turn in self.turns.get(n, ())]
        values = (x for t in turns for x in (t.turn, t.batch, t.mixed, *(part.value for part in t.parts)))
        return max(map(abs, values), default=0.0)

    def continuation_of(self, number: int) -> Continued | None:
        """Return how a dialogue is continued; None if it is not."""
        return (self.continued or {}).get(number)

    @property
    def compares(self) -> str:
        """What the method compares, as a formula."""
        known = ESTIMATORS.get(self.settings.method) if self.settings else None
        return known.formula if known else ""


def credit_of(
    rows: Sequence[sqlite3.Row],
    settings: Advantage | None,
    problem: str = "",
    *,
    load: Load | None = None,
    rubric: Rubric | None = None,
    shown: sqlite3.Row | None = None,
) -> Credit:
    """Return the credit of a batch without broken dialogues. Without settings there is none but `problem`.

    Methods that need more than rewards `load` the dialogues of the batch and need their `rubric`. For one
    dialogue that is `shown`, only its group is returned, and only it is explained.
    """
    if settings is None:
        return Credit(None, {}, problem)
    usable = [row for row in rows if not row["error"]]
    dialogues: list[Dialogue] = []
    if needs_of(settings) is None or load is None:
        rewards = [json.loads(row["rewards"]) for row in usable]
        computed = credit(rewards, [row["grp"] for row in usable], settings)
    elif sum(row["size"] for row in usable) > LOADED:
        computed = f"the method '{settings.method}' needs all dialogues of the step, which are too large"
    else:
        try:
            dialogues = [replace(load(row), group=row["grp"]) for row in usable]
        except MapoError as error:
            return Credit(settings, {}, str(error))
        rewards = [plausible_rewards(d) for d in dialogues]
        computed = dialogue_credit(dialogues, settings, rubric)
    if isinstance(computed, str):
        return Credit(settings, {}, computed)
    batch = CreditedBatch(rewards, [row["grp"] for row in usable], computed, settings, dialogues, rubric)
    wanted = [(i, row) for i, row in enumerate(usable) if shown is None or row["grp"] == shown["grp"]]
    return Credit(
        settings,
        {row["n"]: batch.turns(i, explained=shown is None or row["n"] == shown["n"]) for i, row in wanted},
        continued={row["n"]: more for i, row in wanted if (more := batch.continued(i))},
    )
