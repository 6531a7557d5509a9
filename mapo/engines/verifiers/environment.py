"""One rollout is one dialogue: the policy replies through verifiers, and mapo does the rest.

Roles, rewards, endings and the record are those of `play` (`mapo.sandbox.episode`). A failed judgement leaves
its turn unscored. A broken dialogue, or one in which no turn was judged, is an `EnvError` of the rollout: it
has no reward and is not `ok`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import verifiers.v1 as vf

from mapo.config import EMPA_PROMPTS, Config, Eval, Roles, Scenarios
from mapo.engines.verifiers.taskset import DIALOGUE, REWARDS, SCORES, EmpaTaskset
from mapo.errors import InputError, MapoError
from mapo.measure.epmq import composite
from mapo.measure.reward import RANK
from mapo.measure.rubric import Rubric
from mapo.players.casting import cast_from_config, every_model
from mapo.players.prompts import prompts_from_config
from mapo.players.session import ModelSession
from mapo.records import encode_dialogue
from mapo.sandbox.cast import Casting, Job
from mapo.sandbox.domain import check_scripted
from mapo.sandbox.episode import Episode
from mapo.sandbox.rollout import Rules
from mapo.scenarios.scenario import Scenario
from mapo.scoring.result import recompute
from mapo.store import JsonlWriter
from mapo.types import Dialogue, Reply


class EmpaEnvConfig(vf.EnvConfig):
    """How dialogues are played and rewarded."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The policy."""
    roles: Roles = Roles()
    """User, director and judge, as in a config of mapo train: scripted, or models with agents = "llm"."""
    reward: str = "idr"
    """The reward of a turn: idr, adr, potential, outcome, ..."""
    profile: str = "published"
    min_turns: int | None = None
    max_turns: int | None = None
    """Turn limits (default: those of the rubric)."""
    records: Path | None = None
    """Folder for the records of all dialogues, which mapo score and mapo view read; one file per process."""


class EmpaEnv(vf.Env[EmpaEnvConfig]):
    """The sandbox."""

    taskset: EmpaTaskset

    def __init__(self, config: EmpaEnvConfig) -> None:
        super().__init__(config)
        if not isinstance(self.taskset, EmpaTaskset):
            raise InputError(
                f"the sandbox cannot play the taskset '{config.taskset.id}'", fix="Use the taskset mapo-empa"
            )
        _refuse(config)
        self.rules = Rules(
            self.taskset.rubric,
            config.profile,
            config.reward,
            min_turns=config.min_turns,
            max_turns=config.max_turns,
        )
        self._settings = Config(
            roles=config.roles,
            scenarios=Scenarios(domain=self.taskset.domain, train=self.taskset.config.scenarios),
            eval=Eval(every=0, test_repeats=0),
        )
        if "user" not in (cast_from_config(self._settings) or {}):
            fix = 'Set roles.agents = "llm" and the models of the roles, such as roles.everyone'
            check_scripted(self.taskset.scenarios.values(), self.taskset.domain, fix)
        self._prompts = prompts_from_config(self._settings)
        self._stack = AsyncExitStack()
        self._casting: Casting | None = None
        self._writer: JsonlWriter | None = None
        self._starts: dict[str, asyncio.Task[dict[str, int]]] = {}

    async def start(self) -> None:
        """Open the models of the roles, and the file of the records."""
        roles, domain = self.config.roles, self.taskset.domain
        self._stack, self._starts = AsyncExitStack(), {}
        if self.config.records:
            file = self.config.records / f"dialogues-{os.getpid()}.jsonl"
            self._writer = self._stack.enter_context(JsonlWriter(file))
        session = ModelSession(
            concurrency=roles.requests,
            requests_per_minute=roles.requests_per_minute,
            tokens_per_minute=roles.tokens_per_minute,
            timeout=roles.timeout,
            retries=roles.retries,
            role_context=roles.context,
        )
        if models := every_model(self._settings):
            session.check(models, domain)
        await self._stack.enter_async_context(session)
        cast = cast_from_config(self._settings)
        self._casting = await session.casting(cast, self.taskset.rubric, domain, self._prompts)

    async def stop(self) -> None:
        """Close what `start` opened."""
        for task in self._starts.values():
            task.cancel()
        await asyncio.gather(*self._starts.values(), return_exceptions=True)
        self._starts, self._casting, self._writer = {}, None, None
        await self._stack.aclose()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one dialogue."""
        scenario = self.taskset.scenario(task.data.scenario)
        if self.config.roles.prompts and self.taskset.system_prompt is None:
            task = task.with_system_prompt(self._prompts.policy_system(scenario))
        async with agents.agent.interaction(task) as talk:
            dialogue = await self._play(task, scenario, talk, agents.agent.config.model)
            if dialogue is None:  # the trace holds the error
                return
            _report(dialogue, talk.trace, self.taskset.rubric)
            if self._writer:
                self._writer.write_dialogue(dialogue)
            if not dialogue.judged:
                unscored = next((turn.unscored for turn in dialogue.turns if turn.unscored), "")
                raise vf.EnvError(dialogue.error or f"no turn was judged: {unscored}")

    async def _play(
        self, task: vf.Task, scenario: Scenario, talk: vf.Interaction, model: str
    ) -> Dialogue | None:
        """Return the dialogue, or None if the policy failed."""
        assert self._casting is not None, "verifiers calls start"
        job = Job(scenario, f"{scenario.id}_{talk.trace.id}", task.key, seed=task.data.seed)
        job = replace(job, start_levels=await self._start_levels(job))
        rules = replace(self.rules, system=lambda _: task.data.system_prompt or "")
        async with Episode(job, self._casting, rules, model) as episode:
            seen = await episode.begin()
            while not seen.done:
                segment = await talk.turn(seen.messages[-1].content)
                if not segment.terminated:
                    seen = await episode.step(_reply(segment, talk.trace))
                elif talk.trace.errors:
                    return None
                else:  # a limit of verifiers, or the context is full
                    seen = await episode.cut()
        return episode.dialogue

    async def _start_levels(self, job: Job) -> Mapping[str, int]:
        """Return the start levels of a scenario. If none are known, the judge is asked once for all rollouts
        of this process, so that siblings start equal."""
        name = job.scenario.id
        if known := self.taskset.start_levels.get(name) or job.scenario.start_levels:
            return known
        task = self._starts.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._starts[name] = asyncio.create_task(self._judge_start(job), name=f"start of {name}")
        try:
            return await asyncio.shield(task)
        except MapoError as error:
            raise vf.EnvError(str(error)) from error

    async def _judge_start(self, job: Job) -> dict[str, int]:
        assert self._casting is not None, "verifiers calls start"
        cast = self._casting(job)
        try:
            return {key: mark.level for key, mark in (await cast.judge.start()).items()}
        finally:
            if cast.close:
                cast.close()


def _refuse(config: EmpaEnvConfig) -> None:
    """Raise InputError for settings of mapo train that have no effect here."""
    roles = config.roles
    for setting, used in (
        ("reward = rank", config.reward == RANK),
        ("roles.ranker", roles.ranker is not None),
        ("roles.check", roles.check is not None),
        ("roles.max_unscored", roles.max_unscored != Roles().max_unscored),
        (f"roles.prompts = {EMPA_PROMPTS}", roles.prompts == EMPA_PROMPTS),
    ):
        if used:
            raise InputError(
                "this setting is not available in verifiers", where=setting, fix="Use it with mapo train"
            )


def _reply(segment: vf.Segment, trace: vf.Trace) -> Reply:
    replies = [message for message in segment.messages if isinstance(message, vf.AssistantMessage)]
    call = next((call for call in reversed(trace.calls) if call.error is None), None)
    cut = call is not None and call.finish_reason == "length"
    return Reply(replies[-1].content or "", "length" if cut else "stop")


def _report(dialogue: Dialogue, trace: vf.Trace, rubric: Rubric) -> None:
    """Leave the rewards, the scores and the record in the trace."""
    trace.info[DIALOGUE] = json.loads(encode_dialogue(dialogue))
    trace.info[REWARDS] = dialogue.rewards
    if not dialogue.judged:
        return
    result = recompute(dialogue, Path(), None, rubric, dialogue.id)
    trace.info[SCORES] = {
        "epm_q": composite([result.indices]).epm_q,
        "success": float(result.passed),
        "turns": float(len(dialogue.turns)),
        "unscored": float(result.unscored),
    }
    if dialogue.ending:
        trace.stop(dialogue.ending.reason.value)
