"""mapo eval emobench: 800 questions about what people feel, why, and what helps them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.options import (
    BaseUrl,
    Cache,
    CacheFile,
    Concurrency,
    Context,
    KeyEnv,
    Model,
    Out,
    Prices,
    RequestsPerMinute,
    Resume,
    Retries,
    Timeout,
    TokensPerMinute,
)

if TYPE_CHECKING:
    from rich.table import Table

    from mapo.evals.bench import Kept, Solve
    from mapo.evals.emobench_data import Question
    from mapo.stage import Stage

_LANGUAGES = {"en": ("en",), "zh": ("zh",), "both": ("en", "zh")}


def emobench(
    model: Model,
    data: Annotated[Path, typer.Option(help="A checkout of EmoBench (docs/benchmarks.md).")],
    out: Out,
    base_url: BaseUrl = None,
    key_env: KeyEnv = "OPENAI_API_KEY",
    language: Annotated[str, typer.Option(help="en, zh or both.")] = "both",
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="The prompt that asks for reasoning.")
    ] = False,
    no_think: Annotated[
        bool, typer.Option("--no-think", help="Put /no_think first, as the reference does for Qwen models.")
    ] = False,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Choices in a random order.")] = False,
    votes: Annotated[int, typer.Option(min=1, help="Replies a question; the majority counts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the order, and of a local model's replies.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="The model's temperature.")] = 0.6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 2048,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="Take other data too: a score comparable with none.")
    ] = False,
    concurrency: Concurrency = 32,
    context: Context = 4096,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    timeout: Timeout = 120.0,
    retries: Retries = 5,
    cache: Cache = "record",
    cache_file: CacheFile = None,
    prices: Prices = None,
    resume: Resume = False,
) -> None:
    """EmoBench: emotional understanding (EU) and application (EA), in English and Chinese.

    Exit status: 0 all well; 1 some calls failed (run again with --resume); 2 the run could not go on.
    """
    import asyncio

    from mapo.cli.bench import close, fits, solve_all
    from mapo.cli.roles import stage_in
    from mapo.errors import InputError
    from mapo.evals.emobench import Settings, manifest, solver
    from mapo.evals.emobench_data import load
    from mapo.evals.emobench_score import score
    from mapo.evals.identity import identity
    from mapo.evals.summary import write_result
    from mapo.stage import Who

    if language not in _LANGUAGES:
        raise InputError(f"--language is '{language}'", fix=f"Use one of: {', '.join(_LANGUAGES)}")
    settings = Settings(
        _LANGUAGES[language], reasoning, no_think, shuffle, votes, seed, temperature, max_tokens
    )
    bench = load(data, settings.languages, allow_changed=allow_changed_data)
    stage = stage_in(
        out,
        cache_file=cache_file,
        prices=prices,
        cache_mode=cache,
        concurrency=concurrency,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        timeout=timeout,
        retries=retries,
        context=context,
    )
    who = Who(model, base_url, key_env)
    fits(who, 1, max_tokens, context)
    known = identity(model=who)
    asked = manifest(bench, settings, model)

    async def cast(stage: Stage, _: Kept) -> Solve[Question]:
        return solver(bench, settings, await stage.talker(who))

    told = {**asked, **known}
    solved = asyncio.run(
        solve_all(out, told, bench.questions, [who], cast, stage, concurrency=concurrency, resume=resume)
    )
    found = score(bench, settings, solved.lines)
    result = write_result(
        out,
        benchmark="emobench",
        model=model,
        settings={k: v for k, v in asked.items() if k not in ("schema", "model")} | solved.settings,
        known=known,
        of=len(bench.questions),
        items=found.items,
        scores=found.scores,
        intervals=found.intervals,
        details=found.details,
        notes=[*found.notes, *solved.notes],
    )
    print_result(result)
    raise typer.Exit(close(out, result, stage))


def print_result(result: Mapping[str, Any]) -> None:
    """The scores, strict and lenient, beside the best constant answer; then every category."""
    from mapo.text import terminal

    console = terminal()
    console.width = max(console.width, 100)
    console.print(_scores(result), _categories(result))
    rates = ", ".join(f"{how} {rate:.1%}" for how, rate in result["details"]["parse_rate"].items())
    console.print(f"replies that could be read: {rates or 'none'}")


def _scores(result: Mapping[str, Any]) -> Table:
    from rich.table import Table

    constant = list(result["details"]["baselines"].values())[-1]
    whole = {**constant, "Overall": _mean(constant)} if len(constant) > 1 else constant
    title = f"EmoBench, {'+'.join(result['settings']['languages'])}: {result['n']} of {result['of']} items"
    table = Table(title=title + ("" if result["complete"] else ", incomplete"), title_justify="left")
    for column in ("", "strict", "95 % interval", "lenient", "best constant answer"):
        table.add_column(column, justify="right" if column else "left")
    for name in ("EA", "EU", "Overall"):
        ends = result["intervals"].get(name)
        best = whole.get(name, {})
        table.add_row(
            name,
            _percent(result["scores"].get(name)),
            f"{ends[0]:.1%} to {ends[1]:.1%}" if ends else "-",
            _percent(result["scores"].get(f"{name}_lenient")),
            f"{_percent(best.get('score'))} {best.get('answer', '')}".rstrip(),
        )
    return table


def _mean(parts: Mapping[str, Any]) -> dict[str, float]:
    return {"score": sum(part["score"] for part in parts.values()) / len(parts)}


def _categories(result: Mapping[str, Any]) -> Table:
    from rich.table import Table

    from mapo.evals.tables import escape

    languages = result["details"]["languages"]
    table = Table(title="strict, by category", title_justify="left")
    for column in ("", *languages):
        table.add_column(column, justify="right" if column else "left")
    for task in ("EA", "EU"):
        for name in dict.fromkeys(name for found in languages.values() for name in found[task]):
            cells = [_percent(found[task].get(name)) for found in languages.values()]
            table.add_row(escape(f"{task} {name}"), *cells)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
