"""EmoBench's replies -> accuracies by task, language and category, beside what a constant answer scores.

The right choices are not evenly laid out: always answering C is right on 37 % of EA, and always A and A on
24.5 % of EU in Chinese, so a score means little without the best constant answer next to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mapo.errors import RecordError
from mapo.evals.emobench.data import COMMIT, LETTERS, TASKS, EmoBench, EmoBenchQuestion
from mapo.evals.emobench.questions import ParsedReplies, Settings, majority, orders, read
from mapo.evals.items import REMOVE_LINE, ItemLine
from mapo.evals.summary import Scored, summarise
from mapo.measure.stats import Interval
from mapo.store import RunDir

MEANS = {f"Overall{how}": [f"{task}{how}" for task in TASKS] for how in ("", "_lenient")}
"""Scores that are the mean of others."""


def tally(marks: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """Accuracy by category, and over all rows as "Overall"."""
    rows: dict[str, list[bool]] = {}
    for category, right in marks:
        rows.setdefault(category, []).append(right)
    found = {category: sum(rows[category]) / len(rows[category]) for category in sorted(rows)}
    everything = [right for part in rows.values() for right in part]
    return {**found, "Overall": sum(everything) / len(everything)} if everything else {}


def best_constant(questions: Sequence[EmoBenchQuestion], settings: Settings) -> tuple[str, float]:
    """The letters that score most if given every time, and what they score, as the choices are laid out."""
    found = constants(questions, settings)
    best = max(found, key=lambda letters: found[letters])
    return best, found[best]


def constants(questions: Sequence[EmoBenchQuestion], settings: Settings) -> dict[str, float]:
    """What each constant answer to questions of one task scores: {"AB": 0.115, ...}."""
    wins = [_winning(question, settings) for question in questions]
    most = [max(len(q.parts[at].choices) for q in questions) for at in range(len(wins[0]))]
    return {
        "".join(letters): sum(all(map(set.__contains__, win, letters)) for win in wins) / len(wins)
        for letters in itertools.product(*(LETTERS[:n] for n in most))
    }


def _winning(question: EmoBenchQuestion, settings: Settings) -> list[set[str]]:
    """For each part, the letters that are right if every reply gives them."""
    shown = [orders(question, settings, vote) for vote in range(settings.votes)]
    return [
        {
            letter
            for at, letter in enumerate(LETTERS[: len(part.choices)])
            if majority(LETTERS[order[number][at]] for order in shown) == LETTERS[part.right]
        }
        for number, part in enumerate(question.parts)
    ]


class Outcome(NamedTuple):
    items: list[Scored]
    scores: dict[str, float]
    intervals: dict[str, Interval | None]
    details: dict[str, Any]
    notes: list[str]


def score(bench: EmoBench, settings: Settings, lines: Mapping[str, ItemLine]) -> Outcome:
    """Everything a result holds, from the recorded replies alone."""
    readings = [
        (q, read(q, _texts(lines[q.id], settings.votes), settings)) for q in bench.questions if q.id in lines
    ]
    items = [_scored(q, found) for q, found in readings]
    scores, intervals = summarise(items, MEANS)
    details = {
        "languages": {
            language: {task: tally(_marks(readings, task, language)) for task in TASKS}
            for language in settings.languages
        },
        "parse_rate": _parse_rate([found for _, found in readings], settings.votes),
        "cut_replies": sum(r["finish"] == "length" for q, _ in readings for r in lines[q.id]["replies"]),
        "baselines": _baselines(bench.questions, settings),
    }
    return Outcome(items, scores, intervals, details, _notes(bench, scores, details))


def scored_question(question: EmoBenchQuestion, line: ItemLine, settings: Settings) -> Scored:
    """One question's scores, from its recorded replies."""
    return _scored(question, read(question, _texts(line, settings.votes), settings))


def _scored(q: EmoBenchQuestion, found: ParsedReplies) -> Scored:
    scores = {q.task: float(found.strict == q.labels), f"{q.task}_lenient": float(found.lenient == q.labels)}
    return Scored(q.id, scores, q.group, q.task)


def _texts(line: ItemLine, votes: int) -> list[str]:
    try:
        texts = [reply["text"] for reply in line["replies"]]
        if len(texts) != votes or not all(isinstance(text, str) for text in texts):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise RecordError(
            f"does not hold {votes} replies",
            where=f"{RunDir.items.name}, item {line['id']}",
            fix=REMOVE_LINE,
        ) from None
    return texts


def _marks(
    readings: Sequence[tuple[EmoBenchQuestion, ParsedReplies]], task: str, language: str
) -> list[tuple[str, bool]]:
    return [
        (q.category, found.strict == q.labels)
        for q, found in readings
        if (q.task, q.language) == (task, language)
    ]


def _parse_rate(readings: Iterable[ParsedReplies], votes: int) -> dict[str, float]:
    counts = [(found.parsed / votes, found.parsed_lenient / votes) for found in readings]
    return {
        name: sum(column) / len(counts)
        for name, column in zip(("strict", "lenient"), zip(*counts, strict=True), strict=False)
    }


def _baselines(questions: Sequence[EmoBenchQuestion], settings: Settings) -> dict[str, Any]:
    """By language, and over all where there are two: the best constant answer to each task."""
    found: dict[str, Any] = {}
    for name in (*settings.languages, *(["all"] if len(settings.languages) > 1 else [])):
        for task in TASKS:
            asked = [q for q in questions if q.task == task and name in (q.language, "all")]
            if asked:
                letters, value = best_constant(asked, settings)
                found.setdefault(name, {})[task] = {"answer": letters, "score": value}
    return found


def _notes(bench: EmoBench, scores: Mapping[str, float], details: Mapping[str, Any]) -> list[str]:
    notes = []
    if bench.changed:
        notes.append(f"changed data, not EmoBench {COMMIT[:7]}: {', '.join(bench.changed)}")
    if details["cut_replies"]:
        notes.append(f"{details['cut_replies']} replies were cut at the token limit")
    whole = list(details["baselines"].values())[-1]
    for task, best in whole.items():
        if scores.get(task, 1.0) <= best["score"]:
            notes.append(f"{task} is not above answering {best['answer']} every time ({best['score']:.1%})")
    return notes
