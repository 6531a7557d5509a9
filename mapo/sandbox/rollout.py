"""Dialogues: `play()` one, `play_all()` many at once.

The turn order: the user speaks (first the scenario's opening), the policy replies, the judge fills in the
form, the state moves; if that does not end the dialogue, the director decides and the user speaks again.
Whatever breaks on the way is caught in `play`, once: the dialogue is recorded as broken with its reason,
and its siblings go on. A judgement that fails is no break: the turn is unscored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mapo.errors import AnswerError, EndpointError, InputError, JudgeError, MapoError
from mapo.sandbox.cast import Cast, Casting
from mapo.sandbox.chat import Chat, Request
from mapo.sandbox.potential import Trajectory
from mapo.sandbox.reward import Distance, rewards_of
from mapo.sandbox.rubric import Rubric
from mapo.sandbox.scenario import Scenario
from mapo.types import Dialogue, Direction, Ending, Levels, Mark, Message, StartLevels, StopReason, Turn

Policy = Callable[[Scenario, int], Chat]
"""(scenario, seed) -> who replies. For a model behind an endpoint: `lambda *_: endpoint`."""


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
    max_tokens: int = 512

    def __post_init__(self) -> None:
        """Refuse at the door what would break every dialogue."""
        nowhere = Trajectory(self.rubric, (0.0,) * len(self.rubric.axes), self.profile)
        rewards_of(nowhere, self.reward, distance=self.distance)
        low = self.rubric.ending.min_turns if self.min_turns is None else self.min_turns
        high = self.rubric.ending.max_turns if self.max_turns is None else self.max_turns
        if low < 1 or high < 1:
            raise InputError(f"turn limits {low} to {high}", fix="Give whole numbers of 1 or more")


@dataclass(frozen=True, slots=True)
class Job:
    """One dialogue to be played. Jobs of one `group` are siblings."""

    scenario: Scenario
    id: str
    group: str = ""
    seed: int = 0
    step: int | None = None
    start_levels: Mapping[str, int] | None = None


async def play(
    job: Job, policy: Chat, cast: Cast, rules: Rules, on_turn: Callable[[Turn], None] | None = None
) -> Dialogue:
    """Play one dialogue to its end. Never raises for what happens in it: see `Dialogue.error`."""
    began = time.monotonic()
    scenario, rubric = job.scenario, rules.rubric
    system = rules.system(scenario) if rules.system else ""
    start: StartLevels = {}
    path = Trajectory(rubric, (0.0,) * len(rubric.axes))
    turns: list[Turn] = []
    ending, error = None, None
    direction: Direction | None = None
    said = scenario.opening
    try:
        known = await _start_levels(job, cast)
        position, start = rubric.start(known), known
        path = Trajectory(
            rubric,
            position,
            rules.profile,
            min_turns=rules.min_turns,
            max_turns=rules.max_turns,
        )
        while True:
            answer = await policy.reply(_request(job, rules, system, turns, said))
            turn = Turn(said, answer.reply, direction=direction)
            levels, unscored = await _judged(cast, [*turns, turn], rubric)
            turn = replace(turn, levels=levels, unscored=unscored, state=path.judge(levels))
            turns.append(turn)
            if on_turn:
                on_turn(turn)
            if ending := path.ending():
                break
            direction = await cast.director.direct(turns, path)
            if direction.act == "end":
                ending = Ending(StopReason.DIRECTOR)
                break
            said = await cast.user.speak(turns, direction)
    except Exception as problem:
        error = str(problem) if isinstance(problem, MapoError) else f"{type(problem).__name__}: {problem}"
        if not isinstance(problem, MapoError):
            logging.getLogger(__name__).exception("dialogue %s broke unexpectedly", job.id)
        ending = Ending(StopReason.BROKEN)
    rewards = rewards_of(path, rules.reward, distance=rules.distance, ending=ending)[: len(turns)]
    return Dialogue(
        id=job.id,
        scenario=scenario.id,
        model=policy.name,
        rubric=rubric.name,
        profile=rules.profile,
        start_levels=start,
        start=path.start,
        turns=tuple(replace(turn, reward=r) for turn, r in zip(turns, rewards, strict=True)),
        ending=ending,
        reward=f"{rules.reward}/{rules.distance}",
        cast=cast.names,
        system=system,
        min_turns=rules.min_turns,
        max_turns=rules.max_turns,
        group=job.group or scenario.id,
        step=job.step,
        seed=job.seed,
        seconds=round(time.monotonic() - began, 3),
        error=error,
        tags=scenario.tags,
    )


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
    gate = asyncio.Semaphore(concurrency)
    watch = _Watch(max_unscored)
    stopped: list[BaseException] = []

    async def one(job: Job) -> Dialogue:
        async with gate:
            if stopped:  # nothing new begins once the run has failed
                raise asyncio.CancelledError
            try:
                cast = casting(job.scenario, job.seed)
                dialogue = await play(job, policy(job.scenario, job.seed), cast, rules, on_turn)
                if on_done:
                    on_done(dialogue)
                watch.see(dialogue)
            except BaseException as error:
                stopped.append(error)
                raise
            return dialogue

    return await _gather(one(job) for job in jobs)


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
class _Watch:
    """Stops a run whose judge has gone deaf."""

    limit: float
    turns: int = 0
    unscored: int = 0
    last: str = ""

    def see(self, dialogue: Dialogue) -> None:
        missed = [t.unscored for t in dialogue.turns if t.levels is None]
        self.turns += len(dialogue.turns)
        self.unscored += len(missed)
        self.last = (missed[-1] or "") if missed else self.last
        if self.turns >= 40 and self.unscored > self.limit * self.turns:
            raise JudgeError(
                f"the judge failed on {self.unscored} of {self.turns} turns, last: {self.last}",
                fix="Check the judge with `mapo doctor`; finished dialogues are kept",
            )


async def _start_levels(job: Job, cast: Cast) -> StartLevels:
    known = job.start_levels or job.scenario.start_levels
    return {key: Mark(level) for key, level in known.items()} if known else await cast.judge.start()


async def _judged(cast: Cast, turns: Sequence[Turn], rubric: Rubric) -> tuple[Levels | None, str | None]:
    """The levels, or why there are none."""
    try:
        levels = await cast.judge.judge(turns)
        rubric.step(levels)
    except (AnswerError, EndpointError, InputError) as error:
        return None, str(error)
    return levels, None


def _request(job: Job, rules: Rules, system: str, turns: Sequence[Turn], said: str) -> Request:
    messages = [Message("system", system)] if system else []
    for turn in turns:
        messages += [Message("user", turn.user), Message("assistant", turn.reply.text)]
    return Request(
        messages=(*messages, Message("user", said)),
        temperature=rules.temperature,
        max_tokens=rules.max_tokens,
        session=f"{job.id}/policy",
        nonce=f"{job.seed}/{job.id}/policy/{len(turns)}",
    )
