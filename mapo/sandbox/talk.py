"""One dialogue while it is being played: where it stands, what the policy is asked, and its record to be."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mapo.errors import ContextError, MapoError
from mapo.measure.potential import Trajectory
from mapo.measure.reward import rewards_of
from mapo.models.chat import Request
from mapo.sandbox.cast import Cast, Job
from mapo.types import Dialogue, Ending, Mark, Message, StartLevels, StopReason, Turn

if TYPE_CHECKING:
    from mapo.sandbox.rollout import Rules


class Talk:
    """One dialogue while it is being played: what will be its record."""

    def __init__(self, job: Job, rules: Rules, model: str, cast: dict[str, str]) -> None:
        self.job, self.rules, self.model, self.cast = job, rules, model, cast
        self.began = time.monotonic()
        self.system = ""
        self.start: StartLevels = {}
        self.path = Trajectory(rules.rubric, (0.0,) * len(rules.rubric.axes), rules.profile)
        self.turns: list[Turn] = []
        self.ending: Ending | None = None
        self.error: str | None = None

    async def begin(self, cast: Cast) -> None:
        rules = self.rules
        self.system = rules.system(self.job.scenario) if rules.system else ""
        known = await _start_levels(self.job, cast)
        self.path = Trajectory(
            rules.rubric,
            rules.rubric.start(known),
            rules.profile,
            min_turns=rules.min_turns,
            max_turns=rules.max_turns,
        )
        self.start = known

    def request(self, said: str) -> Request:
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
            seed=_seed_of(self.job.session, len(self.turns)),
        )

    def outgrown(self, full: ContextError) -> None:
        """A dialogue that reached the end of the policy's context is over; one that never began is broken."""
        if self.turns:
            self.ending = Ending(StopReason.LENGTH)
        else:
            self.broke(full)

    def broke(self, problem: Exception) -> None:
        known = isinstance(problem, MapoError)
        self.error = str(problem) if known else f"{type(problem).__name__}: {problem}"
        self.ending = Ending(StopReason.BROKEN)
        if not known:
            logging.getLogger(__name__).error("dialogue %s broke", self.job.id, exc_info=problem)

    def record(self) -> Dialogue:
        job, rules = self.job, self.rules
        rewards = rewards_of(self.path, rules.reward, distance=rules.distance, ending=self.ending)
        return Dialogue(
            id=job.id,
            scenario=job.scenario.id,
            model=self.model,
            rubric=rules.rubric.name,
            profile=rules.profile,
            start_levels=self.start,
            start=self.path.start,
            turns=tuple(replace(t, reward=r) for t, r in zip(self.turns, rewards, strict=True)),
            ending=self.ending,
            reward=f"{rules.reward}/{rules.distance}",
            cast=self.cast,
            system=self.system,
            min_turns=rules.min_turns,
            max_turns=rules.max_turns,
            group=job.group or job.scenario.id,
            step=job.step,
            seed=job.seed,
            seconds=round(time.monotonic() - self.began, 3),
            error=self.error,
            tags=job.scenario.tags,
        )


def _seed_of(session: str, turn: int) -> int:
    """A number of its own for every reply of every dialogue."""
    return int.from_bytes(hashlib.sha256(f"{session}/{turn}".encode()).digest()[:8], "big")


async def _start_levels(job: Job, cast: Cast) -> StartLevels:
    known = job.start_levels or job.scenario.start_levels
    return {key: Mark(level) for key, level in known.items()} if known else await cast.judge.start()
