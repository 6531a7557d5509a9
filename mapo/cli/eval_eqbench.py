"""mapo eval eqbench: EQ-Bench 3 with a judge, or v2 without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli import options

if TYPE_CHECKING:
    from mapo.stage import Stage, Who


def eqbench(
    data: Annotated[Path, typer.Option(help="The benchmark's repository, or its folder data.")],
    model: options.Model,
    out: options.Out,
    base_url: options.BaseUrl = None,
    key_env: options.KeyEnv = "OPENAI_API_KEY",
    judge_model: Annotated[str | None, typer.Option(help="The judge; part of the result.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    v2: Annotated[bool, typer.Option("--v2", help="EQ-Bench v2: 171 questions, no judge.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest reply (default: the benchmark's, 12000 or 60).")
    ] = None,
    context: options.Context = 4096,
    concurrency: options.Concurrency = 32,
    requests_per_minute: options.RequestsPerMinute = None,
    tokens_per_minute: options.TokensPerMinute = None,
    timeout: options.Timeout = 600.0,
    retries: options.Retries = 5,
    cache: options.Cache = "record",
    cache_file: options.CacheFile = None,
    prices: options.Prices = None,
    resume: options.Resume = False,
) -> None:
    """EQ-Bench 3: role-play, drafting and analysis, marked by a judge. With --v2 the older one, without.

    Exit status: 0 a score; 1 no score, for something is missing (--resume asks for it); 2 it could not go on.
    """
    from mapo.cli.roles import stage_in
    from mapo.stage import Who

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
    policy = Who(model, base_url, key_env)
    judge = _judge(policy, judge_model, judge_base_url, judge_key_env, v2=v2)
    if judge is None:
        status = _two(out, data, policy, stage, max_tokens, concurrency=concurrency, resume=resume)
    else:
        status = _three(out, data, policy, judge, stage, max_tokens, concurrency=concurrency, resume=resume)
    raise typer.Exit(status)


def _judge(policy: Who, model: str | None, url: str | None, key: str | None, *, v2: bool) -> Who | None:
    from mapo.errors import InputError
    from mapo.stage import Who

    if v2:
        if model or url or key:
            raise InputError("EQ-Bench v2 has no judge", fix="Leave out --judge-model, or leave out --v2")
        return None
    if not model:
        raise InputError("no judge", fix="Give --judge-model: marks without their judge's name mean nothing")
    inherited = policy.key_env if url in (None, policy.base_url) else "OPENAI_API_KEY"
    judge = Who(model, url or policy.base_url, key or inherited)
    if judge.local is not None or judge.scripted is not None:
        raise InputError(f"'{model}' as judge", fix="Serve the model, and give its base URL")
    return judge


def _three(
    out: Path,
    data: Path,
    policy: Who,
    judge: Who,
    stage: Stage,
    max_tokens: int | None,
    *,
    concurrency: int,
    resume: bool,
) -> int:
    import asyncio
    from functools import partial

    from mapo.cli.bench import close, fits, solve_all
    from mapo.evals import eqbench3
    from mapo.evals.bench import Kept, Solve
    from mapo.evals.eqbench import result_three
    from mapo.evals.eqbench_data import THREE, Scenario, read_three
    from mapo.evals.folder import digest
    from mapo.evals.identity import identity

    longest = max_tokens or eqbench3.MAX_TOKENS
    files = read_three(data)
    fits(policy, max(map(eqbench3.replies_of, files.scenarios)), longest, stage.context)
    known = identity(model=policy, judge=judge)
    min_p = 0.0 if policy.local is not None else eqbench3.MIN_P
    settings = {"data": digest(THREE), "max_tokens": longest, "min_p": min_p}

    async def cast(stage: Stage, kept: Kept) -> Solve[Scenario]:
        return partial(
            eqbench3.solve,
            files=files,
            policy=await stage.talker(policy),
            judging=stage.endpoint(judge, "judge"),
            max_tokens=longest,
            min_p=min_p,
            halves=kept.halves,
        )

    asked = {"schema": "mapo.eqbench3/1", "model": policy.model, "judge": judge.model, **settings, **known}
    solved = asyncio.run(
        solve_all(
            out,
            asked,
            files.scenarios,
            [policy, judge],
            cast,
            stage,
            concurrency=concurrency,
            resume=resume,
        )
    )
    notes = ("replies were sampled without min_p, which a local model does not have",) if not min_p else ()
    result = result_three(
        out,
        solved.lines,
        files,
        model=policy.model,
        judge=judge.model,
        settings={**settings, **solved.settings},
        known=known,
        notes=(*notes, *solved.notes),
    )
    _print(result, f"EQ-Bench 3, judge {judge.model}", "scenarios", result["details"]["criteria"])
    return close(out, result, stage)


def _two(
    out: Path,
    data: Path,
    policy: Who,
    stage: Stage,
    max_tokens: int | None,
    *,
    concurrency: int,
    resume: bool,
) -> int:
    import asyncio
    from functools import partial

    from mapo.cli.bench import close, fits, solve_all
    from mapo.evals import eqbench_v2
    from mapo.evals.bench import Kept, Solve
    from mapo.evals.eqbench import result_v2
    from mapo.evals.eqbench_data import TWO, Question, read_v2
    from mapo.evals.folder import digest
    from mapo.evals.identity import identity

    longest = max_tokens or eqbench_v2.MAX_TOKENS
    fits(policy, 1, longest, stage.context)
    questions = read_v2(data)
    known = identity(model=policy)
    settings = {"data": digest(TWO), "max_tokens": longest}

    async def cast(stage: Stage, _: Kept) -> Solve[Question]:
        return partial(eqbench_v2.solve, policy=await stage.talker(policy), max_tokens=longest)

    asked = {"schema": "mapo.eqbench_v2/1", "model": policy.model, **settings, **known}
    solved = asyncio.run(
        solve_all(out, asked, questions, [policy], cast, stage, concurrency=concurrency, resume=resume)
    )
    result = result_v2(
        out,
        solved.lines,
        questions,
        model=policy.model,
        settings={**settings, **solved.settings},
        known=known,
        notes=solved.notes,
    )
    _print(result, f"EQ-Bench v2, {result['details']['readable']} readable", "questions", {})
    return close(out, result, stage) or int(not result["scores"])


def _print(result: Mapping[str, Any], title: str, what: str, criteria: Mapping[str, Any]) -> None:
    """The headline, or that there is none, and the criteria."""
    from mapo.evals.tables import escape
    from mapo.text import terminal

    console = terminal(soft_wrap=True)
    done = f"{result['n']}/{result['of']} {what}"
    shown = "no score"
    for name, score in result["scores"].items():
        ends = result["intervals"][name]
        shown = f"{score:.2f}" + (f" (95 % interval {ends[0]:.1f} to {ends[1]:.1f})" if ends else "")
    console.print(f"{escape(title)}: {escape(result['model'])}: {shown}, {done}")
    for name, found in criteria.items():
        console.print(f"  {escape(name):24} {found['mean']:6.2f} of 20, {found['n']} {what}")
