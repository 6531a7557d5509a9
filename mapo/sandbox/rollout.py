"""Rollouts: `play` plays one dialogue, `play_all` many concurrently.

One turn: the user speaks (the first message is usually the opening of the scenario), the policy replies, the
judge fills in the turn form, the potential state moves, and the turn gets its reward. If the dialogue has not
ended, the director decides what happens next and the user speaks again.

Errors inside a dialogue are handled in one place, `play`: the dialogue is recorded as broken, with the
reason, and its siblings continue. A failed judgement does not break a dialogue: that turn is unscored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mapo.errors import (
    AnswerError,
    ContextError,
    EndpointError,
    InputError,
    MapoError,
    StoreError,
    TrainError,
)
from mapo.measure.potential import Trajectory
from mapo.measure.reward import Distance, RecordedReward, rewards_of, turn_reward
from mapo.measure.rubric import Rubric
from mapo.models.chat import Answer, Chat, DialogueChat, Request
from mapo.models.wire import storable
from mapo.sandbox.cast import (
    Cast,
    Casting,
    Job,
    OpeningUser,
    Policy,
    User,
    answer_seed,
    panel_levels,
    read_probabilities,
)
from mapo.sandbox.faults.detect import FaultDetector
from mapo.sandbox.monitoring.judge_failures import JudgeMonitor
from mapo.sandbox.monitoring.spot_check import with_answers
from mapo.scenarios.scenario import Scenario
from mapo.text import without_thinking
from mapo.types import (
    Dialogue,
    Direction,
    Ending,
    Levels,
    Mark,
    Message,
    PotentialState,
    Reply,
    StartLevels,
    StopReason,
    Turn,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How dialogues are played and rewarded. Turn limits default to those of the rubric.

    `system` returns the policy's system prompt for a scenario; with None there is no system prompt.
    """

    rubric: Rubric
    profile: str = "published"
    reward: str = "idr"
    distance: Distance = "zone"
    steps: Literal["likely", "expected"] = "likely"
    """Whether the levels of a turn move the state, or the expected step of their probabilities, if there are
    any."""
    gamma: float = 1.0
    """Discount per turn in the reward `potential`; other rewards do not depend on it."""
    min_turns: int | None = None
    max_turns: int | None = None
    system: Callable[[Scenario], str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512

    def __post_init__(self) -> None:
        """Reject settings that would break every dialogue."""
        trajectory = Trajectory(self.rubric, (0.0,) * len(self.rubric.axes), self.profile)
        rewards_of(trajectory, self.reward, distance=self.distance, gamma=self.gamma)
        low = self.rubric.ending.min_turns if self.min_turns is None else self.min_turns
        high = self.rubric.ending.max_turns if self.max_turns is None else self.max_turns
        if low < 1 or high < 1 or (self.min_turns is not None and low > high):
            raise InputError(
                f"min_turns is {low} and max_turns is {high}",
                fix="Both must be at least 1, and min_turns must not exceed max_turns",
            )
        if not self.temperature >= 0:
            raise InputError(f"temperature is {self.temperature}", fix="Use 0 or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}", fix="Use a value above 0 and at most 1")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}", fix="Use 1 or more")

    def reward_of(self, trajectory: Trajectory, turn: int, ending: Ending | None) -> float | None:
        """Return the reward of turn `turn`. Pass `ending` only for the last scored turn of a dialogue."""
        return turn_reward(
            trajectory, turn, self.reward, distance=self.distance, gamma=self.gamma, ending=ending
        )


_FATAL = (StoreError, TrainError)
"""Errors that end the run, not only one dialogue."""


async def play(
    job: Job, policy: Chat, cast: Cast, rules: Rules, on_turn: Callable[[Turn], None] | None = None
) -> Dialogue:
    """Play one dialogue to its end and return its record.

    Failures are recorded in `Dialogue.error` and not raised, except those that must end the run: storage
    errors, a sampler that died, and whatever `on_turn` raises. `on_turn` is called after every turn, with its
    levels, state and reward. The reward `outcome` is final only in the returned dialogue.
    """
    return await (await _converse(job, policy, cast, rules, on_turn)).finish()


async def _converse(
    job: Job, policy: Chat, cast: Cast, rules: Rules, on_turn: Callable[[Turn], None] | None
) -> ActiveDialogue:
    """Play one dialogue to its end. Its spot checks may still be pending."""
    active = ActiveDialogue(job, rules, policy.name, cast)
    try:
        await _take_turns(active, policy, cast, on_turn)
    except ContextError as error:
        active.end_at_context_limit(error)
    except (_CallbackError, asyncio.CancelledError, *_FATAL):
        active.release()
        raise
    except Exception as error:  # noqa: BLE001 (a broken dialogue is recorded, not raised)
        active.fail(error)
    finally:
        active.seconds = time.monotonic() - active.started
        if isinstance(policy, DialogueChat):
            policy.end_dialogue()
    return active


async def _take_turns(
    active: ActiveDialogue, policy: Chat, cast: Cast, on_turn: Callable[[Turn], None] | None
) -> None:
    """Let user, policy, judge and director act in turn until the dialogue ends."""
    turns, rules = active.turns, active.rules
    trajectory = await active.begin(cast)
    user_message, direction = await _opening(active.job, cast), None
    while active.ending is None:
        reply = _clean(await policy.reply(active.request(user_message)))
        turn = Turn(user_message, reply, direction=direction)
        if cast.check:
            cast.check.begin([*turns, turn])
        levels, state, unscored = await _judge(cast, [*turns, turn], trajectory, rules.steps)
        active.ending = trajectory.ending()
        turn = replace(
            turn,
            levels=levels,
            unscored=unscored,
            state=state,
            reward=rules.reward_of(trajectory, state.turn, active.ending),
            panel=panel_levels(cast.judge, rules.rubric),
            probabilities=None if levels is None else read_probabilities(cast.judge),
        )
        turn = replace(turn, faults=active.detector.faults(turn))
        turns.append(turn)
        _notify(on_turn, turn)
        if active.ending is None:
            direction = await cast.director.direct(turns, trajectory)
            if direction.act == "end":
                active.ending = Ending(StopReason.DIRECTOR)
            else:
                user_message = await _next_message(active, cast.user, direction)


async def _next_message(active: ActiveDialogue, user: User, direction: Direction) -> str:
    """Return the next user message. If the user leaves or its context is full, set the ending."""
    try:
        message = await user.speak(active.turns, direction)
    except ContextError:
        active.ending = Ending(StopReason.LENGTH, ("user",))
        return ""
    if message is None:
        active.ending = Ending(StopReason.USER)
        return ""
    return storable(message)


def _clean(answer: Answer) -> Reply:
    """Return the reply without its reasoning part and without characters that a record cannot hold."""
    return replace(answer.reply, text=without_thinking(storable(answer.reply.text)))


async def _judge(
    cast: Cast, turns: Sequence[Turn], trajectory: Trajectory, steps: str
) -> tuple[Levels | None, PotentialState, str | None]:
    """Have the last turn judged and advance the trajectory.

    Returns the levels, the new state and, if the judgement failed, the reason.
    """
    try:
        levels = await cast.judge.judge(turns)
        if levels is None:
            raise TypeError("the judge returned None instead of levels")
        probabilities = read_probabilities(cast.judge) if steps == "expected" else None
        return levels, trajectory.judge(levels, probabilities), None
    except (AnswerError, ContextError, EndpointError, InputError) as error:
        return None, trajectory.judge(None), str(error)


class ActiveDialogue:
    """A dialogue while it is being played: its turns and trajectory so far, and the record it becomes."""

    def __init__(self, job: Job, rules: Rules, model: str = "", cast: Cast | None = None) -> None:
        self.job, self.rules, self.model = job, rules, model
        self.names = cast.names if cast else {}
        self.check, self.close = (cast.check, cast.close) if cast else (None, None)
        self.started = time.monotonic()
        self.seconds = 0.0
        self.system = self.prompts = ""
        self.start_levels: StartLevels = {}
        self.trajectory = Trajectory(rules.rubric, (0.0,) * len(rules.rubric.axes), rules.profile)
        self.turns: list[Turn] = []
        self.detector = FaultDetector(job.scenario, self.names)
        self.ending: Ending | None = None
        self.error: str | None = None

    async def begin(self, cast: Cast) -> Trajectory:
        """Determine the start position and return the trajectory that begins there."""
        rules = self.rules
        self.system = rules.system(self.job.scenario) if rules.system else ""
        levels = await _start_levels(self.job, cast)
        self.trajectory = Trajectory(
            rules.rubric,
            rules.rubric.start(levels),
            rules.profile,
            goal=self.job.goal,
            min_turns=rules.min_turns,
            max_turns=rules.max_turns,
        )
        self.prompts = cast.prompts
        self.start_levels = levels
        return self.trajectory

    def request(self, user_message: str) -> Request:
        """Return the request for the policy's reply to `user_message`."""
        messages = [Message("system", self.system)] if self.system else []
        for turn in self.turns:
            messages += [Message("user", turn.user), Message("assistant", turn.reply.text)]
        return Request(
            messages=(*messages, Message("user", user_message)),
            temperature=self.rules.temperature,
            top_p=self.rules.top_p,
            max_tokens=self.rules.max_tokens,
            session=f"{self.job.session}/policy",
            nonce=f"{self.job.session}/policy/{len(self.turns)}",
            seed=answer_seed(self.job.session, len(self.turns)),
            turn=len(self.turns) + 1,
        )

    def end_at_context_limit(self, error: ContextError) -> None:
        """End the dialogue because the policy's context is full. Without any turn, it is broken."""
        if self.turns:
            self.ending = Ending(StopReason.LENGTH)
        else:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the dialogue as broken."""
        expected = isinstance(error, MapoError)
        self.error = str(error) if expected else f"{type(error).__name__}: {error}"
        self.ending = Ending(StopReason.BROKEN)
        if not expected:
            logging.getLogger(__name__).error("dialogue %s broke", self.job.id, exc_info=error)

    @property
    def checks_pending(self) -> bool:
        """Whether spot checks are still to be collected."""
        return self.check is not None and self.check.pending

    async def finish(self) -> Dialogue:
        """Wait for the spot checks and return the record."""
        try:
            if self.check:
                self.turns = with_answers(self.turns, await self.check.answers(), self.rules.rubric)
        finally:
            self.release()
        return self.record()

    def release(self) -> None:
        """Free what the roles hold for this dialogue, and stop its spot checks."""
        if self.check:
            self.check.cancel()
        if self.close:
            self.close()

    def record(self) -> Dialogue:
        """Return the finished dialogue."""
        job, rules = self.job, self.rules
        self._finalise_last_reward()
        return Dialogue(
            id=job.id,
            scenario=job.scenario.id,
            model=self.model,
            rubric=rules.rubric.name,
            profile=rules.profile,
            start_levels=self.start_levels,
            start=self.trajectory.start,
            turns=tuple(self.turns),
            ending=self.ending,
            reward=str(RecordedReward(rules.reward, rules.distance, rules.gamma)),
            cast=self.names,
            system=self.system,
            min_turns=rules.min_turns,
            max_turns=rules.max_turns,
            group=job.group or job.scenario.id,
            step=job.step,
            seed=job.seed,
            seconds=round(self.seconds, 3),
            error=self.error,
            tags=job.scenario.tags,
            prompts=self.prompts,
            goal=job.goal,
            steps="expected" if rules.steps == "expected" else "",
        )

    def _finalise_last_reward(self) -> None:
        """Recompute the reward of the last scored turn with the final ending.

        `outcome` depends on the ending, which may be known only after that turn: the director may end the
        dialogue, or unscored turns may follow.
        """
        scored = [index for index, turn in enumerate(self.turns) if turn.levels is not None]
        if scored:
            last = scored[-1]
            reward = self.rules.reward_of(self.trajectory, last + 1, self.ending)
            self.turns[last] = replace(self.turns[last], reward=reward)


async def _start_levels(job: Job, cast: Cast) -> StartLevels:
    """Return the start levels of the job or its scenario, or else have the judge fill in the start form."""
    known = job.start_levels or job.scenario.start_levels
    if known:
        return {key: Mark(level) for key, level in known.items()}
    return await (cast.start or cast.judge.start)()


async def _opening(job: Job, cast: Cast) -> str:
    """Return the first user message."""
    user = cast.user
    return storable(await user.open()) if isinstance(user, OpeningUser) else job.scenario.opening


class _CallbackError(Exception):
    """Wraps an exception of `on_turn`, so that `play` does not record it as a broken dialogue."""


def _notify(on_turn: Callable[[Turn], None] | None, turn: Turn) -> None:
    if on_turn:
        try:
            on_turn(turn)
        except Exception as error:
            raise _CallbackError from error


async def play_all(
    jobs: Iterable[Job],
    policy: Policy,
    casting: Casting,
    rules: Rules,
    *,
    concurrency: int = 64,
    max_unscored: float = 0.5,
    before: Iterable[Dialogue] = (),
    on_done: Callable[[Dialogue], None] | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> list[Dialogue]:
    """Play all jobs, at most `concurrency` at a time, and return the dialogues in job order.

    Dialogues do not wait for each other between turns. `on_done` is called with each dialogue as it ends,
    before another one takes its place, or as soon as its spot checks are answered. If more than
    `max_unscored` of at least 40 turns are unscored, the run stops with a JudgeError; finished dialogues have
    then been passed to `on_done`. The turns of `before`, dialogues that the same run played earlier, count.
    """
    jobs = list(jobs)
    if concurrency < 1:
        raise InputError(f"concurrency is {concurrency}", fix="Use 1 or more")
    if len({job.session for job in jobs}) < len(jobs):
        raise InputError("two jobs have the same id, seed and step", fix="Give every dialogue its own id")
    slots = asyncio.Semaphore(concurrency)
    earlier = [turn for dialogue in before for turn in dialogue.turns]
    monitor = JudgeMonitor(
        max_unscored,
        earlier_turns=len(earlier),
        earlier_unscored=sum(turn.levels is None for turn in earlier),
    )
    failed = False

    def turn_done(turn: Turn) -> None:
        if on_turn:
            on_turn(turn)
        monitor.update(turn)

    async def finish(active: ActiveDialogue) -> Dialogue:
        dialogue = await active.finish()
        if on_done:
            on_done(dialogue)
        return dialogue

    async def play_job(job: Job) -> Dialogue:
        nonlocal failed
        try:
            async with slots:
                # Scripted roles never wait: without this, all dialogues would run before a signal is handled.
                await asyncio.sleep(0)
                if failed:  # start no further dialogues
                    raise asyncio.CancelledError
                active = await _play(job, policy, casting, rules, turn_done)
                if not active.checks_pending:
                    return await finish(active)
            return await finish(active)  # without a slot: no dialogue waits for the second judge
        except _CallbackError as wrapper:
            failed = True
            raise (wrapper.__cause__ or wrapper) from None
        except BaseException:
            failed = True
            raise

    return await _gather(play_job(job) for job in jobs)


async def _play(
    job: Job, policy: Policy, casting: Casting, rules: Rules, on_turn: Callable[[Turn], None]
) -> ActiveDialogue:
    """Create policy and cast for one job and play it. If they reject the scenario, the dialogue is broken."""
    try:
        chat, cast = policy(job), casting(job)
    except _FATAL:
        raise
    except MapoError as error:
        broken = ActiveDialogue(job, rules)
        broken.fail(error)
        return broken
    return await _converse(job, chat, cast, rules, on_turn)


async def _gather(tasks: Iterable[Awaitable[Dialogue]]) -> list[Dialogue]:
    """Return all results in order. The first error cancels the remaining tasks and is raised."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
