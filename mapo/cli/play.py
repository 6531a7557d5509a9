"""mapo play: sit in the sandbox yourself, and see the state move."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.options import AgentsBody, Body, Domain, JudgePanel
from mapo.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.models.chat import Answer, Chat, Request
    from mapo.players.spec import ModelSpec, PartialSpec
    from mapo.types import Direction, Turn


def play(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="Id of a scenario (default: a random one of --scenarios)."),
    ] = None,
    role: Annotated[str, typer.Option("--as", help="Your role: policy or user.")] = "policy",
    scenarios: Annotated[str, typer.Option(help="Set of scenarios to choose from.")] = "builtin:train",
    domain: Domain = None,
    model: Annotated[
        str,
        typer.Option(
            help="Policy if you play the user: a model, local:FOLDER (local:pocket) or scripted:NAME."
        ),
    ] = "scripted:honest",
    base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    body: Body = None,
    agents_model: Annotated[
        str | None, typer.Option(help="Model for the other roles: a name, or local:FOLDER.")
    ] = None,
    agents_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    agents_body: AgentsBody = None,
    judge_model: Annotated[
        str | None,
        typer.Option(
            help="Model for the judge alone: a name, local:FOLDER, or scripted for plain code (default for "
            "scripted people of the default domain: local:pocket-judge)."
        ),
    ] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    judge_panel: JudgePanel = None,
    key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPENAI_API_KEY",
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="The policy's temperature (default: 1; local:pocket 0.4)."),
    ] = None,
    top_p: Annotated[float, typer.Option(max=1.0, help="The policy's top-p.")] = 1.0,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Token limit of the policy's replies (default: 512; local:pocket 32)."),
    ] = None,
    no_system: Annotated[
        bool, typer.Option("--no-system", help="Send the policy no system prompt (default for local:pocket).")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the scripted roles and of the choice of a scenario (default: random)."),
    ] = None,
) -> None:
    """Hold a dialogue in the sandbox yourself, as the policy or the user.

    An empty line or Ctrl-D ends the dialogue. Without --agents-model, user and director are scripted: a test
    world that says nothing about real people. The judge is local:pocket-judge in the default domain and
    plain code in others; --judge-model names another one.

    To talk with the shipped policy: mapo play --as user --model local:pocket
    """
    import asyncio
    import random
    from dataclasses import replace

    from mapo.body_fields import body_option
    from mapo.domain_folders import domain_folder
    from mapo.errors import AnswerError, InputError
    from mapo.local_model.shipped import reply_defaults
    from mapo.measure.rubric import Rubric
    from mapo.models.chat import Sampling
    from mapo.players.casting import with_judge_panel, with_sampling
    from mapo.players.preflight import check_models
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PartialSpec, models_by_role
    from mapo.sandbox.cast import Job
    from mapo.sandbox.model_cast import policy_system
    from mapo.sandbox.rollout import Rules
    from mapo.sandbox.rollout import play as play_one
    from mapo.scenarios.sets import load_scenarios
    from mapo.scripted.world import world_notice, world_of

    if role not in ("policy", "user", "helper"):  # helper: the policy's former name
        raise InputError(f"--as is '{role}'", fix="Use policy or user")
    known = {s.id: s for s in load_scenarios(scenarios, domain)}
    name = scenario or random.Random(seed).choice(sorted(known))  # noqa: S311 (no secret)
    if name not in known:
        fix = f"To list them: mapo scenarios list {quote(scenarios)}"
        fix += f" --domain {quote(domain)}" if domain else ""
        if scenarios in ("builtin:train", "builtin:validation"):
            fix += ". --scenarios builtin:all includes the held-out ones"
        raise InputError(f"there is no scenario '{name}'", where=scenarios, fix=fix)
    own = Sampling(body=body_option(body, "--body"))
    others = Sampling(body=body_option(agents_body, "--agents-body"))
    agents = PartialSpec(agents_model, agents_base_url, key_env)
    models = with_judge_panel(_cast(agents, PartialSpec(judge_model, judge_base_url)), judge_panel)
    roles = with_sampling(models, **dict.fromkeys(models or ("user", "director", "judge"), others))
    if roles is None and judge_model is None:
        roles = _shipped_judge(known[name].domain)
    check_models(models_by_role(roles).values())
    chosen, policy_spec = known[name], ModelSpec(model, base_url, key_env, own)
    defaults = reply_defaults(policy_spec.local)
    rubric = Rubric.load(domain_folder(chosen.domain))
    rules = Rules(
        rubric,
        system=policy_system if defaults.system and not no_system else None,
        temperature=defaults.temperature if temperature is None else temperature,
        top_p=top_p,
        max_tokens=max_tokens or defaults.max_tokens,
    )
    person = chosen.persona
    typer.echo(printable(f"{person.name}, {person.age}: {chosen.topic}"))
    axes = ", ".join(f"{axis.title.lower()} ({axis.key})" for axis in rubric.axes)
    typer.echo(
        f"State: {axes}; all start below zero, and the goal is zero.\n"
        "Distance: how far the state is from the target zone. Energy: movement towards the goal so far, "
        "summed over the turns.\nAn empty line ends the dialogue.\n"
    )

    async def play_dialogue() -> None:
        async with ModelSession(concurrency=4) as session:
            job = Job(chosen, id=f"play-{chosen.id}", seed=seed or 0)
            cast = (await session.casting(roles, rubric, chosen.domain))(job)
            if roles:
                typer.echo(printable(f"Judge: {cast.names['judge']}"))
            if world := world_of(rubric.name, cast.names):
                typer.echo(f"{world_notice([world])}\n")
            policy: Chat = _HumanPolicy()
            if role == "user":
                policy = (await session.policy(policy_spec, chosen.domain))(job)
                cast = replace(cast, user=_HumanUser(), names={**cast.names, "user": "you"})
                if policy_spec.scripted is not None:
                    typer.echo(
                        "The scripted policy reads the scenario, not what you type. For one that reads you, "
                        "use --model local:pocket.\n"
                    )
                typer.echo(printable(f"you (the opening of this scenario): {chosen.opening}"))
            dialogue = await play_one(job, policy, cast, rules, lambda t: _show(t, role, rubric.keys))
            if dialogue.error and _ENDED_BY_PLAYER not in dialogue.error:
                raise AnswerError(dialogue.error)
            if dialogue.ending and dialogue.error is None:
                detail = ", ".join(dialogue.ending.detail)
                typer.echo(
                    f"\nThe dialogue ended: {dialogue.ending.reason.label}{f' ({detail})' if detail else ''}."
                )

    asyncio.run(play_dialogue())


def _cast(agents: PartialSpec, judge: PartialSpec) -> dict[str, ModelSpec] | None:
    """Return the models of user, director and judge, of the judge alone, or None if all are scripted."""
    from mapo.errors import InputError
    from mapo.players.casting import cast_from_options
    from mapo.players.spec import PartialSpec

    if agents.model:
        return cast_from_options("llm", agents, user=PartialSpec(), director=PartialSpec(), judge=judge)
    if judge.base_url and not judge.model:
        raise InputError("--judge-base-url has no effect on a scripted judge", fix="Give --judge-model")
    # Without other models, the key is the judge's.
    return cast_from_options("scripted", PartialSpec(), judge=judge._replace(key_env=agents.key_env))


def _shipped_judge(domain: str) -> dict[str, ModelSpec] | None:
    """Return the shipped judge for scripted people of its domain, or None where it cannot be used: in other
    domains, and without the packages of the local engine."""
    from mapo.domain_folders import DEFAULT, SHIPPED_JUDGE
    from mapo.errors import InputError
    from mapo.local_model.requirements import require_torch
    from mapo.players.spec import ModelSpec

    if domain != DEFAULT:
        return None
    try:
        require_torch()
    except InputError as error:
        typer.echo(f"Using the plain-code judge, because local:{SHIPPED_JUDGE} needs torch. {error.fix}")
        return None
    return {"judge": ModelSpec(f"local:{SHIPPED_JUDGE}")}


_ENDED_BY_PLAYER = "the player ended the dialogue"


async def _line(prompt: str) -> str:
    """Read a line from the terminal; raise AnswerError if it is empty."""
    import asyncio
    import contextlib
    import threading

    from mapo.errors import AnswerError

    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def set_line(text: str) -> None:
        if not typed.done():
            typed.set_result(text)

    def read() -> None:
        try:
            text = input(prompt).strip()
        except (EOFError, OSError):
            text = ""
        with contextlib.suppress(RuntimeError):  # the dialogue has ended in the meantime
            loop.call_soon_threadsafe(set_line, text)

    # A daemon thread, so that Ctrl-C ends the command at once.
    threading.Thread(target=read, daemon=True).start()
    text = await typed
    if not text:
        raise AnswerError(_ENDED_BY_PLAYER)
    return text


class _HumanPolicy:
    """A policy whose replies are typed."""

    name = "you"

    async def reply(self, request: Request) -> Answer:
        from mapo.models.chat import Answer
        from mapo.types import Reply

        typer.echo(f"them: {printable(request.messages[-1].content)}")
        return Answer(Reply(await _line("you: ")))


class _HumanUser:
    """A user whose messages are typed."""

    async def speak(self, turns: Sequence[Turn], direction: Direction) -> str:
        del turns, direction
        return await _line("you: ")


def _show(turn: Turn, role: str, axes: Sequence[str]) -> None:
    if role == "user":
        typer.echo(f"them: {printable(turn.reply.text)}")
    if turn.levels is None or turn.state is None:
        typer.echo(f"  [not judged: {printable(turn.unscored or '')}]")
        return
    for key, marks in turn.levels.items():
        for place, mark in enumerate((marks.progress, marks.regression), 2 * axes.index(key)):
            if mark.level:
                reason = f"{mark.reason}: {mark.evidence}" if mark.evidence else mark.reason
                # Levels that were read out have a probability instead of a reason.
                share = f"({turn.probabilities[place][abs(mark.level)]:.0%}) " if turn.probabilities else ""
                typer.echo(f"  {key} {mark.level:+d}  {share}{printable(reason)}".rstrip())
    if not any(mark.level for marks in turn.levels.values() for mark in (marks.progress, marks.regression)):
        typer.echo("  level 0 on every axis")
    position = ", ".join(f"{x:g}" for x in turn.state.position)
    reward = "" if turn.reward is None else f"reward {turn.reward:+.2f}, "
    distance, energy = turn.state.distance, turn.state.energy
    typer.echo(f"  {reward}state ({position}), distance {distance:.1f}, energy {energy:.1f}\n")
