"""mapo eval: any model through a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.say import say, say_all

if TYPE_CHECKING:
    from mapo.cli.roles import Stage, Who
    from mapo.evals.empa import Plan
    from mapo.sandbox.rollout import Rules
    from mapo.sandbox.scenario import Scenario

app = typer.Typer(no_args_is_help=True, help="Put any model through a benchmark.")


@app.callback()
def main() -> None:
    """Put any model through a benchmark."""


@app.command()
def empa(
    model: Annotated[str, typer.Option(help="The policy: a model's name, or scripted:NAME.")],
    out: Annotated[Path, typer.Option(help="Where the run goes.")],
    base_url: Annotated[str | None, typer.Option(help="Its OpenAI-compatible endpoint.")] = None,
    key_env: Annotated[str, typer.Option(help="Environment variable with its key.")] = "OPENAI_API_KEY",
    agents: Annotated[
        str | None, typer.Option(help="User, director and judge: scripted or llm (default: as given).")
    ] = None,
    agents_model: Annotated[str | None, typer.Option(help="The model that plays them.")] = None,
    agents_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    agents_key_env: Annotated[str, typer.Option(help="Variable with its key.")] = "OPENAI_API_KEY",
    judge_model: Annotated[str | None, typer.Option(help="Another model as judge.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    user_model: Annotated[str | None, typer.Option(help="Another model as user.")] = None,
    user_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    director_model: Annotated[str | None, typer.Option(help="Another model as director.")] = None,
    director_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    scenarios: Annotated[
        str, typer.Option(help="builtin:test|validation|train|all, or a folder of scenarios or EMPA cards.")
    ] = "builtin:test",
    start_levels: Annotated[
        Path | None, typer.Option(help="Known start levels by case (JSON, or EMPA result files).")
    ] = None,
    cases: Annotated[str | None, typer.Option(help="Only these cases: a,b,c.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Dialogues a scenario.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Dialogues at once.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the scripted roles and of repeats.")] = 0,
    profile: Annotated[str, typer.Option(help="Rules: published or released.")] = "published",
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit (default: the rubric's).")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="The policy's temperature.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 512,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Per endpoint.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Per endpoint.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a call may take.")] = 120.0,
    retries: Annotated[int, typer.Option(min=0, help="Tries after the first.")] = 5,
    cache: Annotated[str, typer.Option(help="record, replay, refresh or off.")] = "record",
    prices: Annotated[Path | None, typer.Option(help="JSON: model -> prices per million tokens.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """The EMPA sandbox: long talks with simulated people, scored by EPM-Q.

    Exit status: 0 all well; 1 some dialogues broke (run again with --resume); 2 the run could not go on.
    """
    import asyncio

    from mapo.cli.roles import Stage, Who, cast_of, read_prices
    from mapo.evals.empa import FILE, Plan
    from mapo.evals.score import score
    from mapo.evals.tables import print_ledger, print_scoring
    from mapo.sandbox.empa_cards import read_start_levels
    from mapo.sandbox.models import policy_system
    from mapo.sandbox.rollout import Rules
    from mapo.sandbox.rubric import Rubric

    chosen = _chosen(scenarios, cases)
    rubric = Rubric.load(chosen[0].domain)
    split = {
        role: Who(name, url or agents_base_url, agents_key_env) if name else None
        for role, name, url in (
            ("user", user_model, user_base_url),
            ("director", director_model, director_base_url),
            ("judge", judge_model, judge_base_url),
        )
    }
    roles = cast_of(agents, agents_model, agents_base_url, agents_key_env, split)
    rules = Rules(
        rubric,
        profile,
        max_turns=max_turns,
        system=policy_system,
        temperature=temperature,
        max_tokens=max_tokens,
    )
    plan = Plan(chosen, repeats, seed, read_start_levels(start_levels) if start_levels else None)
    stage = Stage(
        cache=out / "cache.sqlite",
        cache_mode=cache,
        ledger_file=out / "ledger.json",
        prices=read_prices(prices),
        concurrency=concurrency,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        timeout=timeout,
        retries=retries,
    )
    policy = Who(model, base_url, key_env)
    broken = asyncio.run(_play(out, plan, policy, roles, rules, stage, concurrency, resume))
    found = score(out)
    if found.models:
        print_scoring(found)
    print_ledger(stage.ledger)
    say(f"dialogues: {out / 'dialogues' / FILE}")
    if broken or not found.models:
        raise typer.Exit(1)


def _chosen(source: str, cases: str | None) -> list[Scenario]:
    from mapo.errors import InputError
    from mapo.sandbox.scenarios import load_scenarios

    found = load_scenarios(source)
    wanted = cases.split(",") if cases else [s.id for s in found]
    missing = sorted(set(wanted) - {s.id for s in found})
    if missing or not wanted:
        raise InputError(f"no case {', '.join(missing)}", where=source, fix="See: mapo scenarios list")
    return [s for s in found if s.id in wanted]


async def _play(
    out: Path,
    plan: Plan,
    policy: Who,
    roles: dict[str, Who] | None,
    rules: Rules,
    stage: Stage,
    concurrency: int,
    resume: bool,
) -> int:
    """Play what is missing in `out`; how many dialogues broke."""
    from mapo.cli.progress import watching
    from mapo.evals import empa as bench

    domain = plan.scenarios[0].domain
    if policy.scripted is not None:
        stage.policy(policy, domain)  # a name nobody knows is refused before anything is written
    cast = {role: who.model for role, who in roles.items()} if roles else "scripted"
    finished = bench.prepare(out, bench.manifest(plan, rules, policy.model, cast), resume=resume)
    async with stage:
        player = stage.policy(policy, domain)
        casting = stage.casting(roles, rules.rubric, domain)
        with watching(len(plan.jobs()), len(finished), lambda: stage.ledger.total_cost) as (done, turned):
            try:
                played = await bench.run(
                    out,
                    plan,
                    player,
                    casting,
                    rules,
                    finished=finished,
                    concurrency=concurrency,
                    on_done=done,
                    on_turn=turned,
                )
            finally:
                stage.ledger.flush(out / "ledger.json")
    broken = [f"dialogue {d.id}: {d.error}" for d in played if d.error]
    say_all("broken", broken, most=10)
    return len(broken)
