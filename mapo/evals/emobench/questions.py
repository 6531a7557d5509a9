"""EmoBench: requests and parsing. Does a model understand what people feel and why (EU), and what helps (EA)?

Replies are parsed like the reference implementation of 2025 does: the first ```json block, or else the whole
text, must be a JSON object with exactly the correct letters (`parse_answer`). An empty reply or one in
another format is a wrong answer; a failed call is missing data and makes the run incomplete. `lenient.py`
parses the same replies leniently, and `score.py` computes scores from both.

There are two extensions, off by default: choices in a seeded random order, and the majority of several
replies, each with its own order. Letters are mapped back to the original order before they are counted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from mapo.evals.emobench.data import LANGUAGES, LETTERS, EmoBench, EmoBenchQuestion
from mapo.evals.emobench.lenient import lenient_choices
from mapo.evals.items import Solve, conversation, seed_of
from mapo.models.chat import ChatFactory, Request
from mapo.types import Message

KEYS = {"EA": ("answer",), "EU": ("answer_q1", "answer_q2")}
_FENCED = re.compile(r"```json(.*?)```", re.DOTALL)
Answers = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class EmoBenchSettings:
    """How questions are asked. The defaults are those of the reference implementation with its base
    prompt."""

    languages: tuple[str, ...] = LANGUAGES
    reasoning: bool = False
    no_think: bool = False
    shuffle: bool = False
    votes: int = 1
    seed: int = 0
    temperature: float = 0.6
    max_tokens: int = 2048


# ---- requests


def manifest(bench: EmoBench, settings: EmoBenchSettings, model: str) -> dict[str, Any]:
    """Return the settings that identify a run; a resume must agree in all of them."""
    values = {**asdict(settings), "languages": list(settings.languages)}
    return {"schema": "mapo.emobench/1", "model": model, **values, "data": bench.hashes}


def solver(bench: EmoBench, settings: EmoBenchSettings, open_chat: ChatFactory) -> Solve[EmoBenchQuestion]:
    """Return the `solve` function: it requests `votes` replies per question and returns them unparsed."""

    async def solve(question: EmoBenchQuestion, attempt: int) -> dict[str, Any]:
        del attempt  # failed calls are not cached, and successful ones must not be repeated
        system = bench.system(
            question.task, question.language, reasoning=settings.reasoning, no_think=settings.no_think
        )
        replies = []
        for vote in range(settings.votes):
            prompt = bench.user(question, orders(question, settings, vote))
            request = Request(
                messages=(Message("system", system), Message("user", prompt)),
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                session=f"{question.id}/{vote}",
                nonce=f"emobench/{settings.seed}/{vote}",
                seed=seed_of(settings.seed, question.id, vote),
            )
            with conversation(open_chat, request.session) as chat:
                reply = (await chat.reply(request)).reply
            replies.append({"text": reply.text, "finish": reply.finish})
        return {"replies": replies}

    return solve


def orders(question: EmoBenchQuestion, settings: EmoBenchSettings, vote: int) -> list[list[int]]:
    """Return, for each part of the question, the indices of its choices in the order shown."""
    shown = []
    for number, part in enumerate(question.parts):
        order = list(range(len(part.choices)))
        if settings.shuffle:
            name = f"{settings.seed}/{question.id}/{vote}/{number}"
            order.sort(key=lambda i, name=name: hashlib.sha256(f"{name}/{i}".encode()).digest())  # type: ignore[misc]
        shown.append(order)
    return shown


# ---- parsing


def parse_answer(task: str, raw: str | None) -> dict[str, Any]:
    """Return the JSON object of a reply as the reference implementation parses it, or blank values without
    one.

    JSON that is not an object ("B", ["B"]) crashes the reference implementation; here it counts as wrong
    format.
    """
    blank: dict[str, Any] = dict.fromkeys(KEYS[task], "")
    if raw is None:
        return blank
    if "```json" in raw:
        block = _FENCED.search(raw)
        if block is None:
            return blank
        raw = block[1]
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        return blank
    return answer if isinstance(answer, dict) else blank


def majority(votes: Iterable[str | None]) -> str | None:
    """Return the most frequent answer, the earlier one of equals; None if there is no answer."""
    counted = Counter(vote for vote in votes if vote is not None)
    return counted.most_common(1)[0][0] if counted else None


class ParsedReplies(NamedTuple):
    """The majority answers to one question, as letters of the choices in their original order. `parsed` and
    `parsed_lenient` count the replies that name an offered letter for every part."""

    strict: Answers
    lenient: Answers
    parsed: int
    parsed_lenient: int


def parse_replies(
    question: EmoBenchQuestion, texts: Sequence[str], settings: EmoBenchSettings
) -> ParsedReplies:
    """Parse the replies to a question, strictly and leniently."""
    strict_votes, lenient_votes = [], []
    for vote, text in enumerate(texts):
        shown = orders(question, settings, vote)
        answer = parse_answer(question.task, text)
        letters = [answer.get(key) for key in KEYS[question.task]]
        strict = [_position(letter, len(order)) for letter, order in zip(letters, shown, strict=True)]
        choices = [[p.choices[i] for i in order] for p, order in zip(question.parts, shown, strict=True)]
        guessed = lenient_choices(question.task, text, choices, question.language)
        combined = [g if s is None else s for s, g in zip(strict, guessed, strict=True)]
        strict_votes.append(_original(strict, shown))
        lenient_votes.append(_original(combined, shown))
    return ParsedReplies(
        tuple(majority(votes) for votes in zip(*strict_votes, strict=True)),
        tuple(majority(votes) for votes in zip(*lenient_votes, strict=True)),
        sum(None not in vote for vote in strict_votes),
        sum(None not in vote for vote in lenient_votes),
    )


def _position(letter: object, choices: int) -> int | None:
    return LETTERS.index(letter) if isinstance(letter, str) and letter in tuple(LETTERS[:choices]) else None


def _original(positions: Sequence[int | None], shown: Sequence[Sequence[int]]) -> list[str | None]:
    return [None if at is None else LETTERS[order[at]] for at, order in zip(positions, shown, strict=True)]
