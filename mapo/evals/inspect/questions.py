"""EmoBench and EQ-Bench as tasks of inspect_ai.

Each sample is one item. Its solver is the `solve` function of `mapo eval`, and its score is computed from
what that returned. The headline score requires all items, so each sample's score holds their number. The
metrics are computed by the functions that compute result.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from mapo.evals.eqbench import v2, v3
from mapo.evals.eqbench.data import read_v2, read_v3
from mapo.evals.inspect.chat import policy_chat, role_chat
from mapo.evals.inspect.epochs import averaged, by_epoch, one_epoch
from mapo.evals.inspect.names import task_name
from mapo.evals.items import Item, PartialItemError, Solve
from mapo.evals.summary import Scored, summarise

LINE = "mapo_line"
"""Key of the solver's result in a sample's store; it has the keys of a line of items.jsonl."""


def _task(
    items: Sequence[Item], samples: Sequence[Sample], solve: Callable[[], Solve[Any]], score: Scorer
) -> Task:
    by_id = {item.id: item for item in items}

    @solver
    def solve_item() -> Solver:
        async def run(state: TaskState, generate: Generate) -> TaskState:
            del generate  # the benchmark makes its own calls
            try:
                line = dict(await solve()(by_id[str(state.sample_id)], 0))
            except PartialItemError as error:  # the item was answered but cannot be scored
                line = {**error.body, "error": str(error.problem)}
            replies = line.get("answers") or line.get("replies") or [""]
            last = replies[-1]["text"] if isinstance(replies[-1], dict) else replies[-1]
            state.output = ModelOutput.from_content(str(state.model), last)
            state.store.set(LINE, line)
            return state

        return run

    return Task(dataset=MemoryDataset(list(samples)), solver=solve_item(), scorer=score, epochs=one_epoch())


def _line(state: TaskState) -> dict[str, Any]:
    return {"id": str(state.sample_id), **state.store.get(LINE, {})}


# ---- EmoBench


@task(name=task_name("emobench"))
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
    """EmoBench: emotional understanding (EU) and application (EA). `data` is a checkout of its repository."""
    languages = LANGUAGES if language == "both" else (language,)
    if not set(languages) <= set(LANGUAGES):
        raise InputError(f"language is '{language}'", where="-T language", fix="Use one of: en, zh, both")
    settings = emo.EmoBenchSettings(
        languages, reasoning, no_think, shuffle, votes, seed, temperature, max_tokens
    )
    bench = load(Path(data), languages, allow_changed=allow_changed_data)
    by_id = {q.id: q for q in bench.questions}

    @scorer(metrics=[emobench_scores()], name="emobench")
    def score() -> Scorer:
        async def run(state: TaskState, target: Target) -> Score:
            del target
            question = by_id[str(state.sample_id)]
            item = scored_question(question, _line(state), settings)
            metadata = {"scores": item.scores, "group": item.group, "stratum": item.stratum}
            return Score(value=item.scores[question.task], metadata=metadata)

        return run

    samples = [Sample(id=q.id, input=bench.user(q), target="".join(q.labels)) for q in bench.questions]
    return _task(bench.questions, samples, lambda: emo.solver(bench, settings, policy_chat), score())


@metric
def emobench_scores() -> Metric:
    """EA, EU and Overall, each parsed strictly and leniently."""

    def run(scores: list[SampleScore]) -> dict[str, float]:
        return averaged(
            [summarise([Scored(**item) for item in items], MEANS)[0] for items in by_epoch(scores)]
        )

    return run


# ---- EQ-Bench 3


@task(name=task_name("eqbench3"))
def eqbench3(data: str, max_tokens: int = v3.MAX_TOKENS, min_p: float = v3.MIN_P) -> Task:
    """EQ-Bench 3, judged by the model bound to the role `judge`. `data` is a checkout of eqbench3."""
    files = read_v3(Path(data))

    def solve() -> Solve[Any]:
        return partial(
            v3.solve,
            files=files,
            policy=policy_chat,
            judge=role_chat("judge"),
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
            [(kind, marks)] = v3.marks_by_id({line["id"]: line}, files).values()
            [item] = v3.scored({line["id"]: (kind, marks)})
            metadata = {"kind": kind, "marks": marks, "of": len(files.scenarios)}
            return Score(value=item.scores[v3.NAME], metadata=metadata, explanation=line["judge"])

        return run

    samples = [Sample(id=s.id, input=s.turns[0]) for s in files.scenarios]
    return _task(files.scenarios, samples, solve, score())


@metric
def eqbench3_score() -> Metric:
    """The headline score; NaN unless every scenario has a score."""

    def epoch_score(items: list[dict[str, Any]]) -> dict[str, float]:
        total = v3.total((item["kind"], item["marks"]) for item in items)
        complete = total is not None and len(items) == items[0]["of"]
        return {
            v3.NAME: v3.headline(total) if complete and total is not None else float("nan"),
            "scored": len(items),
        }

    def run(scores: list[SampleScore]) -> dict[str, float]:
        return averaged(list(map(epoch_score, by_epoch(scores))))

    return run


# ---- EQ-Bench v2


@task(name=task_name("eqbench_v2"))
def eqbench_v2(data: str, max_tokens: int = v2.MAX_TOKENS) -> Task:
    """EQ-Bench v2, which has no judge. `data` is a checkout of EQ-Bench."""
    questions = read_v2(Path(data))
    by_id = {q.id: q for q in questions}

    @scorer(metrics=[eqbench_v2_score()], name="eqbench_v2")
    def score() -> Scorer:
        async def run(state: TaskState, target: Target) -> Score:
            del target
            line = _line(state)
            [item] = v2.scored({line["id"]: line}, [by_id[line["id"]]])
            value = item.scores.get(v2.NAME)
            metadata = {"score": value, "of": len(questions)}
            if value is None:
                explanation = "No answer could be parsed; the question is excluded from the score."
                return Score(value="unreadable", metadata=metadata, explanation=explanation)
            return Score(value=value, metadata=metadata)

        return run

    samples = [Sample(id=q.id, input=v2.prompt_of(q)) for q in questions]
    return _task(
        questions, samples, lambda: partial(v2.solve, policy=policy_chat, max_tokens=max_tokens), score()
    )


@metric
def eqbench_v2_score() -> Metric:
    """The score; NaN unless every question was asked and enough answers can be parsed."""

    def epoch_score(items: list[dict[str, Any]]) -> dict[str, float]:
        parsed = [item["score"] / 10 for item in items if item["score"] is not None]
        of = items[0]["of"] if items else 0
        valid = len(items) == of > 0 and v2.valid(len(parsed), of)
        return {v2.NAME: v2.headline(parsed) if valid else float("nan"), "readable": len(parsed)}

    def run(scores: list[SampleScore]) -> dict[str, float]:
        return averaged(list(map(epoch_score, by_epoch(scores))))

    return run
