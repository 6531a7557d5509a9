"""EQ-Bench v2: 171 short dialogues with four emotions to rate after each, without a judge.

It measures something else than EQ-Bench 3, which is what papers call EQ-Bench today, so it is labelled v2
everywhere. Ratings are compared with a reference by an S-shaped distance. Answers that cannot be parsed are
asked for again at rising temperature and left out after five attempts; if too many are left out, the run has
no score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mapo.errors import RecordError
from mapo.evals.eqbench.data import EqBenchQuestion
from mapo.evals.eqbench.parse import MAX_MARK
from mapo.evals.items import REMOVE_LINE, ItemLine, conversation, seed_of
from mapo.evals.summary import Scored
from mapo.models.chat import ChatFactory, Request
from mapo.store import RunDir
from mapo.types import Message

NAME = "EQ-Bench v2"
MAX_TOKENS, TRIES = 60, 5
FIRST_TEMPERATURE, TEMPERATURE_STEP = 0.01, 0.15
MIN_READABLE = 0.8333
"""Share of answers that must be parsed for a valid score."""

_ANSWER = re.compile(r"(\w+)(?::\s+(\d+))?")
"""The pattern of the reference implementation with an optional rating: words without one match too, since
a search inside them takes a time that is quadratic in their length."""
_REVISION = re.compile(r" Then critique .*? revised scores\.")
_FIRST, _FROM, _TO = "First pass scores:\n", "Critique: <your critique here>", "[End of answer]"


def prompt_of(question: EqBenchQuestion) -> str:
    """Return the prompt of v2: the question without its request for a critique and revised scores."""
    text = _REVISION.sub("", question.prompt).replace(_FIRST, "")
    before, after = text[: text.find(_FROM)], text[text.find(_TO) :]
    return f"{before}\n{after}\nYour answer:\n"


# ---- one answer


def ratings(raw: str) -> dict[str, float]:
    """Return the rating of every word that has one; the last rating of a word counts."""
    return {word: float(number) for word, number in _ANSWER.findall(raw) if number}


def score_v2(reference_answer_fullscale: Mapping[str, Any], raw: str) -> float | None:
    """Return the score of an answer; None unless exactly the four emotions of the reference are
    rated, with numbers that can be added up.

    The ratings of the reference score 10, random ratings about 0.

    s(d) = 0 at 0, 6.5 / (1 + exp(-1.2 (d - 4))) up to 5, d above; 10 - 0.7477 sum s(|rated - reference|).
    """
    reference = reference_answer_fullscale
    rated = ratings(raw)
    expected = {reference[f"emotion{i}"]: float(reference[f"emotion{i}_score"]) for i in range(1, 5)}
    if rated.keys() != expected.keys() or max(rated.values()) > MAX_MARK:
        return None
    return 10 - 0.7477 * sum(_scaled(abs(number - expected[word])) for word, number in rated.items())


def _scaled(d: float) -> float:
    if d == 0:
        return 0.0
    return 6.5 * (1 / (1 + math.e ** (-1.2 * (d - 4)))) if d <= 5 else d


def accepted(reference: Mapping[str, Any], raw: str) -> bool:
    """Return whether an answer can be scored and has a rating other than 0."""
    return score_v2(reference, raw) is not None and any(ratings(raw).values())


# ---- one question


async def solve(
    question: EqBenchQuestion, _attempt: int, *, policy: ChatFactory, max_tokens: int = MAX_TOKENS
) -> dict[str, Any]:
    """Ask one question until an answer is accepted, at most `TRIES` times, as an item of a run
    (`evals/items.py`)."""
    answers: list[str] = []
    for attempt in range(TRIES):
        request = Request(
            (Message("user", prompt_of(question)),),
            temperature=round(FIRST_TEMPERATURE + TEMPERATURE_STEP * attempt, 2),
            max_tokens=max_tokens,
            session=question.id,
            nonce=question.id,
            seed=seed_of("eqbench_v2", question.id, attempt),
        )
        with conversation(policy, f"{question.id}/{attempt}") as chat:
            answers.append((await chat.reply(request)).text)
        if accepted(question.reference, answers[-1]):
            break
    return {"answers": answers}


# ---- scores


def mean_score(scores: Sequence[float]) -> float:
    """Return the benchmark's score (0 to 100) from the scores of the parsed answers (0 to 10 each); 0 without
    any."""
    return 100 * (sum(scores) / len(scores) / 10) if scores else 0.0


def headline(scores: Sequence[float]) -> float:
    """Return the score as the benchmark reports it."""
    return round(mean_score(scores), 2)


def valid(readable: float, of: int) -> bool:
    """Return whether enough answers could be parsed for a valid score."""
    return readable / of >= MIN_READABLE


def scored(lines: Mapping[str, ItemLine], questions: Sequence[EqBenchQuestion]) -> list[Scored]:
    """Return the scores of finished questions on 0 to 100; a question without an accepted answer has none."""
    items = []
    for question in questions:
        if question.id in lines:
            last = _last_answer(lines[question.id])
            score = score_v2(question.reference, last) if accepted(question.reference, last) else None
            items.append(Scored(question.id, {} if score is None else {NAME: 10 * score}))
    return items


def _last_answer(line: ItemLine) -> str:
    answers = line.get("answers")
    if not isinstance(answers, list) or not answers or not isinstance(answers[-1], str):
        raise RecordError(
            "the item has no answers", where=f"{RunDir.items.name}, item {line['id']}", fix=REMOVE_LINE
        )
    return answers[-1]


def constant(questions: Sequence[EqBenchQuestion], number: int) -> float:
    """Return the score of a model that always gives the same rating, for comparison."""
    answers = ("\n".join(f"{q.reference[f'emotion{i}']}: {number}" for i in range(1, 5)) for q in questions)
    scores = [score_v2(q.reference, answer) for q, answer in zip(questions, answers, strict=True)]
    return mean_score([score for score in scores if score is not None])
