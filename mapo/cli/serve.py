"""mapo serve: the sandbox as an OpenEnv environment."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mapo.cli.common.messages import say, say_all, say_next_commands
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
    import socket

    from mapo.evals.empa.benchmark import EmpaPlan, Recorder
    from mapo.players.session import ModelSession
    from mapo.players.spec import CastSpec
    from mapo.sandbox.rollout import Rules
    from mapo.types import Dialogue

TOKEN = "MAPO_SERVE_TOKEN"  # noqa: S105 (the name of a variable)
_KEY = "Environment variable with its API key (default: that of the same address)."
_SAME = "(default: --agents-base-url)"
_ROLE = "(default: --agents-model)"


@with_run_options(without=("base_url", "key_env", "body", "context", "concurrency"), out=None)
def serve(
    run: RunOptions,
    scenarios: Annotated[
        str, typer.Option(help="builtin:train|validation|test|all, or a folder of scenarios or EMPA cards.")
    ] = "builtin:train",
    domain: Domain = None,
    cases: Annotated[str | None, typer.Option(help="Only these scenarios: a,b,c.")] = None,
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
    judge_model: Annotated[str | None, typer.Option(help=f"Model for the judge {_ROLE}.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help=f"Its endpoint {_SAME}.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help=_KEY)] = None,
    judge_panel: JudgePanel = None,
    judging: Judging = None,
    user_model: Annotated[str | None, typer.Option(help=f"Model for the user {_ROLE}.")] = None,
    user_base_url: Annotated[str | None, typer.Option(help=f"Its endpoint {_SAME}.")] = None,
    user_key_env: Annotated[str | None, typer.Option(help=_KEY)] = None,
    director_model: Annotated[str | None, typer.Option(help=f"Model for the director {_ROLE}.")] = None,
    director_base_url: Annotated[str | None, typer.Option(help=f"Its endpoint {_SAME}.")] = None,
    director_key_env: Annotated[str | None, typer.Option(help=_KEY)] = None,
    reward: Annotated[str, typer.Option(help="Reward of a turn: idr, adr, potential or outcome.")] = "idr",
    profile: Annotated[str, typer.Option(help="Scoring rules: published or released.")] = "published",
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit (default: the rubric's).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of scripted roles, combined with that of a reset.")] = 0,
    no_system: Annotated[
        bool, typer.Option("--no-system", help="Leave the system prompt out of the conversation.")
    ] = False,
    model: Annotated[str, typer.Option(help="The policy's name in the records of --out.")] = "policy",
    host: Annotated[
        str,
        typer.Option(
            help=f"Address to listen on. Any other than loopback requires a token: ${TOKEN}, or a random one "
            "that is printed."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 8766,
    sessions: Annotated[int, typer.Option(min=1, max=10_000, help="Sessions at once.")] = 64,
    idle: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a session ends whose client sends nothing.")
    ] = 1800.0,
) -> None:
    """Serve the sandbox as an OpenEnv environment: a trainer sends the policy's replies and gets the person's
    answers and the reward of every turn (docs/openenv.md).

    Finished dialogues are recorded as a run in --out, if it is given. Ctrl-C stops the server.
    """
    import asyncio
    import importlib.util
    from shlex import quote

    from mapo.cli.evaluate.empa import refuse_unscripted
    from mapo.domain_folders import domain_folder
    from mapo.errors import InputError, install_hint
    from mapo.evals.empa.benchmark import EmpaPlan
    from mapo.listening import listening, token_for
    from mapo.measure.reward import RANK
    from mapo.measure.rubric import Rubric
    from mapo.models.chat import Sampling
    from mapo.players.casting import cast_from_options, with_judge_panel, with_judging, with_sampling
    from mapo.players.spec import PartialSpec
    from mapo.sandbox.model_cast import SHIPPED_PROMPTS
    from mapo.sandbox.rollout import Rules
    from mapo.scenarios.official import choose_cases
    from mapo.scenarios.sets import load_scenarios
    from mapo.store import RunDir
    from mapo.text import counted

    if importlib.util.find_spec("openenv") is None:
        raise InputError("the server needs openenv", fix=install_hint("openenv"))
    if reward == RANK:
        raise InputError(
            "--reward is 'rank', but a server sees dialogues one by one", fix="Use another reward"
        )
    chosen = choose_cases(load_scenarios(scenarios, domain), cases, scenarios)
    rubric = Rubric.load(domain_folder(chosen[0].domain))
    models = cast_from_options(
        agents,
        PartialSpec(agents_model, agents_base_url, agents_key_env),
        user=PartialSpec(user_model, user_base_url, user_key_env),
        director=PartialSpec(director_model, director_base_url, director_key_env),
        judge=PartialSpec(judge_model, judge_base_url, judge_key_env),
    )
    body = Sampling(body=role_body("agents", None, agents_body))
    cast = with_sampling(
        with_judging(with_judge_panel(models, judge_panel), judging), user=body, director=body, judge=body
    )
    rules = Rules(
        rubric,
        profile,
        reward,
        max_turns=max_turns,
        system=None if no_system else SHIPPED_PROMPTS.policy_system,
    )
    plan = EmpaPlan(chosen, seed=seed)
    if cast is None or "user" not in cast:
        refuse_unscripted(plan)
    token = token_for(host, TOKEN)
    listener = listening(host, port)
    try:
        limits = Limits(model, host, token, sessions, idle)
        count = asyncio.run(_serve(run, plan, cast, rules, listener, limits))
    finally:
        listener.close()
    say(f"stopped; {counted(count, 'dialogue')} ended")
    if run.out and count:
        say(f"dialogues: {RunDir(run.out).empa_dialogues}")
        say(f"score: mapo score {quote(str(run.out))}")
        say_next_commands(run.out)


class Limits(NamedTuple):
    """Who may connect, and how much."""

    model: str
    host: str
    token: str
    sessions: int
    idle: float


async def _serve(
    run: RunOptions,
    plan: EmpaPlan,
    cast: CastSpec | None,
    rules: Rules,
    listener: socket.socket,
    limits: Limits,
) -> int:
    """Open the models and the run directory, and serve. Return how many dialogues ended."""
    from mapo.cli.common.models import say_default_addresses
    from mapo.cli.common.preflight import preflight_async
    from mapo.evals.empa.benchmark import prepare, read_previous, write_health
    from mapo.players.reading import check_starts
    from mapo.players.spec import models_by_role
    from mapo.store import RunDir

    out, domain, models = run.out, plan.scenarios[0].domain, models_by_role(cast)
    check_starts(models, {s.id for s in plan.scenarios if not s.start_levels})
    count = 0
    async with AsyncExitStack() as stack:
        session = _session(run, limits.sessions, stack)
        session.check(models, domain)
        manifest = _manifest(plan, cast, rules, limits.model)
        previous = prepare(out, manifest, resume=run.resume) if out else None
        say_default_addresses(models.values())
        if models:
            await preflight_async(models, cache_mode=session.cache_mode, cache=session.cache)
        # openenv takes seconds to import, so what can be wrong is checked before.
        from mapo.engines.openenv.environment import ServedSandbox
        from mapo.engines.openenv.server import make_app, serve

        await stack.enter_async_context(session)
        casting = await session.casting(cast, rules.rubric, domain)
        recorder = stack.enter_context(_recorder(out, manifest, domain, rules)) if out else None

        def on_done(dialogue: Dialogue) -> None:
            nonlocal count
            count += 1
            if recorder and out:
                recorder.write(dialogue)
                session.ledger.flush(RunDir(out).ledger_of())

        sandbox = ServedSandbox(
            plan.scenarios,
            casting,
            rules,
            seed=plan.seed,
            model=limits.model,
            on_done=on_done,
            taken={d.id for d in (*previous.finished, *previous.failed)} if previous else (),
        )
        app = make_app(sandbox, sessions=limits.sessions, idle=limits.idle, token=limits.token)
        _say_where(listener, limits, len(plan.scenarios))
        try:
            await serve(app, listener, limits.sessions)
        finally:
            if out:
                write_health(out, read_previous(out).finished, plan.scenarios)
    return count


def _session(run: RunOptions, sessions: int, stack: AsyncExitStack) -> ModelSession:
    """Return the session of the roles' models. Without a run directory, its cache is a temporary file: the
    start form of a person is filled in once for all siblings."""
    out = run.out or Path(stack.enter_context(TemporaryDirectory(prefix="mapo-serve-")))
    return replace(run, out=out, concurrency=sessions).session()


def _manifest(plan: EmpaPlan, cast: CastSpec | None, rules: Rules, model: str) -> dict[str, Any]:
    """Return the manifest of the recorded run: that of an EMPA run whose policy is elsewhere."""
    from mapo.evals.empa.benchmark import manifest
    from mapo.players.identity import identity
    from mapo.players.reading import reading_prompts
    from mapo.players.spec import models_by_role
    from mapo.sandbox.cast import prompts_id
    from mapo.sandbox.model_cast import SHIPPED_PROMPTS

    scripted = dict.fromkeys(("user", "director"), "scripted") if "user" not in (cast or {}) else {}
    players = {**scripted, **{role: str(player) for role, player in cast.items()}} if cast else "scripted"
    prompts = reading_prompts(SHIPPED_PROMPTS, cast) if cast else SHIPPED_PROMPTS
    used = prompts_id(prompts, plan.scenarios[0].domain)
    served = {"served": "openenv", **identity(**models_by_role(cast))}
    return {**manifest(plan, rules, model, players, used), **served}


def _recorder(out: Path, manifest: dict[str, Any], domain: str, rules: Rules) -> Recorder:
    """Claim the run directory and return the writer of its dialogues."""
    from mapo.domain_folders import RUBRIC, domain_folder
    from mapo.evals.empa.benchmark import Recorder
    from mapo.players.identity import moved
    from mapo.runs.claim import claim, read_manifest
    from mapo.store import RunDir, write_atomic

    claim(out, manifest)
    write_atomic(RunDir(out).rubric, (domain_folder(domain) / RUBRIC).read_bytes())
    say_all("warning", moved(read_manifest(RunDir(out).manifest), manifest))
    return Recorder(out, rules.rubric)


def _say_where(listener: socket.socket, limits: Limits, scenarios: int) -> None:
    """Print the address and how to connect."""
    from mapo.listening import addresses_of

    shown = addresses_of(limits.host)[0]
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}"
    headers = f', headers={{"Authorization": "Bearer {limits.token}"}}' if limits.token else ""
    say(f"{address}   ({scenarios} scenarios, {limits.sessions} sessions at once; press Ctrl-C to stop)")
    say(f'connect: mapo.engines.openenv.DialogueClient("{address}"{headers})')
