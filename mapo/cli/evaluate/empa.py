"""mapo eval empa: long dialogues with simulated users, scored by EPM-Q."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say, say_all, say_failures, say_next_commands
from mapo.cli.common.options import (
    AgentsBody,
    Domain,
    JudgePanel,
    Judging,
    RunOptions,
    role_body,
    with_run_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mapo.evals.empa.benchmark import EmpaPlan, PreviousDialogues
    from mapo.measure.rubric import Rubric
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.players.spec import CastSpec, ModelSpec
    from mapo.sandbox.cast import Job, RolePrompts
    from mapo.sandbox.rollout import Rules
    from mapo.scenarios.scenario import Scenario
    from mapo.types import Dialogue, Goal

TOKENS_PER_TURN = 150
"""Tokens of a user's message and a reply, to warn when a context is too small for a dialogue."""
_KEY = "Environment variable with its API key (default: that of the same address)."
_SAME = "(default: --agents-base-url)"
_BODY = "Further fields of its requests, added to --agents-body."
_OWN = "with --prompts empa the package's"


@with_run_options(benchmark="empa")
def empa(
    run: RunOptions,
    model: Annotated[
        str,
        typer.Option(
            help="The policy: a model's name at an endpoint, local:FOLDER (local:pocket) or scripted:NAME."
        ),
    ],
    agents: Annotated[
        str | None,
        typer.Option(help="User, director and judge: scripted or llm (default: llm if a model is given)."),
    ] = None,
    agents_model: Annotated[
        str | None, typer.Option(help="Model for user, director and judge: a name, or local:FOLDER.")
    ] = None,
    agents_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    agents_key_env: Annotated[str | None, typer.Option(help=_KEY)] = None,
    agents_body: AgentsBody = None,
    judge_model: Annotated[
        str | None,
        typer.Option(
            help="Model for the judge (default: --agents-model). local:pocket-judge: the shipped one, for "
            "scripted people."
        ),
    ] = None,
    judge_base_url: Annotated[str | None, typer.Option(help=f"Its endpoint {_SAME}.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help=_KEY)] = None,
    judge_body: Annotated[str | None, typer.Option(help=_BODY)] = None,
    judge_panel: JudgePanel = None,
    judging: Judging = None,
    user_model: Annotated[
        str | None, typer.Option(help="Model for the user (default: --agents-model).")
    ] = None,
    user_base_url: Annotated[str | None, typer.Option(help=f"Its endpoint {_SAME}.")] = None,
    user_key_env: Annotated[str | None, typer.Option(help=_KEY)] = None,
    user_body: Annotated[str | None, typer.Option(help=_BODY)] = None,
    director_model: Annotated[
        str | None, typer.Option(help="Model for the director (default: --agents-model).")
    ] = None,
    director_base_url: Annotated[str | None, typer.Option(help=f"Its endpoint {_SAME}.")] = None,
    director_key_env: Annotated[str | None, typer.Option(help=_KEY)] = None,
    director_body: Annotated[str | None, typer.Option(help=_BODY)] = None,
    intent_user: Annotated[
        bool,
        typer.Option(
            "--intent-user",
            help="The user is a model trained to be one: it gets an intent, no director, and may leave.",
        ),
    ] = False,
    prompts: Annotated[
        str,
        typer.Option(
            help="Prompts of all roles: empa (those of EMPA's own package, which must be installed), or a "
            "folder of templates (default: mapo's, which judge more mildly than EMPA's)."
        ),
    ] = "",
    scenarios: Annotated[
        str | None,
        typer.Option(
            help="builtin:test|validation|train|all, or a folder of scenarios or EMPA cards (default: "
            "builtin:test; with --prompts empa the 30 official cases in EMPA's package)."
        ),
    ] = None,
    domain: Domain = None,
    start_levels: Annotated[
        Path | None, typer.Option(help="Start levels by scenario: a JSON file, or EMPA result files.")
    ] = None,
    cases: Annotated[
        str | None, typer.Option(help="Only these scenarios: a,b,c; official: EMPA's 30 test cases.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N scenarios.")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Dialogues per scenario.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of scripted roles and repeats.")] = 0,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Scoring rules: published or released (default: published; with --prompts empa released)."
        ),
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit (default: the rubric's).")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help=f"The policy's temperature (default: 1; local:pocket 0.4; {_OWN})."),
    ] = None,
    top_p: Annotated[float, typer.Option(max=1.0, help="The policy's top-p.")] = 1.0,
    user_temperature: Annotated[
        float | None, typer.Option(min=0.0, help="The user's temperature (default: 1).")
    ] = None,
    judge_temperature: Annotated[
        float | None, typer.Option(min=0.0, help="The judge's temperature (default: 0).")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Token limit of the policy's replies (default: 512; local:pocket 32; {_OWN})."
        ),
    ] = None,
    user_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token limit of the user's answers (default: 4096).")
    ] = None,
    director_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token limit of the director's answers (default: 4096).")
    ] = None,
    judge_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Token limit of judgements (default: 4096).")
    ] = None,
    no_system: Annotated[
        bool, typer.Option("--no-system", help="Send the policy no system prompt (default for local:pocket).")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show the nine sub-indices of EPM-Q.")
    ] = False,
) -> None:
    """Run the EMPA sandbox: long dialogues with simulated users, scored by EPM-Q.

    Without --agents-model, user, director and judge are scripted: a test world whose scores say nothing
    about real conversations. With --judge-model alone, a model judges the replies to scripted people.

    Exit status: 0 success; 1 some dialogues broke (run again with --resume); 2 the run could not continue;
    130 or 143 it was stopped by a signal.
    """
    from mapo.cli.common.stop import until_stopped
    from mapo.config import EMPA_PROMPTS
    from mapo.domain_folders import domain_folder
    from mapo.evals.compare.entries import read_json
    from mapo.evals.empa.benchmark import EmpaPlan
    from mapo.measure.rubric import Rubric
    from mapo.models.chat import Sampling
    from mapo.players.casting import cast_from_options, with_judge_panel, with_judging, with_sampling
    from mapo.players.spec import PartialSpec
    from mapo.runs.contamination import notice_of
    from mapo.sandbox.rollout import Rules
    from mapo.scenarios.start_levels import read_start_levels
    from mapo.scoring.score import score
    from mapo.scoring.tables import print_ledger, print_scoring
    from mapo.store import RunDir

    source, cases = (scenarios, cases) if scenarios else _default_source(prompts, cases)
    chosen = _chosen_scenarios(source, domain, cases)[:limit]
    rubric = Rubric.load(domain_folder(chosen[0].domain))
    policy = run.model_spec(model)
    models = cast_from_options(
        agents,
        PartialSpec(
            agents_model, agents_base_url, agents_key_env or _agents_key(run, model, agents_base_url)
        ),
        user=PartialSpec(user_model, user_base_url, user_key_env),
        director=PartialSpec(director_model, director_base_url, director_key_env),
        judge=PartialSpec(judge_model, judge_base_url, judge_key_env),
    )
    cast = with_sampling(
        with_judging(with_judge_panel(models, judge_panel), judging),
        user=Sampling(
            user_temperature, max_tokens=user_max_tokens, body=role_body("user", user_body, agents_body)
        ),
        director=Sampling(
            max_tokens=director_max_tokens, body=role_body("director", director_body, agents_body)
        ),
        judge=Sampling(
            judge_temperature, max_tokens=judge_max_tokens, body=role_body("judge", judge_body, agents_body)
        ),
    )
    templates = _chosen_prompts(prompts, source, domain, chosen, rubric, cast)
    if prompts == EMPA_PROMPTS and model.startswith("local:"):
        say("warning: EMPA's frequency and presence penalties of 0.7 do not apply to a local policy")
    defaults = _defaults_of(templates, policy)
    if intent_user:
        templates = _with_intent_user(templates, cast)
    rules = Rules(
        rubric,
        profile or defaults.profile,
        max_turns=max_turns,
        system=templates.policy_system if defaults.system and not no_system else None,
        temperature=defaults.temperature if temperature is None else temperature,
        top_p=top_p,
        max_tokens=max_tokens or defaults.max_tokens,
    )
    levels = read_start_levels(start_levels) if start_levels else defaults.start_levels
    plan = EmpaPlan(chosen, repeats, seed, levels, defaults.goals_from(levels))
    say_all("warning", plan.check(rubric))
    if max_turns is not None and max_turns < rubric.ending.min_turns:
        say(
            f"warning: no dialogue can pass with {max_turns} turns: success requires at least "
            f"{rubric.ending.min_turns}"
        )
    if cast is None or "user" not in cast:
        refuse_unscripted(plan)
    out, session = run.out, run.session()
    playing = play_missing(run, plan, policy, cast, rules, session, templates, preflight=True)
    broken = until_stopped(playing, out, lambda: finished_text(out, len(plan.jobs())))
    scoring = score(out)
    if scoring.models:
        print_scoring(scoring, everything=everything)
    notice = notice_of(read_json(RunDir(out).manifest))
    health_warnings = read_json(RunDir(out).health).get("warnings", [])
    say_all("warning", [*([notice] if notice else []), *scoring.torn, *scoring.bad, *health_warnings])
    print_ledger(session.ledger)
    say(f"dialogues: {RunDir(out).empa_dialogues}")
    say_next_commands(out)
    if broken or not scoring.models:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Defaults of options that depend on the prompts and the policy."""

    profile: str = "published"
    temperature: float = 1.0
    max_tokens: int = 512
    system: bool = True
    start_levels: Mapping[str, Mapping[str, int]] | None = None
    goals: Mapping[str, Goal] = field(default_factory=dict)

    def goals_from(self, levels: Mapping[str, Mapping[str, int]] | None) -> dict[str, Goal] | None:
        """Return the goals of the scenarios that start from the levels these goals belong to."""
        known = self.start_levels or {}
        same = {case for case in known if levels is not None and levels.get(case) == known[case]}
        return {case: goal for case, goal in self.goals.items() if case in same} or None


def _defaults_of(prompts: RolePrompts, policy: ModelSpec) -> _Defaults:
    from mapo.local_model.shipped import reply_defaults
    from mapo.sandbox.empa_package.prompts import EmpaPrompts

    if not isinstance(prompts, EmpaPrompts):
        reply = reply_defaults(policy.local)
        return _Defaults("published", reply.temperature, reply.max_tokens, reply.system)
    request = prompts.package.policy_request
    levels = prompts.start_levels or None
    return _Defaults("released", request.temperature, request.max_tokens, True, levels, prompts.goals)


def _default_source(prompts: str, cases: str | None) -> tuple[str, str | None]:
    """Return the scenarios and cases if none are named: with EMPA's prompts its official cases."""
    from mapo.config import EMPA_PROMPTS
    from mapo.errors import InputError
    from mapo.scenarios.empa_cards import card_files, official_cases

    if prompts != EMPA_PROMPTS:
        return "builtin:test", cases
    from mapo.sandbox.empa_package.package import load_package

    folder = load_package().data
    if not card_files(folder):
        raise InputError(
            "EMPA's package has no cards",
            where=str(folder),
            fix="Give a folder with cases/*.md and scenarios/character_stories.json: --scenarios DIR",
        )
    return str(folder), cases or ",".join(official_cases(folder))


def _chosen_prompts(
    name: str,
    source: str,
    domain: str | None,
    chosen: Sequence[Scenario],
    rubric: Rubric,
    cast: CastSpec | None,
) -> RolePrompts:
    """Return the prompts that --prompts names, and say where a package was found."""
    from mapo.config import EMPA_PROMPTS
    from mapo.errors import InputError
    from mapo.players.prompts import named_prompts
    from mapo.scenarios.sets import read_set

    if name == EMPA_PROMPTS and cast is None:
        raise InputError(
            "--prompts empa is for models, but user, director and judge are scripted",
            fix="Give --agents-model NAME --agents-base-url URL",
        )

    def files() -> dict[str, Path]:
        known = read_set(source, domain).files
        return {scenario.id: known[scenario.id] for scenario in chosen}

    prompts = named_prompts(name, rubric, files)
    if name == EMPA_PROMPTS:
        from mapo.sandbox.empa_package.package import load_package

        package = load_package()
        say(f"prompts: EMPA's package, version {package.version}, in {package.folder}")
    return prompts


def _with_intent_user(prompts: RolePrompts, cast: CastSpec | None) -> RolePrompts:
    from mapo.errors import InputError
    from mapo.players.prompts import with_intent_user

    if cast is None:
        raise InputError(
            "--intent-user is for models, but user, director and judge are scripted",
            fix="Give --agents-model NAME --agents-base-url URL",
        )
    return with_intent_user(prompts)


def refuse_unscripted(plan: EmpaPlan) -> None:
    """Raise InputError if scripted roles cannot play a scenario."""
    from mapo.sandbox.domain import check_scripted

    check_scripted(
        plan.scenarios,
        plan.scenarios[0].domain,
        "Give a model for user, director and judge: --agents-model NAME --agents-base-url URL",
    )


def _agents_key(run: RunOptions, model: str, base_url: str | None) -> str | None:
    """Return the key variable of the agents' address if none is named. The policy's key is the policy's."""
    from mapo.players.spec import ModelSpec, key_env_at

    has_endpoint = ModelSpec(model).address is not None
    return key_env_at(base_url, run.endpoint) if has_endpoint else None


def _chosen_scenarios(source: str, domain: str | None, cases: str | None) -> list[Scenario]:
    from mapo.scenarios.official import choose_cases
    from mapo.scenarios.sets import load_scenarios

    return choose_cases(load_scenarios(source, domain), cases, source)


def finished_text(out: Path, total: int) -> str:
    """Return how many of `total` dialogues are finished, as text."""
    from mapo.evals.empa.benchmark import read_previous

    return f"{len(read_previous(out).finished)} of {total} dialogues are finished"


async def play_missing(
    run: RunOptions,
    plan: EmpaPlan,
    policy: ModelSpec,
    cast: CastSpec | None,
    rules: Rules,
    session: ModelSession,
    prompts: RolePrompts | None = None,
    *,
    preflight: bool = False,
) -> int:
    """Play the dialogues that are missing in the run directory. Return how many broke.

    With `preflight`, the models are checked and an estimate is printed first. Without `prompts`, models get
    mapo's own.
    """
    from mapo.cli.common.models import say_default_addresses
    from mapo.evals.empa import benchmark
    from mapo.players.identity import body_entry, identity
    from mapo.players.reading import check_starts, reading_prompts
    from mapo.players.spec import models_by_role
    from mapo.runs.contamination import marks
    from mapo.sandbox.cast import prompts_id
    from mapo.sandbox.model_cast import SHIPPED_PROMPTS

    models = {"policy": policy, **models_by_role(cast)}
    session.check(models, plan.scenarios[0].domain)  # before anything is written
    scripted = dict.fromkeys(("user", "director"), "scripted") if "user" not in (cast or {}) else {}
    players = {**scripted, **{role: str(player) for role, player in cast.items()}} if cast else "scripted"
    identities = identity(model=policy, **models_by_role(cast))
    context = _local_context(policy, run.context)
    prompts = prompts or SHIPPED_PROMPTS
    unknown = {job.scenario.id for job in plan.jobs() if not (job.start_levels or job.scenario.start_levels)}
    check_starts(models_by_role(cast), unknown)
    played = reading_prompts(prompts, cast) if cast else prompts
    used = prompts_id(played, plan.scenarios[0].domain) if cast or policy.scripted is None else ""
    manifest = {**benchmark.manifest(plan, rules, policy.model, players, used), **identities}
    manifest |= body_entry(policy) if context is None else {"context": context}
    manifest |= marks(policy.local, [s.id for s in plan.scenarios])
    previous = benchmark.prepare(run.out, manifest, resume=run.resume)
    say_default_addresses(models.values())
    say_all("warning", [f"{line} (will be played again)" for line in previous.bad])
    finished = {dialogue.id for dialogue in previous.finished}
    jobs = [job for job in plan.jobs() if job.id not in finished]
    if jobs and preflight:
        await _check_models(jobs, policy, cast, rules, session, context)
    if jobs and policy.local is not None:
        say(f"loading the model {policy.local} ...")
    async with session:
        dialogues = await _play(run, plan, policy, cast, rules, session, prompts, manifest, previous)
    return _say_losses(dialogues, context)


async def _check_models(
    jobs: Sequence[Job],
    policy: ModelSpec,
    cast: CastSpec | None,
    rules: Rules,
    session: ModelSession,
    context: int | None,
) -> None:
    """Check that the models answer, print an estimate of their calls, and warn about a small context."""
    from mapo.cli.common.preflight import preflight_async
    from mapo.players.spec import models_by_role

    max_turns = rules.max_turns or rules.rubric.ending.max_turns
    if context is not None and context < max_turns * TOKENS_PER_TURN:
        say(
            f"warning: {max_turns} turns usually need more than the context of {context:,} tokens. Dialogues "
            "that fill it end early and cannot pass. Raise --context if the model allows more, or lower "
            "--max-turns"
        )
    await preflight_async(
        {"policy": policy, **models_by_role(cast)},
        estimate=estimate_jobs(jobs, policy, cast, rules),
        cache_mode=session.cache_mode,
        cache=session.cache,
    )


async def _play(
    run: RunOptions,
    plan: EmpaPlan,
    policy: ModelSpec,
    cast: CastSpec | None,
    rules: Rules,
    session: ModelSession,
    prompts: RolePrompts,
    manifest: dict[str, Any],
    previous: PreviousDialogues,
) -> list[Dialogue]:
    """Claim the run directory and play what is missing in it. Return all dialogues of the plan."""
    from mapo.domain_folders import RUBRIC, domain_folder
    from mapo.evals.empa import benchmark
    from mapo.players.identity import moved
    from mapo.runs.claim import claim, read_manifest
    from mapo.show.progress import dialogue_progress
    from mapo.store import RunDir, write_atomic

    out, domain = run.out, plan.scenarios[0].domain
    player = await session.policy(policy, domain)
    if policy.scripted is None:
        player = prompts.policy(player)
    casting = await session.casting(cast, rules.rubric, domain, prompts)
    claim(out, manifest)
    benchmark.add_scenarios(out, manifest)
    write_atomic(RunDir(out).rubric, (domain_folder(domain) / RUBRIC).read_bytes())
    say_all("warning", moved(read_manifest(RunDir(out).manifest), manifest))
    with dialogue_progress(
        len(plan.jobs()), len(previous.finished), session.cost, session.ledger.activity.snapshot
    ) as (on_done, on_turn):

        def flush_and_show(dialogue: Dialogue) -> None:
            session.ledger.flush(RunDir(out).ledger_of())
            on_done(dialogue)

        try:
            return await benchmark.run(
                out,
                plan,
                player,
                casting,
                rules,
                previous=previous,
                concurrency=run.concurrency,
                on_done=flush_and_show,
                on_turn=on_turn,
            )
        finally:
            session.ledger.flush(RunDir(out).ledger_of())


def _say_losses(dialogues: Sequence[Dialogue], context: int | None) -> int:
    """Print which dialogues broke, lost their director or filled a context. Return how many broke."""
    from mapo.sandbox.director import director_failures
    from mapo.types import StopReason

    broken = [(d.id, d.error) for d in dialogues if d.error]
    say_failures("broken", "dialogue", broken)
    say_all("warning", director_failures(dialogues))
    full = [d.ending.detail for d in dialogues if d.ending and d.ending.reason is StopReason.LENGTH]
    owners = {"policy": f" ({context or 'of its endpoint'})", "user": ""}
    for owner, size in owners.items():
        if count := sum((owner == "user") == ("user" in detail) for detail in full):
            say(
                f"warning: {count} of {len(dialogues)} dialogues ended because the {owner}'s context{size} "
                "was full, so their scores are those of a shorter dialogue"
            )
    return len(broken)


def _local_context(policy: ModelSpec, requested: int) -> int | None:
    """Return the context that a local policy is sampled with; None for other policies."""
    if policy.local is None:
        return None
    from mapo.local_model.checks import longest_context

    return min(requested, longest_context(policy.local) or requested)


def estimate_jobs(
    jobs: Sequence[Job], policy: ModelSpec, cast: CastSpec | None, rules: Rules
) -> Estimate | None:
    """Estimate the calls of endpoints; None if all roles are scripted or local."""
    from mapo.planning.demand import AGENT_ROLES, POLICY
    from mapo.planning.estimate import estimate_dialogues
    from mapo.players.spec import models_by_role

    served = [role for role, spec in models_by_role(cast).items() if spec.address is not None]
    agents = [role for role in AGENT_ROLES if any(name.startswith(role) for name in served)]
    roles = [*([POLICY] if policy.address is not None else []), *agents]
    if not roles:
        return None
    judges = sum(name.startswith("judge") for name in served)
    max_turns = rules.max_turns or rules.rubric.ending.max_turns
    starts = len({job.scenario.id for job in jobs if not (job.start_levels or job.scenario.start_levels)})
    return estimate_dialogues(
        len(jobs), max_turns, roles, judges=judges, starts=starts, max_tokens=rules.max_tokens
    )
