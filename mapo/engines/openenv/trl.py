"""TRL's trainers with a served sandbox.

`conversations` makes the environments of TRL's `GRPOTrainer(environment_factory=...)`: the model talks by
calling a tool, and a whole dialogue has one reward. `RemoteSandbox` is the `rollout_func` of mapo's
`MAPOTrainer`: the model talks as in a chat, and every turn has its own reward.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from websockets.exceptions import WebSocketException

from mapo.engines.openenv.client import DialogueClient
from mapo.engines.openenv.messages import MAX_ID, MAX_REPLY, DialogueObservation, PolicyReply
from mapo.engines.openenv.rules import check_rules, rules_summary
from mapo.engines.trl import Sandbox
from mapo.errors import ContextError, EndpointError, InputError
from mapo.estimators.methods import ESTIMATORS
from mapo.models.chat import Chat, Request
from mapo.sampling.sampler import Sampler
from mapo.sandbox.cast import Cast, Job, answer_seed
from mapo.sandbox.monitoring.judge_failures import JudgeMonitor
from mapo.sandbox.rollout import Rules
from mapo.scenarios.scenario import Scenario
from mapo.types import AxisMarks, Dialogue, Ending, Mark, Message, Reply, StopReason, Turn

OVER = "The conversation is over."


def conversations(base_url: str, **options: Any) -> Callable[[], Conversation]:
    """Return an `environment_factory` for a server. `options` are those of `DialogueClient`."""
    return partial(Conversation, base_url, **options)


class Conversation:
    """One environment of TRL: its public methods are tools, besides `reset` and `get_reward`.

    The columns `scenario` and `seed` of the dataset choose the person. Siblings have the same row, so they
    meet the same person.
    """

    def __init__(self, base_url: str, **options: Any) -> None:
        self._client = DialogueClient(base_url, **options).sync()
        self._seen: DialogueObservation | None = None

    def reset(self, scenario: str | None = None, seed: int | None = None, **_: Any) -> str:
        """Begin a dialogue and return the person's first message, which TRL appends to the prompt."""
        chosen = {"scenario": scenario, "seed": seed}
        self._seen = self._client.reset(
            **{name: value for name, value in chosen.items() if value is not None}
        ).observation
        return self._seen.user or OVER

    def say(self, message: str) -> str:
        """
        Say something to the person you are talking with and get their answer.

        Args:
            message: What you say to the person.

        Returns:
            What the person answers.
        """
        if self._seen is None or self._seen.done:
            return OVER
        try:
            self._seen = self._client.step(PolicyReply(reply=str(message)[:MAX_REPLY])).observation
        except Exception:  # TRL shows it to the model and goes on
            self._seen = None
            raise
        return self._seen.user or OVER

    def get_reward(self) -> float | None:
        """Return the summed reward of the turns; None if the dialogue broke, the server failed or no turn is
        scored."""
        if self._seen is None or self._seen.error is not None:
            return None
        scored = [reward for reward in self._seen.rewards if reward is not None]
        return sum(scored) if scored else None


class RemoteSandbox(Sandbox):
    """The `rollout_func` of a MAPOTrainer whose dialogues are played by a server.

    scenarios   those that the dataset names; the server must have them too
    rules       those of the server, and the token limit of replies; a server with other rules is refused
    at_once     dialogues played concurrently by this process; the server must allow as many sessions

    Further options are those of `DialogueClient`. Rewards come from the server. The methods gigpo and gdpo
    need more than it tells.
    """

    def __init__(
        self,
        base_url: str,
        scenarios: Iterable[Scenario],
        rules: Rules,
        *,
        context: int | None = None,
        at_once: int = 64,
        max_unscored: float = 0.5,
        on_done: Callable[[Dialogue], None] | None = None,
        stream: bool = True,
        **client: Any,
    ) -> None:
        super().__init__(
            scenarios,
            _no_cast,
            rules,
            context=context,
            at_once=at_once,
            max_unscored=max_unscored,
            on_done=on_done,
            stream=stream,
        )
        self.address = base_url
        self._summary = rules_summary(rules)
        self._connect = partial(DialogueClient, base_url, **client)
        self._run = uuid4().hex[:8]
        self._numbers = itertools.count(1)

    def begin(self, trainer: Any) -> None:
        method = trainer.args.method
        if ESTIMATORS[method].needs in ("states", "axes"):
            raise InputError(
                f"the method '{method}' needs the states of dialogues, which a server does not tell",
                fix="Use another method, or a Sandbox in this process",
            )
        super().begin(trainer)

    async def _play(self, sampler: Sampler, jobs: list[Job], temperature: float) -> list[Dialogue]:
        sampler.forget_all()  # the weights changed after the last batch
        slots, monitor = asyncio.Semaphore(self.at_once), JudgeMonitor(self.max_unscored)

        async def play(job: Job) -> Dialogue:
            async with slots:
                chat = sampler.policy(job)
                try:
                    dialogue = await self._talk(job, chat, temperature, monitor)
                finally:
                    chat.end_dialogue()
            if self.on_done:
                self.on_done(dialogue)
            return dialogue

        async with sampler:
            tasks = [asyncio.ensure_future(play(job)) for job in jobs]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    async def _talk(self, job: Job, chat: Chat, temperature: float, monitor: JudgeMonitor) -> Dialogue:
        turns: list[Turn] = []
        try:
            async with self._connect() as env:
                # Each time: a server may be restarted with other rules during a training.
                check_rules(self._summary, (await env.state()).rules, self.address)
                # Every evaluation plays the same jobs, but the server takes an id only once.
                name = f"{self._run}_{job.step or 'eval'}_{next(self._numbers)}_{job.id}"[:MAX_ID]
                begun = await env.reset(scenario=job.scenario.id, seed=job.seed % 2**31, episode_id=name)
                seen = begun.observation
                while not seen.done:
                    reply = (await chat.reply(self._request(job, seen, temperature))).reply
                    user = seen.user or ""
                    seen = (await env.step(PolicyReply(reply=reply.text[:MAX_REPLY]))).observation
                    turns.append(_turn(user, reply, seen))
                    monitor.update(turns[-1])
            ending, error = Ending(StopReason(seen.ending)), seen.error
            turns = [replace(turn, reward=last) for turn, last in zip(turns, seen.rewards, strict=False)]
        except ContextError as full:  # as in `play`: the dialogue ends, or is broken without any turn
            ending, error = Ending(StopReason.LENGTH), None if turns else str(full)
        except (OSError, RuntimeError, WebSocketException) as failure:
            raise EndpointError(
                f"the server refused a dialogue or is gone: {failure}",
                where=self.address,
                fix="See the messages of mapo serve; its --sessions must be at least at_once",
            ) from failure
        return _dialogue(job, chat.name, self.rules, turns, ending, error)

    def _request(self, job: Job, seen: DialogueObservation, temperature: float) -> Request:
        return Request(
            tuple(Message(**message) for message in seen.messages),  # type: ignore[arg-type]
            temperature=temperature,
            max_tokens=self.rules.max_tokens,
            session=job.session,
            seed=answer_seed(job.session, seen.turn),
            turn=seen.turn + 1,
        )


def _turn(user: str, reply: Reply, seen: DialogueObservation) -> Turn:
    marks = (seen.levels or {}).items()
    levels = {axis: AxisMarks(Mark(of["progress"]), Mark(of["regression"])) for axis, of in marks}
    return Turn(user, reply, levels=levels or None, reward=seen.reward, unscored=seen.unscored)


def _dialogue(
    job: Job, model: str, rules: Rules, turns: list[Turn], ending: Ending, error: str | None
) -> Dialogue:
    """Return what the trainer needs of a dialogue; the server has the record."""
    return Dialogue(
        id=job.id,
        scenario=job.scenario.id,
        model=model,
        rubric=rules.rubric.name,
        profile=rules.profile,
        start_levels={},
        start=(),
        turns=tuple(turns),
        ending=ending,
        reward=rules.reward,
        group=job.group,
        step=job.step,
        seed=job.seed,
        error=error,
    )


def _no_cast(_: Job) -> Cast:
    raise InputError("the server plays the roles", fix="Use Sandbox for roles in this process")
