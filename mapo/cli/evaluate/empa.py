"""mapo eval empa: long talks with simulated people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain, JudgePanel, Run, with_run

if TYPE_CHECKING:
    from mapo.evals.empa.benchmark import Plan
    from mapo.players.session import ModelSession
    from mapo.players.spec import CastSpec, ModelSpec
    from mapo.sandbox.rollout import Rules
    from mapo.scenarios.scenario import Scenario
    from mapo.types import Dialogue


@with_run()
def empa(
    run: Run,
    model: Annotated[
        str, typer.Option(help="The policy: a model's name, local:FOLDER (or local:pocket), scripted:NAME.")
    ],
    agents: Annotated[
        str | None, typer.Option(help="User, director and judge: scripted or llm (default: as given).")
    ] = None,
    agents_model: Annotated[str | None, typer.Option(help="The model that plays them.")] = None,
    agents_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    agents_key_env: Annotated[str, typer.Option(help="Variable with its key.")] = "OPENAI_API_KEY",
    judge_model: Annotated[str | None, typer.Option(help="Another model as judge.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    judge_panel: JudgePanel = None,
    user_model: Annotated[str | None, typer.Option(help="Another model as user.")] = None,
    user_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    user_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    director_model: Annotated[str | None, typer.Option(help="Another model as director.")] = None,
    director_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    director_key_env: Annotated[str | None, typer.Option(help="Variable with its key.")] = None,
    scenarios: Annotated[
        str, typer.Option(help="builtin:test|validation|train|all, or a folder of scenarios or EMPA cards.")
    ] = "builtin:test",
    domain: Domain = None,
    start_levels: Annotated[
        Path | None, typer.Option(help="Known start levels by case (JSON, or EMPA result files).")
    ] = None,
    cases: Annotated[str | None, typer.Option(help="Only these cases: a,b,c.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Dialogues per scenario.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the scripted roles and of repeats.")] = 0,
    profile: Annotated[str, typer.Option(help="Rules: published or released.")] = "published",
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit (default: the rubric's).")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="The policy's temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option(max=1.0, help="The policy's top-p.")] = 1.0,
    user_temperature: Annotated[float | None, typer.Option(min=0.0, help="The user's (default: 1).")] = None,
    judge_temperature: Annotated[
        float | None, typer.Option(min=0.0, help="The judge's (default: 0).")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 512,
    no_system: Annotated[bool, typer.Option("--no-system", help="No system prompt for the policy.")] = False,
) -> None:
    """The EMPA sandbox: long talks with simulated people, scored by EPM-Q.

    Exit status: 0 all well; 1 some dialogues broke (run again with --resume); 2 the run could not continue;
    130 or 143 it was stopped by hand.
    """
    from mapo.cli.common.stop import until_stopped
    from mapo.domain_folders import domain_folder
    from mapo.evals.compare.entries import read_json
    from mapo.evals.empa.benchmark import Plan
    from mapo.measure.rubric import Rubric
    from mapo.players.casting import cast_from_options, with_judge_panel, with_temperatures
    from mapo.players.spec import ModelSpec, PartialSpec
    from mapo.sandbox.model_cast import policy_system
    from mapo.sandbox.rollout import Rules
    from mapo.scenarios.empa_cards import read_start_levels
    from mapo.scoring.score import score
    from mapo.scoring.tables import print_ledger, print_scoring
    from mapo.store import RunDir

    chosen = _chosen(scenarios, domain, cases)
    rubric = Rubric.load(domain_folder(chosen[0].domain))
    cast = cast_from_options(
        agents,
        PartialSpec(agents_model, agents_base_url, agents_key_env),
        user=PartialSpec(user_model, user_base_url, user_key_env),
        director=PartialSpec(director_model, director_base_url, director_key_env),
        judge=PartialSpec(judge_model, judge_base_url, judge_key_env),
    )
    roles = with_judge_panel(cast, judge_panel)
    roles = with_temperatures(roles, user=user_temperature, judge=judge_temperature)
    rules = Rules(
        rubric,
        profile,
        max_turns=max_turns,
        system=None if no_system else policy_system,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
    )
    plan = Plan(chosen, repeats, seed, read_start_levels(start_levels) if start_levels else None)
    for told in plan.check(rubric):
        say(f"warning: {told}")
    if max_turns is not None and max_turns < rubric.ending.min_turns:
        say(f"warning: no dialogue can pass: {max_turns} turns, and success takes {rubric.ending.min_turns}")
    out, session = run.out, run.session()
    policy = ModelSpec(model, run.base_url, run.key_env)
    playing = play_missing(run, plan, policy, roles, rules, session)
    broken = until_stopped(playing, out, lambda: told_kept(out, len(plan.jobs())))
    found = score(out)
    if found.models:
        print_scoring(found)
    say_all("warning", [*found.torn, *found.bad, *read_json(RunDir(out).health).get("warnings", [])])
    print_ledger(session.ledger)
    say(f"dialogues: {RunDir(out).empa_dialogues}")
    if broken or not found.models:
        raise typer.Exit(1)


def _chosen(source: str, domain: str | None, cases: str | None) -> list[Scenario]:
    from mapo.errors import InputError
    from mapo.scenarios.sets import load_scenarios

    found = load_scenarios(source, domain)
    wanted = [s.id for s in found] if cases is None else [c.strip() for c in cases.split(",")]
    missing = sorted(set(wanted) - {s.id for s in found})
    if missing:
        raise InputError(f"no case {', '.join(missing)}", where=source, fix="See: mapo scenarios list")
    return [s for s in found if s.id in wanted]


def told_kept(out: Path, of: int) -> str:
    from mapo.evals.empa.benchmark import read_kept

    return f"{len(read_kept(out).finished)} of {of} dialogues are kept"


async def play_missing(
    run: Run, plan: Plan, policy: ModelSpec, roles: CastSpec | None, rules: Rules, session: ModelSession
) -> int:
    """Play what is missing; how many dialogues broke."""
    from mapo.cli.common.models import say_default_addresses
    from mapo.domain_folders import RUBRIC, domain_folder
    from mapo.evals.empa import benchmark as bench
    from mapo.players.identity import identity, moved
    from mapo.players.spec import models_by_role
    from mapo.runs.claim import claim, read_manifest
    from mapo.show.progress import dialogue_progress
    from mapo.store import RunDir, write_atomic

    out, domain = run.out, plan.scenarios[0].domain
    everyone = models_by_role(roles)
    session.check([policy, *everyone.values()], domain)  # before anything is written
    cast = {role: str(who) for role, who in roles.items()} if roles else "scripted"
    asked = {**bench.manifest(plan, rules, policy.model, cast), **identity(model=policy, **everyone)}
    kept = bench.prepare(out, asked, resume=run.resume)
    say_default_addresses([policy, *everyone.values()])
    say_all("warning", [f"{line} (played again)" for line in kept.bad])
    async with session:
        player = await session.policy(policy, domain)
        casting = session.casting(roles, rules.rubric, domain)
        claim(out, asked)
        write_atomic(RunDir(out).rubric, (domain_folder(domain) / RUBRIC).read_bytes())
        say_all("warning", moved(read_manifest(RunDir(out).manifest), asked))
        with dialogue_progress(len(plan.jobs()), len(kept.finished), session.cost) as (done, turned):

            def spent(dialogue: Dialogue) -> None:
                session.ledger.flush(RunDir(out).ledger_of())
                done(dialogue)

            try:
                played = await bench.run(
                    out,
                    plan,
                    player,
                    casting,
                    rules,
                    kept=kept,
                    concurrency=run.concurrency,
                    on_done=spent,
                    on_turn=turned,
                )
            finally:
                session.ledger.flush(RunDir(out).ledger_of())
    broken = [f"dialogue {d.id}: {d.error}" for d in played if d.error]
    say_all("broken", broken, most=10)
    return len(broken)
