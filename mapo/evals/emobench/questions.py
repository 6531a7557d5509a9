"""EmoBench: does a model understand what people feel and why (EU), and what helps them (EA)?

A reply counts as the reference of 2025 counts it: the first ```json block, or else the whole text, is a JSON
object, and its letters are exactly right (`parse_answer`). A reply that is empty or in another form is a
wrong answer; a call that failed is missing, and the run incomplete. Beside that reading stands a lenient one
(`lenient.py`). Scores: `score.py`.

Two extensions, off by default: choices in a seeded random order, and the majority of several replies, each
with an order of its own. Letters are mapped back before anything is counted.
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
from mapo.evals.emobench.lenient import lenient
from mapo.evals.items import Solve, conversation, seed_of
from mapo.models.chat import ChatFactory, Request
from mapo.types import Message

KEYS = {"EA": ("answer",), "EU": ("answer_q1", "answer_q2")}
_FENCED = re.compile(r"```json(.*?)```", re.DOTALL)
Answers = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the questions are put. The defaults are the reference's, with its base prompt."""

    languages: tuple[str, ...] = LANGUAGES
    reasoning: bool = False
    no_think: bool = False
    shuffle: bool = False
    votes: int = 1
    seed: int = 0
    temperature: float = 0.6
    max_tokens: int = 2048


# ---- asking


def manifest(bench: EmoBench, settings: Settings, model: str) -> dict[str, Any]:
    """What makes a run the run it is; a resume must agree in all of it."""
    told = {**asdict(settings), "languages": list(settings.languages)}
    return {"schema": "mapo.emobench/1", "model": model, **told, "data": bench.hashes}


def solver(bench: EmoBench, settings: Settings, talker: ChatFactory) -> Solve[EmoBenchQuestion]:
    """Asks a question as often as there are votes; a line holds the replies and nothing made of them."""

    async def solve(question: EmoBenchQuestion, attempt: int) -> dict[str, Any]:
        del attempt  # a failed call was not kept, and one that went well shall not be paid twice
        system = bench.system(
            question.task, question.language, reasoning=settings.reasoning, no_think=settings.no_think
        )
        replies = []
        for vote in range(settings.votes):
            asked = bench.user(question, orders(question, settings, vote))
            request = Request(
                messages=(Message("system", system), Message("user", asked)),
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                session=f"{question.id}/{vote}",
                nonce=f"emobench/{settings.seed}/{vote}",
                seed=seed_of(settings.seed, question.id, vote),
            )
            with conversation(talker, request.session) as chat:
                reply = (await chat.reply(request)).reply
            replies.append({"text": reply.text, "finish": reply.finish})
        return {"replies": replies}

    return solve


def orders(question: EmoBenchQuestion, settings: Settings, vote: int) -> list[list[int]]:
    """For each part of the question, which choice stands first, second, ..."""
    found = []
    for number, part in enumerate(question.parts):
        order = list(range(len(part.choices)))
        if settings.shuffle:
            name = f"{settings.seed}/{question.id}/{vote}/{number}"
            order.sort(key=lambda i, name=name: hashlib.sha256(f"{name}/{i}".encode()).digest())  # type: ignore[misc]
        found.append(order)
    return found


# ---- reading


def parse_answer(task: str, raw: str | None) -> dict[str, Any]:
    """The object in a reply as the reference reads it; the asked-for keys with nothing where there is none.

    A reply whose JSON is no object ("B", ["B"]) ends the reference's run; here it is one in another form.
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
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return blank
    return found if isinstance(found, dict) else blank


def majority(votes: Iterable[str | None]) -> str | None:
    """The most frequent answer, the earlier one of equals; None only where nobody answered."""
    counted = Counter(vote for vote in votes if vote is not None)
    return counted.most_common(1)[0][0] if counted else None


class ParsedReplies(NamedTuple):
    """What the replies to one question came to: letters of the choices in their original order."""

    strict: Answers
    lenient: Answers
    parsed: int
    parsed_lenient: int


def read(question: EmoBenchQuestion, texts: Sequence[str], settings: Settings) -> ParsedReplies:
    """`parsed` counts the replies that name an offered letter for every part."""
    strict_votes, lenient_votes = [], []
    for vote, text in enumerate(texts):
        shown = orders(question, settings, vote)
        given = parse_answer(question.task, text)
        letters = [given.get(key) for key in KEYS[question.task]]
        strict = [_place(letter, len(order)) for letter, order in zip(letters, shown, strict=True)]
        words = [[p.choices[i] for i in order] for p, order in zip(question.parts, shown, strict=True)]
        guessed = lenient(question.task, text, words, question.language)
        meant = [g if s is None else s for s, g in zip(strict, guessed, strict=True)]
        strict_votes.append(_original(strict, shown))
        lenient_votes.append(_original(meant, shown))
    return ParsedReplies(
        tuple(majority(votes) for votes in zip(*strict_votes, strict=True)),
        tuple(majority(votes) for votes in zip(*lenient_votes, strict=True)),
        sum(None not in vote for vote in strict_votes),
        sum(None not in vote for vote in lenient_votes),
    )


def _place(letter: object, choices: int) -> int | None:
    return LETTERS.index(letter) if isinstance(letter, str) and letter in tuple(LETTERS[:choices]) else None


def _original(places: Sequence[int | None], shown: Sequence[Sequence[int]]) -> list[str | None]:
    return [None if at is None else LETTERS[order[at]] for at, order in zip(places, shown, strict=True)]
