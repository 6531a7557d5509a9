"""mapo eval emobench: 800 questions about what people feel, why, and what helps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.options import Limit, Model, Run, with_run

if TYPE_CHECKING:
    from mapo.cli.common.items import Solved
    from mapo.evals.emobench.data import EmoBench, Question
    from mapo.evals.emobench.questions import Settings
    from mapo.evals.items import Kept, Solve
    from mapo.players.session import ModelSession
    from mapo.show.tables import Table

_LANGUAGES = {"en": ("en",), "zh": ("zh",), "both": ("en", "zh")}


@with_run()
def emobench(
    run: Run,
    model: Model,
    data: Annotated[Path, typer.Option(help="A checkout of EmoBench (docs/benchmarks.md).")],
    language: Annotated[str, typer.Option(help="en, zh or both.")] = "both",
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="Use the prompt that asks for reasoning.")
    ] = False,
    no_think: Annotated[
        bool, typer.Option("--no-think", help="Put /no_think first, as the reference does for Qwen models.")
    ] = False,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the choices.")] = False,
    votes: Annotated[int, typer.Option(min=1, help="Replies per question; the majority counts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the order, and of a local model's replies.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="The model's temperature.")] = 0.6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 2048,
    allow_changed_data: Annotated[
        bool,
        typer.Option("--allow-changed-data", help="Accept changed data; the score is then not comparable."),
    ] = False,
    limit: Limit = None,
) -> None:
    """EmoBench: emotional understanding (EU) and application (EA), in English and Chinese.

    Exit status: 0 all well; 1 some calls failed (run again with --resume); 2 the run could not continue; 130
    or 143 it was stopped by hand.
    """
    from mapo.cli.common.items import close, fits, solve_until_stopped
    from mapo.errors import InputError
    from mapo.evals.emobench.data import load
    from mapo.evals.emobench.questions import Settings, manifest, solver
    from mapo.players.identity import identity
    from mapo.players.spec import ModelSpec

    if language not in _LANGUAGES:
        raise InputError(f"--language is '{language}'", fix=f"Use one of: {', '.join(_LANGUAGES)}")
    settings = Settings(
        _LANGUAGES[language], reasoning, no_think, shuffle, votes, seed, temperature, max_tokens
    )
    bench = load(data, settings.languages, allow_changed=allow_changed_data)
    session = run.session()
    who = ModelSpec(model, run.base_url, run.key_env)
    fits(who, 1, max_tokens, run.context)
    known = identity(model=who)
    asked = manifest(bench, settings, model)

    async def cast(session: ModelSession, _: Kept) -> Solve[Question]:
        return solver(bench, settings, await session.talker(who))

    solved = solve_until_stopped(run, {**asked, **known}, bench.questions[:limit], [who], cast, session)
    result = _result(run.out, bench, settings, solved, {**asked, **known}, limit)
    print_result(result)
    raise typer.Exit(close(run, result, session))


def _result(
    out: Path,
    bench: EmoBench,
    settings: Settings,
    solved: Solved,
    asked: Mapping[str, Any],
    limit: int | None,
) -> dict[str, Any]:
    from collections import Counter

    from mapo.evals.emobench.score import score
    from mapo.evals.summary import write_result

    apart = ("schema", "model", "addresses", "weights")
    part = limit is not None and limit < len(bench.questions)
    found = score(replace(bench, questions=bench.questions[:limit]), settings, solved.lines)
    return write_result(
        out,
        benchmark="emobench",
        model=asked["model"],
        settings={k: v for k, v in asked.items() if k not in apart} | solved.settings,
        known={k: asked[k] for k in ("addresses", "weights") if k in asked},
        of=len(bench.questions),
        parts=Counter(question.task for question in bench.questions),
        items=found.items,
        scores=found.scores,
        intervals=found.intervals,
        details={**found.details, **({"partial": found.scores} if part else {})},
        notes=[*found.notes, *solved.notes],
        limit=limit,
    )


def print_result(result: Mapping[str, Any]) -> None:
    """The scores, strict and lenient, beside the best constant answer; then every category."""
    from mapo.show.tables import print_tables

    print_tables([_scores(result), *([_categories(result)] if result["n"] else [])], 100)
    rates = ", ".join(f"{how} {rate:.1%}" for how, rate in result["details"]["parse_rate"].items())
    typer.echo(f"replies that could be read: {rates or 'none'}")


def _scores(result: Mapping[str, Any]) -> Table:
    from mapo.show.tables import Table

    constant = list(result["details"]["baselines"].values())[-1]
    whole = {**constant, "Overall": _mean(constant)} if len(constant) > 1 else constant
    title = f"EmoBench, {'+'.join(result['settings']['languages'])}: {result['n']} of {result['of']} items"
    lack = "" if result["complete"] else ", partial: no score" if result["limit"] else ", incomplete"
    scores = result["scores"] or result["details"].get("partial", {})
    rows = []
    for name in ("EA", "EU", "Overall"):
        ends = result["intervals"].get(name)
        best = whole.get(name, {})
        rows.append(
            [
                name,
                _percent(scores.get(name)),
                f"{ends[0]:.1%} to {ends[1]:.1%}" if ends else "-",
                _percent(scores.get(f"{name}_lenient")),
                f"{_percent(best.get('score'))} {best.get('answer', '')}".rstrip(),
            ]
        )
    return Table(["", "strict", "95 % interval", "lenient", "best constant answer"], rows, title=title + lack)


def _mean(parts: Mapping[str, Any]) -> dict[str, float]:
    return {"score": sum(part["score"] for part in parts.values()) / len(parts)}


def _categories(result: Mapping[str, Any]) -> Table:
    from mapo.show.tables import Table

    languages = result["details"]["languages"]
    rows = []
    for task in ("EA", "EU"):
        for name in dict.fromkeys(name for found in languages.values() for name in found[task]):
            cells = [_percent(found[task].get(name)) for found in languages.values()]
            rows.append([f"{task} {name}", *cells])
    return Table(["", *languages], rows, title="strict, by category")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
