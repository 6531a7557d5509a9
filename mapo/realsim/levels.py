"""Start levels: the judge's start form, filled in several times, and how far the forms agree.

The level of an indicator is the median of its forms, the lower one of two. Agreement is reported twice: as
the share of forms that gave exactly that level, and over all scenarios as Krippendorff's alpha for intervals,

    alpha = 1 - Do / De,    Do: mean squared difference of two forms of one scenario,
                            De: the same of any two values of the indicator,

which is 1 for perfect agreement and 0 for none beyond chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median_low

from mapo.errors import AnswerError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat, Sampling
from mapo.sandbox.judge import ModelJudge
from mapo.scenarios.scenario import Scenario

FORMS = 3
TEMPERATURE = 1.0
"""At 0 the forms would be one form, copied."""


@dataclass(frozen=True, slots=True)
class Start:
    """`given` holds every form's level of each indicator, `missing` how many forms were never filled in."""

    levels: dict[str, int]
    given: dict[str, list[int]]
    missing: int = 0

    @property
    def agreement(self) -> dict[str, float]:
        """Of each indicator, the share of forms that gave the level taken."""
        return {
            key: self.given[key].count(level) / len(self.given[key]) for key, level in self.levels.items()
        }


async def fill_start(
    chat: Chat,
    scenario: Scenario,
    rubric: Rubric,
    *,
    forms: int,
    temperature: float,
    anew: dict[str, int] | None = None,
) -> Start:
    """AnswerError where fewer than half of the forms could be had. `anew` says how often each was asked for
    in vain before; those that are lacking now are counted in it."""
    way = Sampling(temperature=temperature)
    anew = {} if anew is None else anew

    async def one(number: int) -> dict[str, int] | None:
        attempt = number + forms * anew.get(_form(number), 0)
        judge = ModelJudge(chat, scenario, rubric, attempt=attempt, sampling=way)
        try:
            return {key: mark.level for key, mark in (await judge.start()).items()}
        except AnswerError:
            return None

    asked = await asyncio.gather(*(one(number) for number in range(1, forms + 1)))
    filled = [levels for levels in asked if levels is not None]
    if 2 * len(filled) <= forms:
        for number, levels in enumerate(asked, 1):
            if levels is None:
                anew[_form(number)] = anew.get(_form(number), 0) + 1
        raise AnswerError(
            f"{forms - len(filled)} of {forms} start forms were not filled in",
            where=chat.name,
            fix="Use a judge that can fill in forms",
        )
    given = {item.key: [levels[item.key] for levels in filled] for item in rubric.indicators}
    middle = {key: median_low(values) for key, values in given.items()}
    return Start(middle, given, forms - len(filled))


def _form(number: int) -> str:
    return f"start form {number}"


def alpha(ratings: Sequence[Sequence[int]]) -> float | None:
    """Krippendorff's alpha for intervals; a row is what the forms of one scenario gave. None where fewer than
    two rows have two values, or where all values are the same: there was nothing to tell apart."""
    rows = [row for row in ratings if len(row) > 1]
    pooled = [value for row in rows for value in row]
    if len(rows) < 2:
        return None
    expected = _pairs(pooled) / (len(pooled) - 1)
    observed = sum(_pairs(row) / (len(row) - 1) for row in rows)
    return 1 - observed / expected if expected else None


def _pairs(values: Sequence[int]) -> float:
    """The sum of (a - b)^2 over all ordered pairs: 2 (n * sum of squares - square of the sum)."""
    return 2 * (len(values) * sum(x * x for x in values) - sum(values) ** 2)


def agreement_of(
    starts: Sequence[Mapping[str, Sequence[int]]], rubric: Rubric
) -> dict[str, dict[str, float | None]]:
    """By indicator: mean share of forms at the median, mean range of the forms, alpha."""
    found: dict[str, dict[str, float | None]] = {}
    for item in rubric.indicators:
        rows = [start[item.key] for start in starts]
        found[item.key] = {
            "same": mean(row.count(median_low(row)) / len(row) for row in map(list, rows)) if rows else None,
            "range": mean(max(row) - min(row) for row in rows) if rows else None,
            "alpha": alpha(rows),
        }
    return found
