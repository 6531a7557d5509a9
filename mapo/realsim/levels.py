"""Start levels of a scenario: the median of several start forms, and the agreement of the forms.

With an even number of forms the lower median is used. Agreement is reported as the share of forms that gave
exactly the median and, over all scenarios, as Krippendorff's alpha for interval data,

    alpha = 1 - Do / De,    Do: mean squared difference of two forms of one scenario,
                            De: the same for any two values of the indicator,

which is 1 for perfect agreement and 0 for agreement by chance.
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
"""Above 0, because at 0 all forms would be the same."""


@dataclass(frozen=True, slots=True)
class StartForms:
    """Start levels of a scenario. `given` holds the level of each indicator in every form, `missing` the
    number of unusable forms."""

    levels: dict[str, int]
    given: dict[str, list[int]]
    missing: int = 0

    @property
    def agreement(self) -> dict[str, float]:
        """Share of forms that gave the median, by indicator."""
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
    retries: dict[str, int] | None = None,
) -> StartForms:
    """Ask the judge for `forms` start forms and return their medians.

    Raise AnswerError unless more than half of them are usable. `retries` counts, by form, how often it was
    unusable in earlier attempts; forms that are unusable now are added to it.
    """
    sampling = Sampling(temperature=temperature)
    retries = {} if retries is None else retries

    async def fill(number: int) -> dict[str, int] | None:
        attempt = number + forms * retries.get(_form(number), 0)
        judge = ModelJudge(chat, scenario, rubric, attempt=attempt, sampling=sampling)
        try:
            return {key: mark.level for key, mark in (await judge.start()).items()}
        except AnswerError:
            return None

    answers = await asyncio.gather(*(fill(number) for number in range(1, forms + 1)))
    usable = [levels for levels in answers if levels is not None]
    if 2 * len(usable) <= forms:
        for number, levels in enumerate(answers, 1):
            if levels is None:
                retries[_form(number)] = retries.get(_form(number), 0) + 1
        raise AnswerError(
            f"{forms - len(usable)} of {forms} start forms were unusable",
            where=chat.name,
            fix="Use another judge model",
        )
    given = {item.key: [levels[item.key] for levels in usable] for item in rubric.indicators}
    medians = {key: median_low(values) for key, values in given.items()}
    return StartForms(medians, given, forms - len(usable))


def _form(number: int) -> str:
    return f"start form {number}"


def alpha(ratings: Sequence[Sequence[int]]) -> float | None:
    """Return Krippendorff's alpha for interval data; a row holds the levels of one scenario's forms. None if
    fewer than two rows have two values, or if all values are the same."""
    rows = [row for row in ratings if len(row) > 1]
    pooled = [value for row in rows for value in row]
    if len(rows) < 2:
        return None
    expected = _pairs(pooled) / (len(pooled) - 1)
    observed = sum(_pairs(row) / (len(row) - 1) for row in rows)
    return 1 - observed / expected if expected else None


def _pairs(values: Sequence[int]) -> float:
    """Return the sum of (a - b)^2 over all ordered pairs: 2 (n * sum of squares - square of the sum)."""
    return 2 * (len(values) * sum(x * x for x in values) - sum(values) ** 2)


def agreement_of(
    starts: Sequence[Mapping[str, Sequence[int]]], rubric: Rubric
) -> dict[str, dict[str, float | None]]:
    """Return, by indicator, the mean share of forms at the median, the mean range of the forms, and alpha."""
    agreement: dict[str, dict[str, float | None]] = {}
    for item in rubric.indicators:
        rows = [start[item.key] for start in starts]
        agreement[item.key] = {
            "same": mean(row.count(median_low(row)) / len(row) for row in map(list, rows)) if rows else None,
            "range": mean(max(row) - min(row) for row in rows) if rows else None,
            "alpha": alpha(rows),
        }
    return agreement
