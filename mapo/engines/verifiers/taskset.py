"""The rows of the environment: one per scenario and epoch, and how a finished dialogue is scored."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import verifiers.v1 as vf
from pydantic import Field

from mapo.domain_folders import domain_folder
from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import world_seed
from mapo.sandbox.model_cast import policy_system
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scenarios.start_levels import StartLevelTable, check_start_levels, read_start_levels

REWARDS, SCORES, DIALOGUE = "turn_rewards", "scores", "dialogue"
"""Keys of a trace's `info`: the reward of each turn (None if it is unscored), the scores, and the record."""


class EmpaTasksetConfig(vf.TasksetConfig):
    """Which scenarios are played."""

    scenarios: str = "builtin:train"
    """builtin:train|validation|test|all, a folder, a file, manifest.json:SPLIT, or EMPA's cards as
    CARDS:SPLIT."""
    domain: str | None = None
    """A shipped domain or a folder with a rubric.toml (default: the one that the scenarios name)."""
    start_levels: str | None = None
    """Start levels by scenario: a JSON file, EMPA result files, or EMPA's precomputed start file."""
    epochs: int = Field(default=1, ge=1, le=100_000)
    """Rows per scenario. Each has another seed, which all rollouts of the row share."""
    seed: int = 0


class EmpaData(vf.TaskData):
    """A row. The person opens the dialogue, so it has no prompt."""

    scenario: str = ""
    seed: int = 0
    """Seed of the scripted roles."""


class EmpaTask(vf.Task[EmpaData]):
    """A row with its scores, which `EmpaEnv` leaves in the trace."""

    @property
    def key(self) -> str:
        return f"{self.data.scenario}/{self.data.seed}"

    @vf.reward
    async def turns(self, trace: vf.Trace) -> float:
        """The sum of the rewards of the scored turns."""
        _require_scores(trace)
        return float(sum(reward for reward in trace.info[REWARDS] if reward is not None))

    @vf.metric
    async def scores(self, trace: vf.Trace) -> dict[str, float]:
        """EPM-Q of this dialogue, success, and the numbers of turns and unscored turns."""
        _require_scores(trace)
        return dict(trace.info[SCORES])


def _require_scores(trace: vf.Trace) -> None:
    if SCORES not in trace.info:
        raise InputError(
            "the rollout is not a dialogue of the sandbox",
            where=f"trace {trace.id}",
            fix="Play this taskset with its own environment: leave out --env.id",
        )


class EmpaTaskset(vf.Taskset[EmpaTask, EmpaTasksetConfig]):
    """The scenarios as rows."""

    def load(self) -> Iterator[EmpaTask]:
        for epoch in range(1, self.config.epochs + 1):
            for scenario in self.scenarios.values():
                data = EmpaData(
                    id=f"{scenario.id}/{epoch}",
                    name=scenario.id,
                    system_prompt=policy_system(scenario),
                    scenario=scenario.id,
                    seed=world_seed(self.config.seed, epoch),
                )
                yield EmpaTask(data, self.config.task)

    @cached_property
    def scenarios(self) -> dict[str, Scenario]:
        loaded = load_scenarios(self.config.scenarios, self.config.domain)
        return {scenario.id: scenario for scenario in loaded}

    @cached_property
    def domain(self) -> str:
        return next(iter(self.scenarios.values())).domain

    @cached_property
    def rubric(self) -> Rubric:
        return Rubric.load(domain_folder(self.domain))

    @cached_property
    def start_levels(self) -> StartLevelTable:
        if not self.config.start_levels:
            return {}
        table = read_start_levels(Path(self.config.start_levels))
        check_start_levels(table, self.scenarios.values(), self.rubric)
        return table

    def scenario(self, name: str) -> Scenario:
        if name not in self.scenarios:
            raise InputError(
                f"there is no scenario {name!r} in {self.config.scenarios}",
                where="the task's `scenario`",
                fix="Give the environment the scenarios that the rows were made from",
            )
        return self.scenarios[name]
