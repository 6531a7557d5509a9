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
from mapo.evals.items import REMOVE_LINE, ItemLine, conversation, seed_of
from mapo.evals.summary import Scored
from mapo.models.chat import ChatFactory, Request
from mapo.store import RunDir
from mapo.types import Message

NAME = "EQ-Bench v2"
MAX_TOKENS, TRIES = 60, 5
COLDEST, HOTTER = 0.01, 0.15
LEAST_READABLE = 0.8333

_ANSWER = re.compile(r"(\w+):\s+(\d+)")
_SECOND_THOUGHT = re.compile(r" Then critique .*? revised scores\.")
_FIRST, _FROM, _TO = "First pass scores:\n", "Critique: <your critique here>", "[End of answer]"


def prompt_of(question: EqBenchQuestion) -> str:
    """The question without its request for a critique and revised scores, as v2 is asked."""
    text = _SECOND_THOUGHT.sub("", question.prompt).replace(_FIRST, "")
    before, after = text[: text.find(_FROM)], text[text.find(_TO) :]
    return f"{before}\n{after}\nYour answer:\n"


# ---- one answer


def ratings(raw: str) -> dict[str, float]:
    """Every word with a number behind it; what is said last about a word counts."""
    return {word: float(number) for word, number in _ANSWER.findall(raw)}


def score_v2(reference_answer_fullscale: Mapping[str, Any], raw: str) -> float | None:
    """10 for the reference's own ratings, about 0 for random ones; None unless exactly its four are rated.

    s(d) = 0 at 0, 6.5 / (1 + exp(-1.2 (d - 4))) up to 5, d above; 10 - 0.7477 sum s(|rated - reference|).
    """
    reference = reference_answer_fullscale
    rated = ratings(raw)
    truth = {reference[f"emotion{i}"]: float(reference[f"emotion{i}_score"]) for i in range(1, 5)}
    if rated.keys() != truth.keys():
        return None
    score = 10 - 0.7477 * sum(_scaled(abs(number - truth[word])) for word, number in rated.items())
    return score if math.isfinite(score) else None


def _scaled(d: float) -> float:
    if d == 0:
        return 0.0
    return 6.5 * (1 / (1 + math.e ** (-1.2 * (d - 4)))) if d <= 5 else d


def counts(reference: Mapping[str, Any], raw: str) -> bool:
    """Whether an answer is accepted: it can be scored, and not everything in it is rated 0."""
    return score_v2(reference, raw) is not None and any(ratings(raw).values())


# ---- one question


async def solve(
    question: EqBenchQuestion, _attempt: int, *, policy: ChatFactory, max_tokens: int = MAX_TOKENS
) -> dict[str, Any]:
    """The answers to one question, asked until one counts, at most five times: an item of a run."""
    answers: list[str] = []
    for tried in range(TRIES):
        request = Request(
            (Message("user", prompt_of(question)),),
            temperature=round(COLDEST + HOTTER * tried, 2),
            max_tokens=max_tokens,
            session=question.id,
            nonce=question.id,
            seed=seed_of("eqbench_v2", question.id, tried),
        )
        with conversation(policy, f"{question.id}/{tried}") as chat:
            answers.append((await chat.reply(request)).text)
        if counts(question.reference, answers[-1]):
            break
    return {"answers": answers}


# ---- all of them


def mean_score(scores: Sequence[float]) -> float:
    """Return the benchmark's score, 0..100, from the item scores that could be parsed (0..10 each); 0 of
    none."""
    return 100 * (sum(scores) / len(scores) / 10) if scores else 0.0


def headline(scores: Sequence[float]) -> float:
    """Return the score as the benchmark reports it."""
    return round(mean_score(scores), 2)


def valid(readable: float, of: int) -> bool:
    return readable / of >= LEAST_READABLE


def scored(lines: Mapping[str, ItemLine], questions: Sequence[EqBenchQuestion]) -> list[Scored]:
    """The finished questions on 0..100; one that no answer to could be read has no score."""
    found = []
    for question in questions:
        if question.id in lines:
            last = _last(lines[question.id])
            score = score_v2(question.reference, last) if counts(question.reference, last) else None
            found.append(Scored(question.id, {} if score is None else {NAME: 10 * score}))
    return found


def _last(line: ItemLine) -> str:
    answers = line.get("answers")
    if not isinstance(answers, list) or not answers or not isinstance(answers[-1], str):
        raise RecordError(
            "holds no answers", where=f"{RunDir.items.name}, item {line['id']}", fix=REMOVE_LINE
        )
    return answers[-1]


def constant(questions: Sequence[EqBenchQuestion], number: int) -> float:
    """What a model would get that rates everything the same: the floor a score must be seen against."""
    answers = ("\n".join(f"{q.reference[f'emotion{i}']}: {number}" for i in range(1, 5)) for q in questions)
    scores = [score_v2(q.reference, answer) for q, answer in zip(questions, answers, strict=True)]
    return mean_score([score for score in scores if score is not None])
