"""mapo eval emobench: questions about emotions, their causes and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.options import Limit, Model, RunOptions, with_run_options

if TYPE_CHECKING:
    from mapo.cli.common.items import SolvedItems
    from mapo.evals.emobench.data import EmoBench, EmoBenchQuestion
    from mapo.evals.emobench.questions import EmoBenchSettings
    from mapo.evals.items import PreviousItems, Solve
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.show.tables import Table

_LANGUAGES = {"en": ("en",), "zh": ("zh",), "both": ("en", "zh")}
_PROMPT_TOKENS, _ANSWER_TOKENS, _REASONING_TOKENS = 450, 30, 400
"""Typical tokens of a question and of answers without and with reasoning, for the estimate."""


@with_run_options(benchmark="emobench", without=("role_context",))
def emobench(
    run: RunOptions,
    model: Model,
    data: Annotated[
        Path, typer.Option(help="A checkout of EmoBench's repository (how to get it: docs/benchmarks.md).")
    ],
    language: Annotated[str, typer.Option(help="en, zh or both.")] = "both",
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="Use the prompt that asks for reasoning.")
    ] = False,
    no_think: Annotated[
        bool,
        typer.Option(
            "--no-think", help="Start the prompt with /no_think, as the reference does for Qwen models."
        ),
    ] = False,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the choices.")] = False,
    votes: Annotated[int, typer.Option(min=1, help="Replies per question; the majority counts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the shuffled choices and of a local model.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="The model's temperature.")] = 0.6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Token limit of a reply.")] = 2048,
    allow_changed_data: Annotated[
        bool,
        typer.Option("--allow-changed-data", help="Accept changed data; the score is then not comparable."),
    ] = False,
    limit: Limit = None,
) -> None:
    """Run EmoBench: emotional understanding (EU) and application (EA), in English and Chinese.

    Exit status: 0 success; 1 some calls failed (run again with --resume); 2 the run could not continue; 130
    or 143 it was stopped by a signal.
    """
    from mapo.cli.common.items import check_context, close, solve_until_stopped
    from mapo.errors import InputError
    from mapo.evals.emobench.data import load
    from mapo.evals.emobench.questions import EmoBenchSettings, manifest, solver
    from mapo.players.identity import body_entry, identity

    if language not in _LANGUAGES:
        raise InputError(
            f"the language '{language}' is unknown",
            where="--language",
            fix=f"Use one of: {', '.join(_LANGUAGES)}",
        )
    settings = EmoBenchSettings(
        _LANGUAGES[language], reasoning, no_think, shuffle, votes, seed, temperature, max_tokens
    )
    bench = load(data, settings.languages, allow_changed=allow_changed_data)
    session = run.session()
    spec = run.model_spec(model)
    check_context(spec, 1, max_tokens, run.context)
    identities = identity(model=spec)
    recorded = {**manifest(bench, settings, model), **body_entry(spec), **identities}

    async def open_solver(session: ModelSession, _: PreviousItems) -> Solve[EmoBenchQuestion]:
        return solver(bench, settings, await session.chat_factory(spec))

    solved = solve_until_stopped(
        run,
        recorded,
        bench.questions[:limit],
        {"model": spec},
        open_solver,
        session,
        lambda questions: _estimate(run, settings, questions),
    )
    result = _result(run.out, bench, settings, solved, recorded, limit)
    print_result(result)
    raise typer.Exit(close(run, result, session))


def _estimate(run: RunOptions, settings: EmoBenchSettings, questions: int) -> Estimate:
    from mapo.planning.estimate import Estimate

    calls = questions * settings.votes
    answer = _REASONING_TOKENS if settings.reasoning else _ANSWER_TOKENS
    return Estimate(
        calls=calls,
        prompt=calls * _PROMPT_TOKENS,
        output=calls * min(answer, settings.max_tokens),
        requests_per_minute=run.requests_per_minute,
        tokens_per_minute=run.tokens_per_minute,
    )


def _result(
    out: Path,
    bench: EmoBench,
    settings: EmoBenchSettings,
    solved: SolvedItems,
    manifest: Mapping[str, Any],
    limit: int | None,
) -> dict[str, Any]:
    """Score the finished questions and write result.json."""
    from collections import Counter

    from mapo.evals.emobench.score import score
    from mapo.evals.summary import write_result

    separate = ("schema", "model", "addresses", "weights")
    partial = limit is not None and limit < len(bench.questions)
    scored = score(replace(bench, questions=bench.questions[:limit]), settings, solved.lines)
    return write_result(
        out,
        benchmark="emobench",
        model=manifest["model"],
        settings={k: v for k, v in manifest.items() if k not in separate} | solved.settings,
        known={k: manifest[k] for k in ("addresses", "weights") if k in manifest},
        of=len(bench.questions),
        parts=Counter(question.task for question in bench.questions),
        items=scored.items,
        scores=scored.scores,
        intervals=scored.intervals,
        details={**scored.details, **({"partial": scored.scores} if partial else {})},
        notes=[*scored.notes, *solved.notes],
        limit=limit,
    )


def print_result(result: Mapping[str, Any]) -> None:
    """Print strict and lenient scores beside the best constant answer, then the scores by category."""
    from mapo.show.tables import print_line, print_tables

    print_tables([_scores(result), *([_categories(result)] if result["n"] else [])])
    rates = ", ".join(f"{how} {rate:.1%}" for how, rate in result["details"]["parse_rate"].items())
    print_line(f"Replies that could be parsed: {rates or 'none'}", style="")


def _scores(result: Mapping[str, Any]) -> Table:
    from mapo.show.tables import Table

    constant = list(result["details"]["baselines"].values())[-1]
    baselines = {**constant, "Overall": _mean(constant)} if len(constant) > 1 else constant
    title = f"EmoBench, {'+'.join(result['settings']['languages'])}: {result['n']} of {result['of']} items"
    status = "" if result["complete"] else ", partial: no score" if result["limit"] else ", incomplete"
    scores = result["scores"] or result["details"].get("partial", {})
    rows = []
    for name in ("EA", "EU", "Overall"):
        interval = result["intervals"].get(name)
        best = baselines.get(name, {})
        rows.append(
            [
                name,
                _percent(scores.get(name)),
                f"{interval[0]:.1%} to {interval[1]:.1%}" if interval else "-",
                _percent(scores.get(f"{name}_lenient")),
                f"{_percent(best.get('score'))} {best.get('answer', '')}".rstrip(),
            ]
        )
    columns = ["", "strict", "95 % interval", "lenient", "best constant answer"]
    return Table(columns, rows, title=title + status)


def _mean(parts: Mapping[str, Any]) -> dict[str, float]:
    return {"score": sum(part["score"] for part in parts.values()) / len(parts)}


def _categories(result: Mapping[str, Any]) -> Table:
    from mapo.show.tables import Table

    languages = result["details"]["languages"]
    rows = []
    for task in ("EA", "EU"):
        for name in dict.fromkeys(name for scores in languages.values() for name in scores[task]):
            cells = [_percent(scores[task].get(name)) for scores in languages.values()]
            rows.append([f"{task} {name}", *cells])
    return Table(["", *languages], rows, title="Strict scores by category")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
