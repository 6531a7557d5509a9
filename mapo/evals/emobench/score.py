"""EmoBench accuracies by task, language and category, with the scores of constant answers.

Correct choices are unevenly distributed: always answering C is correct for 37 % of EA, and always answering A
and A for 24.5 % of EU in Chinese. A score must therefore be compared with the best constant answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mapo.errors import RecordError
from mapo.evals.emobench.data import COMMIT, LETTERS, TASKS, EmoBench, EmoBenchQuestion
from mapo.evals.emobench.questions import EmoBenchSettings, ParsedReplies, majority, orders, parse_replies
from mapo.evals.items import REMOVE_LINE, ItemLine
from mapo.evals.summary import Scored, summarise
from mapo.measure.stats import Interval
from mapo.store import RunDir

MEANS = {f"Overall{how}": [f"{task}{how}" for task in TASKS] for how in ("", "_lenient")}
"""Scores that are means of others."""


def accuracies(answers: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """Return the accuracy by category, and over all answers as "Overall"."""
    rows: dict[str, list[bool]] = {}
    for category, correct in answers:
        rows.setdefault(category, []).append(correct)
    by_category = {category: sum(rows[category]) / len(rows[category]) for category in sorted(rows)}
    every = [correct for row in rows.values() for correct in row]
    return {**by_category, "Overall": sum(every) / len(every)} if every else {}


def best_constant(questions: Sequence[EmoBenchQuestion], settings: EmoBenchSettings) -> tuple[str, float]:
    """Return the constant answer with the highest score, and its score."""
    scores = constants(questions, settings)
    best = max(scores, key=lambda letters: scores[letters])
    return best, scores[best]


def constants(questions: Sequence[EmoBenchQuestion], settings: EmoBenchSettings) -> dict[str, float]:
    """Return the score of every constant answer to questions of one task: {"AB": 0.115, ...}."""
    correct = [_correct_letters(question, settings) for question in questions]
    most = [max(len(q.parts[at].choices) for q in questions) for at in range(len(correct[0]))]
    return {
        "".join(letters): sum(all(map(set.__contains__, sets, letters)) for sets in correct) / len(correct)
        for letters in itertools.product(*(LETTERS[:n] for n in most))
    }


def _correct_letters(question: EmoBenchQuestion, settings: EmoBenchSettings) -> list[set[str]]:
    """Return, for each part, the letters that are correct if every reply gives them."""
    shown = [orders(question, settings, vote) for vote in range(settings.votes)]
    return [
        {
            letter
            for at, letter in enumerate(LETTERS[: len(part.choices)])
            if majority(LETTERS[order[number][at]] for order in shown) == LETTERS[part.correct]
        }
        for number, part in enumerate(question.parts)
    ]


class EmoBenchResult(NamedTuple):
    """The content of result.json."""

    items: list[Scored]
    scores: dict[str, float]
    intervals: dict[str, Interval | None]
    details: dict[str, Any]
    notes: list[str]


def score(bench: EmoBench, settings: EmoBenchSettings, lines: Mapping[str, ItemLine]) -> EmoBenchResult:
    """Compute the result from the recorded replies."""
    parsed = [
        (q, parse_replies(q, _texts(lines[q.id], settings.votes), settings))
        for q in bench.questions
        if q.id in lines
    ]
    items = [_scored(q, replies) for q, replies in parsed]
    scores, intervals = summarise(items, MEANS)
    details = {
        "languages": {
            language: {task: accuracies(_answers(parsed, task, language)) for task in TASKS}
            for language in settings.languages
        },
        "parse_rate": _parse_rate([replies for _, replies in parsed], settings.votes),
        "cut_replies": sum(r["finish"] == "length" for q, _ in parsed for r in lines[q.id]["replies"]),
        "baselines": _baselines(bench.questions, settings),
    }
    return EmoBenchResult(items, scores, intervals, details, _notes(bench, scores, details))


def scored_question(question: EmoBenchQuestion, line: ItemLine, settings: EmoBenchSettings) -> Scored:
    """Compute the scores of one question from its recorded replies."""
    return _scored(question, parse_replies(question, _texts(line, settings.votes), settings))


def _scored(q: EmoBenchQuestion, replies: ParsedReplies) -> Scored:
    scores = {
        q.task: float(replies.strict == q.labels),
        f"{q.task}_lenient": float(replies.lenient == q.labels),
    }
    return Scored(q.id, scores, q.group, q.task)


def _texts(line: ItemLine, votes: int) -> list[str]:
    try:
        texts = [reply["text"] for reply in line["replies"]]
        if len(texts) != votes or not all(isinstance(text, str) for text in texts):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise RecordError(
            f"the item does not have {votes} replies",
            where=f"{RunDir.items.name}, item {line['id']}",
            fix=REMOVE_LINE,
        ) from None
    return texts


def _answers(
    parsed: Sequence[tuple[EmoBenchQuestion, ParsedReplies]], task: str, language: str
) -> list[tuple[str, bool]]:
    return [
        (q.category, replies.strict == q.labels)
        for q, replies in parsed
        if (q.task, q.language) == (task, language)
    ]


def _parse_rate(parsed: Iterable[ParsedReplies], votes: int) -> dict[str, float]:
    counts = [(replies.parsed / votes, replies.parsed_lenient / votes) for replies in parsed]
    return {
        name: sum(column) / len(counts)
        for name, column in zip(("strict", "lenient"), zip(*counts, strict=True), strict=False)
    }


def _baselines(questions: Sequence[EmoBenchQuestion], settings: EmoBenchSettings) -> dict[str, Any]:
    """Return the best constant answer to each task, by language and, if there are two, over all."""
    baselines: dict[str, Any] = {}
    for name in (*settings.languages, *(["all"] if len(settings.languages) > 1 else [])):
        for task in TASKS:
            chosen = [q for q in questions if q.task == task and name in (q.language, "all")]
            if chosen:
                letters, value = best_constant(chosen, settings)
                baselines.setdefault(name, {})[task] = {"answer": letters, "score": value}
    return baselines


def _notes(bench: EmoBench, scores: Mapping[str, float], details: Mapping[str, Any]) -> list[str]:
    notes = []
    if bench.changed:
        notes.append(f"changed data: not from EmoBench {COMMIT[:7]}: {', '.join(bench.changed)}")
    if details["cut_replies"]:
        notes.append(f"{details['cut_replies']} replies were cut off at the token limit")
    overall = list(details["baselines"].values())[-1]
    for task, best in overall.items():
        if scores.get(task, 1.0) <= best["score"]:
            notes.append(f"{task} is not above always answering {best['answer']} ({best['score']:.1%})")
    return notes
