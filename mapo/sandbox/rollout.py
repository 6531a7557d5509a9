"""Dialogues: `play()` one, `play_all()` many at once.

The turn order: the user speaks (first the scenario's opening), the policy replies, the judge fills in the
form, the state moves; if that does not end the dialogue, the director decides and the user speaks again.
Whatever breaks on the way is caught in `play`, once: the dialogue is recorded as broken with its reason,
and its siblings go on. A judgement that fails is no break: the turn is unscored.
"""

from __future__ import annotations

import asyncio
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
from mapo.measure.reward import Distance, rewards_of
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat, Closing
from mapo.models.wire import storable
from mapo.sandbox.cast import Cast, Casting, Job, Policy, panel_of
from mapo.sandbox.talk import Talk
from mapo.scenarios.scenario import Scenario
from mapo.text import aloud
from mapo.types import Dialogue, Direction, Ending, Levels, StopReason, Turn


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
        """Refuse at the door what would break every dialogue."""
        nowhere = Trajectory(self.rubric, (0.0,) * len(self.rubric.axes), self.profile)
        rewards_of(nowhere, self.reward, distance=self.distance)
        low = self.rubric.ending.min_turns if self.min_turns is None else self.min_turns
        high = self.rubric.ending.max_turns if self.max_turns is None else self.max_turns
        if low < 1 or high < 1 or (self.min_turns is not None and low > high):
            raise InputError(f"turn limits {low} to {high}", fix="At least 1, and the lower one first")
        if not self.temperature >= 0 or not 0 < self.top_p <= 1 or self.max_tokens < 1:
            told = f"temperature {self.temperature}, top_p {self.top_p}, max_tokens {self.max_tokens}"
            raise InputError(told, fix="0 or more; more than 0 and at most 1; 1 or more")


_ENDS_THE_RUN = (StoreError, TrainError)


async def play(
    job: Job, policy: Chat, cast: Cast, rules: Rules, on_turn: Callable[[Turn], None] | None = None
) -> Dialogue:
    """Play one dialogue to its end. What breaks in it is recorded (`Dialogue.error`), not raised.

    Raised are a disk that refuses, a sampler that died and what `on_turn` raises: those end a run, not a
    dialogue.
    """
    talk = Talk(job, rules, policy.name, cast.names)
    direction: Direction | None = None
    try:
        await talk.begin(cast)
        said = job.scenario.opening
        while True:
            answer = await policy.reply(talk.request(said))
            reply = replace(answer.reply, text=aloud(storable(answer.reply.text)))
            turn = Turn(said, reply, direction=direction)
            levels, unscored = await _judged(cast, [*talk.turns, turn], rules.rubric)
            turn = replace(
                turn,
                levels=levels,
                unscored=unscored,
                state=talk.path.judge(levels),
                panel=panel_of(cast.judge, rules.rubric),
            )
            talk.turns.append(turn)
            _tell(on_turn, turn)
            talk.ending = talk.path.ending()
            if talk.ending:
                break
            direction = await cast.director.direct(talk.turns, talk.path)
            if direction.act == "end":
                talk.ending = Ending(StopReason.DIRECTOR)
                break
            said = storable(await cast.user.speak(talk.turns, direction))
    except (_StopError, *_ENDS_THE_RUN):
        raise
    except ContextError as full:
        talk.outgrown(full)
    except Exception as problem:  # noqa: BLE001 (a broken dialogue is data too)
        talk.broke(problem)
    finally:
        if isinstance(policy, Closing):
            policy.end_dialogue()
    return talk.record()


class _StopError(Exception):
    """Carries out of a dialogue what must end the run."""


def _tell(on_turn: Callable[[Turn], None] | None, turn: Turn) -> None:
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

    def turned(turn: Turn) -> None:
        if on_turn:
            on_turn(turn)
        watch.see(turn)

    async def one(job: Job) -> Dialogue:
        async with gate:
            if stopped:  # nothing new begins once the run has failed
                raise asyncio.CancelledError
            try:
                dialogue = await _play(job, policy, casting, rules, turned)
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
    """A scenario that its cast or policy refuses is a broken dialogue like any other."""
    try:
        chat, cast = policy(job), casting(job)
    except _ENDS_THE_RUN:
        raise
    except MapoError as problem:
        talk = Talk(job, rules, "", {})
        talk.broke(problem)
        return talk.record()
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


async def _judged(cast: Cast, turns: Sequence[Turn], rubric: Rubric) -> tuple[Levels | None, str | None]:
    """The levels, or why there are none."""
    try:
        levels = await cast.judge.judge(turns)
        rubric.step(levels)
    except (AnswerError, EndpointError, InputError) as error:
        return None, str(error)
    return levels, None
