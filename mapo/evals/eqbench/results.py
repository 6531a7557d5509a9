"""Results of EQ-Bench 3 and v2: the lines of a run become its result.json.

A headline score is given only if nothing is missing. The reference implementation drops items without a
score, which makes a run with failures look better or worse than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapo.evals.eqbench import v2 as eqbench_v2
from mapo.evals.eqbench import v3 as eqbench3
from mapo.evals.eqbench.data import EqBench3Data, EqBenchQuestion
from mapo.evals.items import REMOVE_LINE, ItemLine
from mapo.evals.summary import summarise, write_result


def result_v3(
    out: Path,
    lines: Mapping[str, ItemLine],
    files: EqBench3Data,
    *,
    model: str,
    judge: str,
    settings: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    limit: int | None = None,
) -> dict[str, Any]:
    """Write OUT/result.json of EQ-Bench 3. It has a score only if every scenario has one; criteria always."""
    lines = {s.id: lines[s.id] for s in files.scenarios[:limit] if s.id in lines}
    marks = eqbench3.marks_by_id(lines, files)
    items = eqbench3.scored(marks)
    means, intervals = summarise(items)
    score = eqbench3.total(marks.values())
    scores, shown = {}, {}
    if score is not None and len(items) == len(files.scenarios):
        scores = {eqbench3.NAME: eqbench3.headline(score)}
        shown = {eqbench3.NAME: intervals[eqbench3.NAME]}
    counts = {name: sum(name in item.scores for item in items) for name in means}
    criteria = {
        name: {"mean": mean, "interval": intervals[name], "n": counts[name]}
        for name, mean in means.items()
        if name != eqbench3.NAME
    }
    outside = sum(not 0 <= mark <= 20 for _, by_name in marks.values() for mark in by_name.values())
    messages = [
        f"scenario {name} is not played: its prompt in the data has no heading" for name in files.dropped
    ]
    unread = [name for name in lines if name not in marks]
    if unread:
        scenarios = f"scenario{'' if len(unread) == 1 else 's'} {', '.join(unread)}"
        messages.append(f"the recorded judgement of {scenarios} cannot be parsed. {REMOVE_LINE}")
    if outside:
        messages.append(f"{outside} marks are outside of 0 to 20; they count unchanged")
    return write_result(
        out,
        benchmark="eqbench3",
        model=model,
        judge=judge,
        settings=settings,
        known=known,
        of=len(files.scenarios),
        items=items,
        scores=scores,
        intervals=shown,
        details={"criteria": criteria},
        notes=[*messages, *notes],
        limit=limit,
    )


def result_v2(
    out: Path,
    lines: Mapping[str, ItemLine],
    questions: tuple[EqBenchQuestion, ...],
    *,
    model: str,
    settings: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    limit: int | None = None,
) -> dict[str, Any]:
    """Write OUT/result.json of EQ-Bench v2. It has a score only if all questions were answered and enough
    answers can be parsed."""
    name = eqbench_v2.NAME
    items = eqbench_v2.scored(lines, questions[:limit])
    _, intervals = summarise(items)
    readable = [item for item in items if name in item.scores]
    score = eqbench_v2.headline([item.scores[name] / 10 for item in readable])
    complete = len(items) == len(questions)
    valid = eqbench_v2.valid(len(readable), len(questions))
    messages = []
    if complete and not valid:
        least = f"{eqbench_v2.MIN_READABLE:.2%}"
        messages = [
            f"invalid: {len(readable)} of {len(questions)} answers can be parsed; at least {least} are "
            "required. The run is complete, so --resume changes nothing; use a new --out to ask again"
        ]
    constant = {number: eqbench_v2.constant(questions, number) for number in range(11)}
    best = max(constant, key=lambda number: constant[number])
    messages.append(
        f"for comparison: rating every emotion {best} scores {constant[best]:.1f}, perfect answers score 100"
    )
    has_score = complete and valid
    return write_result(
        out,
        benchmark="eqbench_v2",
        model=model,
        settings=settings,
        known=known,
        of=len(questions),
        items=items,
        scores={name: score} if has_score else {},
        intervals={name: intervals[name]} if has_score else {},
        details={"readable": len(readable), "valid": valid, "constant": constant},
        notes=[*messages, *notes],
        limit=limit,
    )
