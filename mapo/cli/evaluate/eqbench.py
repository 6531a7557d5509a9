"""mapo eval eqbench: EQ-Bench 3 with a judge, or v2 without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.options import Limit, Model, Run, with_run
from mapo.errors import InputError

if TYPE_CHECKING:
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PartialSpec


@with_run(timeout=600.0)
def eqbench(
    run: Run,
    data: Annotated[Path, typer.Option(help="The benchmark's repository, or its folder data.")],
    model: Model,
    judge_model: Annotated[str | None, typer.Option(help="The judge; part of the result.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    v2: Annotated[bool, typer.Option("--v2", help="EQ-Bench v2: 171 questions, no judge.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest reply (default: the benchmark's, 12000 or 60).")
    ] = None,
    limit: Limit = None,
) -> None:
    """EQ-Bench 3: role-play, drafting and analysis, marked by a judge. With --v2, the older one, unjudged.

    Exit status: 0 a score, or all of --limit; 1 no score: something is missing (run again with --resume), or
    a run of v2 is invalid; 2 the run could not continue; 130 or 143 it was stopped by hand.
    """
    from mapo.players.spec import ModelSpec, PartialSpec

    policy = ModelSpec(model, run.base_url, run.key_env)
    if v2:
        if judge_model or judge_base_url or judge_key_env:
            raise InputError("EQ-Bench v2 has no judge", fix="Leave out --judge-model, or leave out --v2")
        raise typer.Exit(_two(run, data, policy, max_tokens, limit))
    judge = partial(_judge, run, PartialSpec(judge_model, judge_base_url, judge_key_env))
    raise typer.Exit(_three(run, data, policy, judge, max_tokens, limit))


def _judge(run: Run, own: PartialSpec) -> ModelSpec:
    from mapo.players.spec import inherit

    if not own.model:
        raise InputError("no judge", fix="Give --judge-model: marks without their judge's name mean nothing")
    judge = inherit(own, run.endpoint).complete()
    if judge.local is not None or judge.scripted is not None:
        raise InputError(f"'{own.model}' as judge", fix="Serve the model, and give its base URL")
    return judge


def _three(
    run: Run,
    data: Path,
    policy: ModelSpec,
    judge_of: Callable[[], ModelSpec],
    max_tokens: int | None,
    limit: int | None,
) -> int:
    from mapo.cli.common.items import close, fits, solve_until_stopped
    from mapo.evals.eqbench import v3 as eqbench3
    from mapo.evals.eqbench.data import THREE, Scenario, read_three
    from mapo.evals.eqbench.results import result_three
    from mapo.evals.items import Kept, Solve
    from mapo.players.identity import identity
    from mapo.runs.claim import digest

    files = read_three(data)  # first: that it is the other benchmark explains a missing judge
    judge, session = judge_of(), run.session()
    longest = max_tokens or eqbench3.MAX_TOKENS
    fits(policy, max(map(eqbench3.replies_of, files.scenarios)), longest, run.context)
    known = identity(model=policy, judge=judge)
    min_p = 0.0 if policy.local is not None else eqbench3.MIN_P
    settings = {"data": digest(THREE), "max_tokens": longest, "min_p": min_p}

    async def cast(session: ModelSession, kept: Kept) -> Solve[Scenario]:
        return partial(
            eqbench3.solve,
            files=files,
            policy=await session.talker(policy),
            judging=session.endpoint(judge, "judge"),
            max_tokens=longest,
            min_p=min_p,
            halves=kept.halves,
        )

    asked = {"schema": "mapo.eqbench3/1", "model": policy.model, "judge": judge.model, **settings, **known}
    solved = solve_until_stopped(run, asked, files.scenarios[:limit], [policy, judge], cast, session)
    notes = ("replies were sampled without min_p, which a local model does not have",) if not min_p else ()
    result = result_three(
        run.out,
        solved.lines,
        files,
        model=policy.model,
        judge=judge.model,
        settings={**settings, **solved.settings},
        known=known,
        notes=(*notes, *solved.notes),
        limit=limit,
    )
    _print(result, f"EQ-Bench 3, judge {judge.model}", "scenarios", result["details"]["criteria"])
    return close(run, result, session)


def _two(run: Run, data: Path, policy: ModelSpec, max_tokens: int | None, limit: int | None) -> int:
    from mapo.cli.common.items import close, fits, solve_until_stopped
    from mapo.evals.eqbench import v2 as eqbench_v2
    from mapo.evals.eqbench.data import TWO, Question, read_v2
    from mapo.evals.eqbench.results import result_v2
    from mapo.evals.items import Kept, Solve
    from mapo.players.identity import identity
    from mapo.runs.claim import digest

    session = run.session()
    longest = max_tokens or eqbench_v2.MAX_TOKENS
    fits(policy, 1, longest, run.context)
    questions = read_v2(data)
    known = identity(model=policy)
    settings = {"data": digest(TWO), "max_tokens": longest}

    async def cast(session: ModelSession, _: Kept) -> Solve[Question]:
        return partial(eqbench_v2.solve, policy=await session.talker(policy), max_tokens=longest)

    asked = {"schema": "mapo.eqbench_v2/1", "model": policy.model, **settings, **known}
    solved = solve_until_stopped(run, asked, questions[:limit], [policy], cast, session)
    result = result_v2(
        run.out,
        solved.lines,
        questions,
        model=policy.model,
        settings={**settings, **solved.settings},
        known=known,
        notes=solved.notes,
        limit=limit,
    )
    _print(result, f"EQ-Bench v2, {result['details']['readable']} readable", "questions", {})
    return close(run, result, session) or int(not result["scores"] and result["limit"] is None)


def _print(result: Mapping[str, Any], title: str, what: str, criteria: Mapping[str, Any]) -> None:
    """The headline, or that there is none, and the criteria."""
    from mapo.text import escape, terminal

    console = terminal(soft_wrap=True)
    done = f"{result['n']}/{result['of']} {what}"
    shown = "no score"
    for name, score in result["scores"].items():
        ends = result["intervals"][name]
        shown = f"{score:.2f}" + (f" (95 % interval {ends[0]:.1f} to {ends[1]:.1f})" if ends else "")
    console.print(f"{escape(title)}: {escape(result['model'])}: {shown}, {done}")
    for name, found in criteria.items():
        console.print(f"  {escape(name):24} {found['mean']:6.2f} of 20, {found['n']} {what}")
