"""A dialogue as an OpenEnv environment: `reset` begins it, `step` takes the policy's reply."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from mapo import __version__
from mapo.engines.openenv.messages import MAX_ID, DialogueObservation, DialogueState, PolicyReply
from mapo.engines.openenv.rules import rules_summary
from mapo.errors import InputError, JudgeError
from mapo.sandbox.cast import Casting, Job, world_seed
from mapo.sandbox.episode import Episode
from mapo.sandbox.episode import Observation as Seen
from mapo.sandbox.monitoring.judge_failures import JudgeMonitor
from mapo.sandbox.rollout import Rules
from mapo.scenarios.scenario import Scenario
from mapo.types import Dialogue, Levels, Turn

_log = logging.getLogger(__name__)

MAX_SEED = 2**31 - 1
MAX_UNSCORED = 0.5
"""The share of unscored turns above which the server warns, as a training stops there by default."""
SPLIT = "scenarios"
"""The only split of OpenEnv's task API: a task is a scenario."""
_EPISODE_ID = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_ID - 1}}}")
_RESET = "reset(scenario=ID, seed=NUMBER, episode_id=NAME); all are optional"


class ServedSandbox:
    """What all sessions of a server share: scenarios, cast, rules, and the ids of dialogues.

    seed      combined with the seed of a reset, as a training combines its seed with the step
    model     the policy's name in records
    on_done   called with every dialogue that ended, also a broken one; not with one that was given up
    taken     ids of dialogues that are recorded already
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        casting: Casting,
        rules: Rules,
        *,
        seed: int = 0,
        model: str = "policy",
        on_done: Callable[[Dialogue], None] | None = None,
        taken: Iterable[str] = (),
    ) -> None:
        if not scenarios:
            raise InputError("there are no scenarios to serve", fix="Name a set with scenarios")
        self.scenarios = {scenario.id: scenario for scenario in scenarios}
        self.casting, self.rules, self.seed, self.model, self.on_done = casting, rules, seed, model, on_done
        self.summary = rules_summary(rules)
        self._taken = set(taken)
        self._members: Counter[str] = Counter()
        self._monitor = JudgeMonitor(MAX_UNSCORED)

    def job(self, scenario: str | None, seed: int, episode_id: str | None) -> Job:
        """Return the job of one dialogue. Siblings, with the same scenario and seed, share their group and
        the seed of scripted roles. Without a scenario, the seed chooses one."""
        if scenario is None:
            scenario = list(self.scenarios)[seed % len(self.scenarios)]
        if scenario not in self.scenarios:
            known = ", ".join(list(self.scenarios)[:3])
            raise InputError(
                f"there is no scenario {scenario[:100]!r} here",
                where="reset",
                fix=f"Use one of the {len(self.scenarios)} that are served, such as {known}",
            )
        group = f"{scenario}_{seed}"
        return Job(self.scenarios[scenario], self._id(group, episode_id), group, world_seed(self.seed, seed))

    def count(self, turn: Turn) -> None:
        """Count a judged turn, and log a warning each time the judge fails too often. Whether to go on is up
        to the trainer."""
        try:
            self._monitor.update(turn)
        except JudgeError as error:
            _log.warning("%s", error)
            self._monitor = JudgeMonitor(MAX_UNSCORED)

    def _id(self, group: str, episode_id: str | None) -> str:
        if episode_id is not None and episode_id in self._taken:
            raise InputError(
                f"there was an episode '{episode_id}' already",
                where="reset",
                fix="Give every episode an id of its own, or none",
            )
        while episode_id is None or episode_id in self._taken:
            episode_id = f"{group}_{self._members[group]}"
            self._members[group] += 1
        self._taken.add(episode_id)
        return episode_id


class DialogueEnvironment(Environment[PolicyReply, DialogueObservation, DialogueState]):
    """One session. It plays one dialogue at a time in the server's event loop."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, sandbox: ServedSandbox) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._episode: Episode | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rewards: list[float | None] = []
        self._state = DialogueState(rules=sandbox.summary)

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        scenario: str | None = None,
        **other: Any,
    ) -> DialogueObservation:
        """Begin a dialogue with the person of a scenario. One that has not ended is given up."""
        seed = _check_reset(seed, episode_id, scenario, other)
        job = self._sandbox.job(scenario, seed, episode_id)
        if self._episode:
            await self._episode.close()
        self._loop = asyncio.get_running_loop()
        self._rewards = []
        self._episode = Episode(job, self._sandbox.casting, self._sandbox.rules, self._sandbox.model)
        self._state = DialogueState(
            episode_id=job.id,
            scenario=job.scenario.id,
            seed=seed,
            group=job.group,
            step_count=0,
            rules=self._sandbox.summary,
        )
        return self._observe(self._episode, await self._episode.begin())

    async def step_async(self, action: PolicyReply, **_: Any) -> DialogueObservation:
        """Take the policy's reply and return what follows. The calls of roles have timeouts of their own."""
        if self._episode is None or self._episode.dialogue is not None:
            state = "no dialogue has begun in this session" if self._episode is None else "it has ended"
            raise InputError(state, where=self._state.episode_id or "step", fix="Call reset first")
        seen = await self._episode.step(action.reply)
        self._state.step_count += 1
        return self._observe(self._episode, seen)

    def _observe(self, episode: Episode, seen: Seen) -> DialogueObservation:
        turn, dialogue = seen.turn, episode.dialogue
        if turn is not None:
            self._sandbox.count(turn)
            self._rewards.append(turn.reward)
            self._state.position = list(turn.state.position) if turn.state else None
        fields = {
            "turn": len(self._rewards),
            "reward": seen.reward,
            "levels": _levels(turn.levels) if turn and turn.levels else None,
            "unscored": turn.unscored if turn else None,
        }
        if dialogue is None:
            messages = [{"role": m.role, "content": m.content} for m in seen.messages]
            user = messages[-1]["content"]
            return DialogueObservation(messages=messages, user=user, rewards=self._rewards, **fields)
        self._state.done = True
        if self._sandbox.on_done:
            self._sandbox.on_done(dialogue)
        return DialogueObservation(
            done=True,
            messages=_conversation(dialogue),
            rewards=dialogue.rewards,
            ending=dialogue.ending.reason.value if dialogue.ending else None,
            ending_detail=list(dialogue.ending.detail) if dialogue.ending else [],
            error=dialogue.error,
            **fields,
        )

    def reset(self, **_: Any) -> DialogueObservation:
        raise InputError("dialogues are played in an event loop", fix="Call reset_async")

    def step(self, *_: Any, **__: Any) -> DialogueObservation:
        raise InputError("dialogues are played in an event loop", fix="Call step_async")

    @property
    def state(self) -> DialogueState:
        return self._state

    def close(self) -> None:
        """Give up a dialogue that has not ended. May be called from any thread; OpenEnv does so."""
        episode, self._episode = self._episode, None
        if episode and self._loop and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(episode.close(), self._loop)

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="mapo",
            description="Long conversations with simulated people; a reply is rewarded for what it changes.",
            version=__version__,
        )

    def list_splits(self) -> list[str]:
        return [SPLIT]

    def list_tasks(self, split: str) -> list[dict[str, str]]:
        return [{"scenario": name} for name in self._sandbox.scenarios] if split == SPLIT else []

    def num_tasks(self, split: str) -> int:
        return len(self.list_tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, str]:
        return self.list_tasks(split)[index]

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, str]]:
        return self.list_tasks(split)[start:stop]


def _check_reset(seed: Any, episode_id: Any, scenario: Any, other: dict[str, Any]) -> int:
    """Return the seed. The arguments of a reset come from the network as any JSON."""
    if other:
        names = ", ".join(name[:40] for name in list(other)[:3])
        raise InputError(f"unknown options: {names}", where="reset", fix=f"Use {_RESET}")
    if seed is None:
        seed = 0
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise InputError("the seed is not usable", where="reset", fix=f"Use an integer from 0 to {MAX_SEED}")
    if scenario is not None and not isinstance(scenario, str):
        raise InputError("the scenario is not a string", where="reset", fix="Give the id of a scenario")
    if episode_id is not None and not (isinstance(episode_id, str) and _EPISODE_ID.fullmatch(episode_id)):
        raise InputError(
            "the episode_id is not usable",
            where="reset",
            fix=f"Use up to {MAX_ID} letters, digits, dots, dashes and underscores",
        )
    return seed


def _levels(levels: Levels) -> dict[str, dict[str, int]]:
    return {
        axis: {"progress": marks.progress.level, "regression": marks.regression.level}
        for axis, marks in levels.items()
    }


def _conversation(dialogue: Dialogue) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": dialogue.system}] if dialogue.system else []
    for turn in dialogue.turns:
        messages.append({"role": "user", "content": turn.user})
        messages.append({"role": "assistant", "content": turn.reply.text})
    return messages
