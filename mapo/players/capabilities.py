"""What a local model can play and how fast, for `mapo doctor`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mapo.domain_folders import DEFAULT, domain_folder
from mapo.errors import ContextError, InputError, MapoError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Request
from mapo.players.preflight import LARGE
from mapo.players.reading import check_trained_roles, role_file_of
from mapo.players.spec import ModelSpec
from mapo.sandbox.director import FORM
from mapo.sandbox.judge import ModelJudge, start_schema, turn_schema, turn_system
from mapo.sandbox.reading_roles import ReadJudge
from mapo.sandbox.readout import act_menu, act_places, turn_places
from mapo.scenarios.sets import load_scenarios
from mapo.types import Message, Reply, Turn

if TYPE_CHECKING:
    from mapo.sampling.sampler import Sampler
    from mapo.scenarios.scenario import Scenario

TURNS = 4
"""Turns of the dialogues that are judged."""
_TOKENS_PER_TURN = 200
_ROLE_TURNS = 15


class Capability(NamedTuple):
    """One thing that a model can or cannot do."""

    name: str
    status: Literal["ok", "warn", "FAIL"]
    message: str


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured rates per second, with so many dialogues at once. Forms are a judge's turn forms."""

    dialogues: int
    tokens: float
    forms: float
    readouts: float

    def __str__(self) -> str:
        return (
            f"with {self.dialogues} dialogues at once, per second: {self.tokens:.0f} tokens of replies, "
            f"{self.forms:.2f} judgements as forms, {self.readouts:.1f} read out"
        )


def role_capabilities(source: str) -> list[Capability]:
    """Return which roles the model in a folder can play, without loading its weights."""
    from mapo.local_model.policy import load_tokenizer, max_context
    from mapo.local_model.template import read_template
    from mapo.sampling.guides import Guides

    rubric, scenario = Rubric.load(domain_folder(DEFAULT)), load_scenarios("builtin:train")[0]
    template = read_template(load_tokenizer(source))
    guides = Guides(template.tokenizer, len(template.tokenizer), template.end_ids)

    def needs() -> str:
        schemas = {"turn form": turn_schema(rubric), "start form": start_schema(rubric), "act": FORM}
        lengths = {name: guides.needed(schema) for name, schema in schemas.items()}
        for schema in schemas.values():
            guides.guide(schema, guides.needed(schema))
        return ", ".join(f"{name} from {tokens} tokens" for name, tokens in lengths.items())

    def readable() -> str:
        from mapo.local_model.forms import form_tokens

        form_tokens(template.tokenizer, turn_places(rubric))
        form_tokens(template.tokenizer, act_places(act_menu(scenario, rubric)))
        return "levels and acts are single tokens, so judging = 'readout' works"

    def context() -> str:
        system = Message("system", turn_system(scenario, rubric))
        prompt = len(template.full_prompt((system, Message("user", scenario.opening))))
        needed = prompt + _ROLE_TURNS * _TOKENS_PER_TURN + guides.needed(turn_schema(rubric))
        longest = max_context(source)
        if longest is not None and longest < needed:
            raise InputError(
                f"{longest} tokens: a judge needs about {needed} for {_ROLE_TURNS} turns",
                fix="Use fewer turns, or another model as judge and director",
            )
        return f"{longest or 'unknown'} tokens; a judge needs about {needed} for {_ROLE_TURNS} turns"

    checks = {"forms": needs, "readout": readable, "context": context}
    capabilities = [_capability(name, check) for name, check in checks.items()]
    answers = any(c.status == "ok" for c in capabilities if c.name in ("forms", "readout"))
    return [_roles(source, rubric, answers), *capabilities]


def _roles(source: str, rubric: Rubric, answers: bool) -> Capability:
    """Return the roles that a model may play: all that it can, or the one that it was trained for."""
    from mapo.local_model.role_file import ROLES

    spec = ModelSpec(f"local:{source}")
    try:
        file = role_file_of(spec)
        if file is None:
            roles = ["policy", "user", *(["director", "judge"] if answers else [])]
            return Capability("roles", "ok" if answers else "warn", ", ".join(roles))
        check_trained_roles({file.role: spec}, rubric)
    except MapoError as error:
        return Capability("roles", "FAIL", str(error))
    others = ", ".join(role for role in ROLES if role != file.role)
    return Capability(
        "roles", "ok", f"trained as {file.role} for the rubric '{file.rubric}'; refused as {others}"
    )


def _capability(name: str, check: Callable[[], str]) -> Capability:
    try:
        return Capability(name, "ok", check())
    except MapoError as error:
        return Capability(name, "warn", str(error))


def measured_speed(source: str) -> Capability:
    """Load a model and measure its speed in a few seconds."""
    from mapo.local_model.devices import has_gpu
    from mapo.local_model.memory import (
        GIB,
        available_memory,
        model_size,
        plan_memory,
        sampling_need,
        width_on,
    )
    from mapo.local_model.policy import folder_of

    folder = folder_of(source)
    size = model_size(folder) if folder else None
    dialogues = 16 if has_gpu() else 2
    try:
        if size is not None:
            width = width_on("auto")
            if not has_gpu() and size.parameters * width > LARGE:  # it would take minutes
                weights = size.parameters * width / GIB
                return Capability(
                    "speed", "warn", f"not measured: {weights:.0f} GiB of weights without a GPU"
                )
            need = sampling_need(size, source, ("judge",), slots=dialogues, context=4096, width=width)
            plan_memory([need], *available_memory("auto"))
        return Capability("speed", "ok", str(asyncio.run(measure_speed(source, dialogues))))
    except ContextError as error:
        return Capability("speed", "warn", f"not measured: {error}")
    except MapoError as error:
        return Capability("speed", "FAIL", str(error))


async def measure_speed(source: str, dialogues: int, tokens: int = 48) -> Speed:
    """Return the speed of a model in `dialogues` dialogues at once."""
    from mapo.sampling.local import local_sampler

    rubric, scenario = Rubric.load(domain_folder(DEFAULT)), load_scenarios("builtin:train")[0]
    sampler = local_sampler(source, slots=dialogues, context=4096)
    async with sampler:
        await _timed(_replies(sampler, scenario, dialogues, 8))  # compiles and records on a GPU
        sampled = sampler.stats.sampled
        seconds = await _timed(_replies(sampler, scenario, dialogues, tokens))
        replies = (sampler.stats.sampled - sampled) / seconds
        forms = dialogues / await _timed(_forms(sampler, scenario, rubric, dialogues))
        readouts = dialogues * TURNS / await _timed(_readouts(sampler, scenario, rubric, dialogues))
    return Speed(dialogues, replies, forms, readouts)


async def _timed(calls: Iterator[Coroutine[Any, Any, Any]]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*calls)
    return time.perf_counter() - began


def _turns(scenario: Scenario, count: int) -> list[Turn]:
    reply = Reply("That sounds hard. What happened then, and who was there with you?")
    return [Turn(f"{scenario.opening} ({n})", reply) for n in range(1, count + 1)]


def _replies(
    sampler: Sampler, scenario: Scenario, count: int, tokens: int
) -> Iterator[Coroutine[Any, Any, Any]]:
    chat = sampler.role("user")
    for n in range(count):
        yield chat.reply(Request((Message("user", scenario.opening),), max_tokens=tokens, seed=n))


def _forms(
    sampler: Sampler, scenario: Scenario, rubric: Rubric, count: int
) -> Iterator[Coroutine[Any, Any, Any]]:
    chat = sampler.role("judge")
    for n in range(count):
        yield ModelJudge(chat, scenario, rubric, session=f"form {n}").judge(_turns(scenario, 1))


def _readouts(
    sampler: Sampler, scenario: Scenario, rubric: Rubric, count: int
) -> Iterator[Coroutine[Any, Any, Any]]:
    chat = sampler.role("judge")

    async def dialogue(n: int) -> None:
        judge = ReadJudge(chat, scenario, rubric, session=f"readout {n}")
        for turn in range(1, TURNS + 1):
            await judge.judge(_turns(scenario, turn))

    for n in range(count):
        yield dialogue(n)
