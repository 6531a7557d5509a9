"""mapo eval eqbench: EQ-Bench 3, scored by a judge, or EQ-Bench v2, without a judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.options import JudgeBody, Limit, Model, RunOptions, role_body, with_run_options
from mapo.errors import InputError

if TYPE_CHECKING:
    from mapo.evals.eqbench.data import EqBenchScenario
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PartialSpec

_REPLY_TOKENS, _V2_TOKENS, _RUBRIC_TOKENS, _JUDGEMENT_TOKENS = 700, 600, 1200, 900
"""Typical tokens of a reply, a v2 question, the judge's rubric and a judgement, for the estimate."""


@with_run_options(benchmark="eqbench", timeout=600.0)
def eqbench(
    run: RunOptions,
    data: Annotated[
        Path,
        typer.Option(
            help="A checkout of the benchmark's repository, or its data folder (docs/benchmarks.md)."
        ),
    ],
    model: Model,
    judge_model: Annotated[str | None, typer.Option(help="The judge; it is part of the result.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    judge_body: JudgeBody = None,
    v2: Annotated[bool, typer.Option("--v2", help="EQ-Bench v2: 171 questions, no judge.")] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Token limit of a reply (default: the benchmark's, 12000; v2: 60)."),
    ] = None,
    judge_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token limit of a judgement (default: the benchmark's, 8000).")
    ] = None,
    limit: Limit = None,
) -> None:
    """Run EQ-Bench 3: role-play, drafting and analysis, scored by a judge; with --v2 the older benchmark.

    Exit status: 0 a score, or all items of --limit; 1 no score because items are missing (run again with
    --resume) or a v2 run is invalid; 2 the run could not continue; 130 or 143 it was stopped by a signal.
    """
    from mapo.players.spec import PartialSpec

    policy = run.model_spec(model)
    if v2:
        if judge_model or judge_base_url or judge_key_env or judge_max_tokens or judge_body:
            raise InputError(
                "EQ-Bench v2 has no judge", fix="Leave out the --judge options, or leave out --v2"
            )
        raise typer.Exit(_run_v2(run, data, policy, max_tokens, limit))
    judge = partial(_judge, run, PartialSpec(judge_model, judge_base_url, judge_key_env), judge_body)
    raise typer.Exit(_run_v3(run, data, policy, judge, max_tokens, judge_max_tokens, limit))


def _judge(run: RunOptions, options: PartialSpec, body: str | None) -> ModelSpec:
    """Return the judge that the options name; it inherits address and key from the model's options."""
    from mapo.models.chat import Sampling
    from mapo.players.spec import inherit

    if not options.model:
        raise InputError("EQ-Bench 3 needs a judge", fix="Give --judge-model; it is part of the result")
    judge = inherit(options, run.endpoint).complete()
    if judge.local is not None or judge.scripted is not None:
        raise InputError(
            f"'{options.model}' cannot be the judge: a judge is a model at an endpoint",
            where="--judge-model",
            fix="Serve the model, and give --judge-base-url",
        )
    return replace(judge, sampling=Sampling(body=role_body("judge", body)))


def _run_v3(
    run: RunOptions,
    data: Path,
    policy: ModelSpec,
    judge_of: Callable[[], ModelSpec],
    max_tokens: int | None,
    judge_max_tokens: int | None,
    limit: int | None,
) -> int:
    from mapo.cli.common.items import check_context, close, solve_until_stopped
    from mapo.evals.eqbench import v3
    from mapo.evals.eqbench.data import V3_FILES, read_v3
    from mapo.evals.eqbench.results import result_v3
    from mapo.evals.items import PreviousItems, Solve
    from mapo.players.identity import body_entry, identity
    from mapo.runs.claim import digest

    files = read_v3(data)  # first: data of the other version explains a missing judge
    judge, session = judge_of(), run.session()
    longest = max_tokens or v3.MAX_TOKENS
    check_context(policy, max(map(v3.replies_of, files.scenarios)), longest, run.context)
    identities = identity(model=policy, judge=judge)
    min_p = 0.0 if policy.local is not None else v3.MIN_P
    settings = {
        "data": digest(V3_FILES),
        "max_tokens": longest,
        "min_p": min_p,
        **({"judge_max_tokens": judge_max_tokens} if judge_max_tokens else {}),
        **body_entry(policy),
        **body_entry(judge, "judge_body"),
    }

    async def open_solver(session: ModelSession, previous: PreviousItems) -> Solve[EqBenchScenario]:
        return partial(
            v3.solve,
            files=files,
            policy=await session.chat_factory(policy),
            judge=await session.chat(judge, "judge"),
            max_tokens=longest,
            judge_max_tokens=judge_max_tokens or v3.JUDGE_TOKENS,
            min_p=min_p,
            partial=previous.partial,
        )

    manifest = {"schema": "mapo.eqbench3/1", "model": policy.model, "judge": judge.model, **settings}
    chosen = files.scenarios[:limit]
    solved = solve_until_stopped(
        run,
        {**manifest, **identities},
        chosen,
        {"model": policy, "judge": judge},
        open_solver,
        session,
        lambda scenarios: _estimate_v3(run, chosen[-scenarios:], longest),
    )
    notes = ("replies were sampled without min_p, which local models do not support",) if not min_p else ()
    result = result_v3(
        run.out,
        solved.lines,
        files,
        model=policy.model,
        judge=judge.model,
        settings={**settings, **solved.settings},
        known=identities,
        notes=(*notes, *solved.notes),
        limit=limit,
    )
    _print(result, f"EQ-Bench 3, judge {judge.model}", "scenarios", result["details"]["criteria"])
    return close(run, result, session)


def _estimate_v3(run: RunOptions, scenarios: tuple[EqBenchScenario, ...], max_tokens: int) -> Estimate:
    """Estimate the calls of scenarios: each reply is read again in every later turn and by the judge."""
    from mapo.evals.eqbench.v3 import replies_of
    from mapo.planning.estimate import Estimate

    reply = min(_REPLY_TOKENS, max_tokens)
    calls = prompt = output = 0.0
    for scenario in scenarios:
        replies, text = replies_of(scenario), sum(map(len, scenario.turns)) / 4
        calls += replies + 1
        prompt += (text + replies * reply) * (replies + 1) / 2 + text + replies * reply + _RUBRIC_TOKENS
        output += replies * reply + _JUDGEMENT_TOKENS
    return Estimate(
        calls=calls,
        prompt=prompt,
        output=output,
        requests_per_minute=run.requests_per_minute,
        tokens_per_minute=run.tokens_per_minute,
    )


def _run_v2(run: RunOptions, data: Path, policy: ModelSpec, max_tokens: int | None, limit: int | None) -> int:
    from mapo.cli.common.items import check_context, close, solve_until_stopped
    from mapo.evals.eqbench import v2
    from mapo.evals.eqbench.data import V2_FILES, EqBenchQuestion, read_v2
    from mapo.evals.eqbench.results import result_v2
    from mapo.evals.items import PreviousItems, Solve
    from mapo.planning.estimate import Estimate
    from mapo.players.identity import body_entry, identity
    from mapo.runs.claim import digest

    session = run.session()
    longest = max_tokens or v2.MAX_TOKENS
    check_context(policy, 1, longest, run.context)
    questions = read_v2(data)
    identities = identity(model=policy)
    settings = {"data": digest(V2_FILES), "max_tokens": longest, **body_entry(policy)}

    async def open_solver(session: ModelSession, _: PreviousItems) -> Solve[EqBenchQuestion]:
        return partial(v2.solve, policy=await session.chat_factory(policy), max_tokens=longest)

    def estimate(count: int) -> Estimate:
        return Estimate(calls=count, prompt=count * _V2_TOKENS, output=count * longest)

    manifest = {"schema": "mapo.eqbench_v2/1", "model": policy.model, **settings, **identities}
    solved = solve_until_stopped(
        run, manifest, questions[:limit], {"model": policy}, open_solver, session, estimate
    )
    result = result_v2(
        run.out,
        solved.lines,
        questions,
        model=policy.model,
        settings={**settings, **solved.settings},
        known=identities,
        notes=solved.notes,
        limit=limit,
    )
    _print(result, f"EQ-Bench v2, {result['details']['readable']} readable", "questions", {})
    return close(run, result, session) or int(not result["scores"] and result["limit"] is None)


def _print(result: Mapping[str, Any], title: str, unit: str, criteria: Mapping[str, Any]) -> None:
    """Print the score, or that there is none, and the mean of each criterion."""
    from mapo.show.tables import Table, print_line, print_tables

    count = f"{result['n']}/{result['of']} {unit}"
    text = "no score"
    for name, score in result["scores"].items():
        interval = result["intervals"][name]
        text = f"{score:.2f}"
        text += f" (95 % interval {interval[0]:.1f} to {interval[1]:.1f})" if interval else ""
    print_line(f"{title}: {result['model']}: {text}, {count}", style="bold")
    rows = [[name, f"{mark['mean']:.2f} of 20", str(mark["n"])] for name, mark in criteria.items()]
    print_tables([Table(["criterion", "mean", unit], rows)])
