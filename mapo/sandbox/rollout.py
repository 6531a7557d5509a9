"""Dialogues: `play()` one, `play_all()` many at once.

The turn order: the user speaks (first the scenario's opening), the policy replies, the judge fills in its
form, the state moves, the turn is rewarded. If that does not end the dialogue, the director decides and the
user speaks again.

Error policy: whatever fails inside a dialogue is caught in `play`, once. The dialogue is recorded as broken,
with the reason, and its siblings go on. A failed judgement does not break a dialogue: the turn is unscored.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mapo.errors import (
    AnswerError,
    ContextError,
    EndpointError,
    InputError,
    JudgeError,
    MapoError,
    StoreError,
    TrainError,
)
from mapo.measure.potential import Trajectory
from mapo.measure.reward import Distance, rewards_of, turn_reward
from mapo.measure.rubric import Rubric
from mapo.models.chat import Answer, Chat, Closing, Request
from mapo.models.wire import storable
from mapo.sandbox.cast import Cast, Casting, Job, Policy, panel_of
from mapo.scenarios.scenario import Scenario
from mapo.text import aloud
from mapo.types import (
    Dialogue,
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
    """How dialogues are played and rewarded; turn limits default to the rubric's.

    `system` gives the policy's system prompt for a scenario (its language may matter), none if None.
    """

    rubric: Rubric
    profile: str = "published"
    reward: str = "idr"
    distance: Distance = "zone"
    min_turns: int | None = None
    max_turns: int | None = None
    system: Callable[[Scenario], str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512

    def __post_init__(self) -> None:
        """Reject settings that would break every dialogue."""
        nowhere = Trajectory(self.rubric, (0.0,) * len(self.rubric.axes), self.profile)
        rewards_of(nowhere, self.reward, distance=self.distance)
        low = self.rubric.ending.min_turns if self.min_turns is None else self.min_turns
        high = self.rubric.ending.max_turns if self.max_turns is None else self.max_turns
        if low < 1 or high < 1 or (self.min_turns is not None and low > high):
            raise InputError(f"turn limits {low} to {high}", fix="At least 1, and the lower one first")
        if not self.temperature >= 0 or not 0 < self.top_p <= 1 or self.max_tokens < 1:
            problem = f"temperature {self.temperature}, top_p {self.top_p}, max_tokens {self.max_tokens}"
            raise InputError(problem, fix="0 or more; more than 0 and at most 1; 1 or more")

    def reward_of(self, path: Trajectory, turn: int, ending: Ending | None) -> float | None:
        """Return the reward of turn `turn`; `ending` only for the last judged turn of a finished dialogue."""
        return turn_reward(path, turn, self.reward, distance=self.distance, ending=ending)


_ENDS_THE_RUN = (StoreError, TrainError)


async def play(
    job: Job, policy: Chat, cast: Cast, rules: Rules, on_turn: Callable[[Turn], None] | None = None
) -> Dialogue:
    """Play one dialogue to its end. What breaks in it is recorded (`Dialogue.error`), not raised.

    `on_turn` is called with every turn, with levels, state and reward; the reward `outcome` is settled only
    when the dialogue has ended. Raised are storage errors, a sampler that died and what `on_turn` raises:
    those end a run, not a dialogue.
    """
    open_dialogue = OpenDialogue(job, rules, policy.name, cast.names)
    turns = open_dialogue.turns
    try:
        path = await open_dialogue.begin(cast)
        said, direction = job.scenario.opening, None
        while open_dialogue.ending is None:
            reply = _spoken(await policy.reply(open_dialogue.request(said)))
            turn = Turn(said, reply, direction=direction)
            levels, state, unscored = await _judge(cast, [*turns, turn], path)
            open_dialogue.ending = path.ending()
            turn = replace(
                turn,
                levels=levels,
                unscored=unscored,
                state=state,
                reward=rules.reward_of(path, state.turn, open_dialogue.ending),
                panel=panel_of(cast.judge, rules.rubric),
            )
            turns.append(turn)
            _notify(on_turn, turn)
            if open_dialogue.ending is None:
                direction = await cast.director.direct(turns, path)
                if direction.act == "end":
                    open_dialogue.ending = Ending(StopReason.DIRECTOR)
                else:
                    said = storable(await cast.user.speak(turns, direction))
    except (_StopError, *_ENDS_THE_RUN):
        raise
    except ContextError as full:
        open_dialogue.outgrow(full)
    except Exception as problem:  # noqa: BLE001 (a broken dialogue is data too)
        open_dialogue.fail(problem)
    finally:
        if isinstance(policy, Closing):
            policy.end_dialogue()
    return open_dialogue.record()


def _spoken(answer: Answer) -> Reply:
    """The policy's reply without its thinking and without characters that no record can hold."""
    return replace(answer.reply, text=aloud(storable(answer.reply.text)))


async def _judge(
    cast: Cast, turns: Sequence[Turn], path: Trajectory
) -> tuple[Levels | None, PotentialState, str | None]:
    """Have the last turn judged and move the state by it. Without usable levels the state stands still, and
    the last value says why."""
    try:
        levels = await cast.judge.judge(turns)
        if levels is None:
            raise TypeError("the judge returned None instead of levels")
        return levels, path.judge(levels), None
    except (AnswerError, EndpointError, InputError) as error:
        return None, path.judge(None), str(error)


class OpenDialogue:
    """A dialogue while it is being played: where it stands, what the policy is asked, its future record."""

    def __init__(self, job: Job, rules: Rules, model: str, cast: dict[str, str]) -> None:
        self.job, self.rules, self.model, self.cast = job, rules, model, cast
        self.started = time.monotonic()
        self.system = ""
        self.start_levels: StartLevels = {}
        self.path = Trajectory(rules.rubric, (0.0,) * len(rules.rubric.axes), rules.profile)
        self.turns: list[Turn] = []
        self.ending: Ending | None = None
        self.error: str | None = None

    async def begin(self, cast: Cast) -> Trajectory:
        """Find the start position and return the trajectory that begins there."""
        rules = self.rules
        self.system = rules.system(self.job.scenario) if rules.system else ""
        levels = await _start_levels(self.job, cast)
        self.path = Trajectory(
            rules.rubric,
            rules.rubric.start(levels),
            rules.profile,
            min_turns=rules.min_turns,
            max_turns=rules.max_turns,
        )
        self.start_levels = levels
        return self.path

    def request(self, said: str) -> Request:
        """What the policy is asked after the user said `said`."""
        messages = [Message("system", self.system)] if self.system else []
        for turn in self.turns:
            messages += [Message("user", turn.user), Message("assistant", turn.reply.text)]
        return Request(
            messages=(*messages, Message("user", said)),
            temperature=self.rules.temperature,
            top_p=self.rules.top_p,
            max_tokens=self.rules.max_tokens,
            session=f"{self.job.session}/policy",
            nonce=f"{self.job.session}/policy/{len(self.turns)}",
            seed=_reply_seed(self.job.session, len(self.turns)),
        )

    def outgrow(self, full: ContextError) -> None:
        """End a dialogue that has filled the policy's context; one that never began is broken."""
        if self.turns:
            self.ending = Ending(StopReason.LENGTH)
        else:
            self.fail(full)

    def fail(self, problem: Exception) -> None:
        """End the dialogue as broken."""
        expected = isinstance(problem, MapoError)
        self.error = str(problem) if expected else f"{type(problem).__name__}: {problem}"
        self.ending = Ending(StopReason.BROKEN)
        if not expected:
            logging.getLogger(__name__).error("dialogue %s broke", self.job.id, exc_info=problem)

    def record(self) -> Dialogue:
        """Return the finished dialogue. Only here is the ending final, and with it the last judged reward."""
        job, rules = self.job, self.rules
        self._settle_last_reward()
        return Dialogue(
            id=job.id,
            scenario=job.scenario.id,
            model=self.model,
            rubric=rules.rubric.name,
            profile=rules.profile,
            start_levels=self.start_levels,
            start=self.path.start,
            turns=tuple(self.turns),
            ending=self.ending,
            reward=f"{rules.reward}/{rules.distance}",
            cast=self.cast,
            system=self.system,
            min_turns=rules.min_turns,
            max_turns=rules.max_turns,
            group=job.group or job.scenario.id,
            step=job.step,
            seed=job.seed,
            seconds=round(time.monotonic() - self.started, 3),
            error=self.error,
            tags=job.scenario.tags,
        )

    def _settle_last_reward(self) -> None:
        """A reward may depend on how the dialogue ended (`outcome`), which the last judged turn may not have
        known: a turn nobody could judge, or the director, came after it."""
        judged = [at for at, turn in enumerate(self.turns) if turn.levels is not None]
        if judged:
            last = judged[-1]
            settled = self.rules.reward_of(self.path, last + 1, self.ending)
            self.turns[last] = replace(self.turns[last], reward=settled)


def _reply_seed(session: str, turn: int) -> int:
    """A seed of its own for every reply of every dialogue."""
    return int.from_bytes(hashlib.sha256(f"{session}/{turn}".encode()).digest()[:8], "big")


async def _start_levels(job: Job, cast: Cast) -> StartLevels:
    known = job.start_levels or job.scenario.start_levels
    return {key: Mark(level) for key, level in known.items()} if known else await cast.judge.start()


class _StopError(Exception):
    """Carries out of a dialogue what must end the run."""


def _notify(on_turn: Callable[[Turn], None] | None, turn: Turn) -> None:
    if on_turn:
        try:
            on_turn(turn)
        except Exception as error:
            raise _StopError from error


async def play_all(
    jobs: Iterable[Job],
    policy: Policy,
    casting: Casting,
    rules: Rules,
    *,
    concurrency: int = 64,
    max_unscored: float = 0.5,
    on_done: Callable[[Dialogue], None] | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> list[Dialogue]:
    """Play all jobs, at most `concurrency` at once, with no barrier between their turns; in job order.

    `on_done` is called with each dialogue as it ends, before the next may start in its place. When the
    judge has failed on more than `max_unscored` of at least 40 turns, everything stops with a JudgeError:
    what was finished has been handed to `on_done`.
    """
    jobs = list(jobs)
    if concurrency < 1:
        raise InputError(f"concurrency is {concurrency}", fix="Give 1 or more")
    if len({job.session for job in jobs}) < len(jobs):
        raise InputError(
            "two jobs have the same id, seed and step", fix="Give each dialogue an id of its own"
        )
    gate = asyncio.Semaphore(concurrency)
    watch = Watch(max_unscored)
    stopped: list[BaseException] = []

    def seen(turn: Turn) -> None:
        if on_turn:
            on_turn(turn)
        watch.see(turn)

    async def one(job: Job) -> Dialogue:
        async with gate:
            if stopped:  # nothing new begins once the run has failed
                raise asyncio.CancelledError
            try:
                dialogue = await _play(job, policy, casting, rules, seen)
                if on_done:
                    on_done(dialogue)
            except _StopError as stop:
                stopped.append(stop)
                raise (stop.__cause__ or stop) from None
            except BaseException as error:
                stopped.append(error)
                raise
            return dialogue

    return await _gather(one(job) for job in jobs)


async def _play(
    job: Job, policy: Policy, casting: Casting, rules: Rules, on_turn: Callable[[Turn], None]
) -> Dialogue:
    """Play one job. A scenario that its cast or policy refuses is a broken dialogue like any other."""
    try:
        chat, cast = policy(job), casting(job)
    except _ENDS_THE_RUN:
        raise
    except MapoError as problem:
        failed = OpenDialogue(job, rules, "", {})
        failed.fail(problem)
        return failed.record()
    return await play(job, chat, cast, rules, on_turn)


async def _gather(tasks: Iterable[Awaitable[Dialogue]]) -> list[Dialogue]:
    """All results in order; the first error cancels the rest and is raised as it is."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


@dataclass(slots=True)
class Watch:
    """Stops a run whose judge has gone deaf, before more is spent on it."""

    limit: float
    turns: int = 0
    unscored: int = 0

    def see(self, turn: Turn) -> None:
        self.turns += 1
        self.unscored += turn.levels is None
        if turn.levels is None and self.turns >= 40 and self.unscored > self.limit * self.turns:
            raise JudgeError(
                f"the judge failed on {self.unscored} of {self.turns} turns, last: {turn.unscored}",
                fix="Check the judge with `mapo doctor`; finished dialogues are kept",
            )
