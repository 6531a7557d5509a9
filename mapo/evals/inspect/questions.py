"""EmoBench and EQ-Bench as tasks of inspect_ai.

A sample is an item; its solver is the function that solves it in `mapo eval`, and its score is made of what
that returned. The headline needs all items, so each score carries how many there are, and the metrics are
the functions that make result.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from mapo.errors import InputError
from mapo.evals.emobench import questions as emo
from mapo.evals.emobench.data import LANGUAGES, load
from mapo.evals.emobench.score import MEANS, scored_question
from mapo.evals.eqbench import v2 as two
from mapo.evals.eqbench import v3 as three
from mapo.evals.eqbench.data import read_v2, read_v3
from mapo.evals.inspect.chat import player, talker
from mapo.evals.inspect.epochs import averaged, by_epoch, once
from mapo.evals.items import Item, PartialItemError, Solve
from mapo.evals.summary import Scored, summarise

LINE = "mapo_line"
"""Where a sample keeps what its solver recorded: the same keys as a line of items.jsonl."""

Judged = Callable[[Mapping[str, Any]], Score]
"""A recorded line -> the item's score."""


def _task(
    items: Sequence[Item], samples: Sequence[Sample], solve: Callable[[], Solve[Any]], score: Scorer
) -> Task:
    known = {item.id: item for item in items}

    @solver
    def asked() -> Solver:
        async def run(state: TaskState, generate: Generate) -> TaskState:
            del generate  # the benchmark asks in its own way
            try:
                line = dict(await solve()(known[str(state.sample_id)], 0))
            except PartialItemError as half:  # it was answered, and cannot be scored
                line = {**half.body, "error": str(half.problem)}
            said = line.get("answers") or line.get("replies") or [""]
            last = said[-1]["text"] if isinstance(said[-1], dict) else said[-1]
            state.output = ModelOutput.from_content(str(state.model), last)
            state.store.set(LINE, line)
            return state

        return run

    return Task(dataset=MemoryDataset(list(samples)), solver=asked(), scorer=score, epochs=once())


def _line(state: TaskState) -> dict[str, Any]:
    return {"id": str(state.sample_id), **state.store.get(LINE, {})}


# ---- EmoBench


@task
def emobench(
    data: str,
    language: str = "both",
    reasoning: bool = False,
    no_think: bool = False,
    shuffle: bool = False,
    votes: int = 1,
    seed: int = 0,
    temperature: float = 0.6,
    max_tokens: int = 2048,
    allow_changed_data: bool = False,
) -> Task:
    """EmoBench: emotional understanding (EU) and application (EA). `data` is a checkout of it."""
    chosen = LANGUAGES if language == "both" else (language,)
    if not set(chosen) <= set(LANGUAGES):
        raise InputError(f"language is '{language}'", fix="Use one of: en, zh, both")
    settings = emo.Settings(chosen, reasoning, no_think, shuffle, votes, seed, temperature, max_tokens)
    bench = load(Path(data), chosen, allow_changed=allow_changed_data)
    known = {q.id: q for q in bench.questions}

    @scorer(metrics=[emobench_scores()], name="emobench")
    def score() -> Scorer:
        async def run(state: TaskState, target: Target) -> Score:
            del target
            question = known[str(state.sample_id)]
            item = scored_question(question, _line(state), settings)
            kept = {"scores": item.scores, "group": item.group, "stratum": item.stratum}
            return Score(value=item.scores[question.task], metadata=kept)

        return run

    samples = [Sample(id=q.id, input=bench.user(q), target="".join(q.labels)) for q in bench.questions]
    return _task(bench.questions, samples, lambda: emo.solver(bench, settings, talker), score())


@metric
def emobench_scores() -> Metric:
    """EA, EU, Overall, strict and lenient."""

    def run(scores: list[SampleScore]) -> dict[str, float]:
        return averaged([summarise([Scored(**k) for k in kept], MEANS)[0] for kept in by_epoch(scores)])

    return run


# ---- EQ-Bench 3


@task
def eqbench3(data: str, max_tokens: int = three.MAX_TOKENS, min_p: float = three.MIN_P) -> Task:
    """EQ-Bench 3 with the judge bound to the role `judge`; `data` is a checkout of eqbench3."""
    files = read_v3(Path(data))

    def solve() -> Solve[Any]:
        return partial(
            three.solve,
            files=files,
            policy=talker,
            judge=player("judge"),
            max_tokens=max_tokens,
            min_p=min_p,
        )

    @scorer(metrics=[eqbench3_score()], name="eqbench3")
    def score() -> Scorer:
        async def run(state: TaskState, target: Target) -> Score:
            del target
            line = _line(state)
            if "error" in line:
                return Score.unscored(explanation=line["error"])
            [(kind, marks)] = three.marks_by_id({line["id"]: line}, files).values()
            [item] = three.scored({line["id"]: (kind, marks)})
            kept = {"kind": kind, "marks": marks, "of": len(files.scenarios)}
            return Score(value=item.scores[three.NAME], metadata=kept, explanation=line["judge"])

        return run

    samples = [Sample(id=s.id, input=s.turns[0]) for s in files.scenarios]
    return _task(files.scenarios, samples, solve, score())


@metric
def eqbench3_score() -> Metric:
    """The headline, where every scenario has a score."""

    def one(kept: list[dict[str, Any]]) -> dict[str, float]:
        found = three.total((k["kind"], k["marks"]) for k in kept)
        whole = found is not None and len(kept) == kept[0]["of"]
        return {
            three.NAME: three.headline(found) if whole and found is not None else float("nan"),
            "scored": len(kept),
        }

    def run(scores: list[SampleScore]) -> dict[str, float]:
        return averaged(list(map(one, by_epoch(scores))))

    return run


# ---- EQ-Bench v2


@task
def eqbench_v2(data: str, max_tokens: int = two.MAX_TOKENS) -> Task:
    """EQ-Bench v2, which has no judge; `data` is a checkout of EQ-Bench."""
    questions = read_v2(Path(data))
    known = {q.id: q for q in questions}

    @scorer(metrics=[eqbench_v2_score()], name="eqbench_v2")
    def score() -> Scorer:
        async def run(state: TaskState, target: Target) -> Score:
            del target
            line = _line(state)
            [item] = two.scored({line["id"]: line}, [known[line["id"]]])
            value = item.scores.get(two.NAME)
            kept = {"score": value, "of": len(questions)}
            told = None if value is not None else "no answer could be read: left out of the score"
            return Score(value="unreadable" if value is None else value, metadata=kept, explanation=told)

        return run

    samples = [Sample(id=q.id, input=two.prompt_of(q)) for q in questions]
    return _task(
        questions, samples, lambda: partial(two.solve, policy=talker, max_tokens=max_tokens), score()
    )


@metric
def eqbench_v2_score() -> Metric:
    """The score, where every question was asked and enough answers can be read."""

    def one(kept: list[dict[str, Any]]) -> dict[str, float]:
        read = [k["score"] / 10 for k in kept if k["score"] is not None]
        of = kept[0]["of"] if kept else 0
        good = len(kept) == of > 0 and two.valid(len(read), of)
        return {two.NAME: two.headline(read) if good else float("nan"), "readable": len(read)}

    def run(scores: list[SampleScore]) -> dict[str, float]:
        return averaged(list(map(one, by_epoch(scores))))

    return run
