"""What the dialogues of one process share: roles with their limits, records, and a watch on the judge.

verl makes a new agent loop for every dialogue, many at once in each of a few processes. The site is opened
by the first of them and kept for the process's life. The run directory tells it everything: verl hands on
no more than where that is.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mapo.config import Config, load_config
from mapo.local_model.template import Template, keep_turns_verbatim, read_template
from mapo.sandbox.cast import Casting, Job, held_out_seed, world_seed
from mapo.sandbox.rollout import JudgeMonitor, Rules
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.store import JsonlWriter, RunDir
from mapo.types import Dialogue

_open: dict[Path, Site] = {}
_lock = asyncio.Lock()


@dataclass(slots=True)
class Site:
    config: Config
    run: RunDir
    scenarios: dict[str, Scenario]
    template: Template
    end_ids: frozenset[int]
    casting: Casting
    rules: Rules
    rank: int
    gate: asyncio.Semaphore
    stack: AsyncExitStack
    flush: Any
    writers: dict[Path, JsonlWriter] = field(default_factory=dict)
    watches: dict[tuple[str, int], JudgeMonitor] = field(default_factory=dict)

    def job(self, scenario: str, split: str, step: int, group: str, number: int) -> Job:
        """The same worlds as in the local engine: siblings meet one, and every step has its own."""
        who, seed = self.scenarios[scenario], self.config.run.seed
        if split == "train":
            world = world_seed(seed, step)
            return Job(who, id=f"{group}_{number}", group=group, seed=world, step=step)
        return Job(who, id=f"{scenario}_{number + 1}", group=scenario, seed=held_out_seed(seed, number + 1))

    def rules_for(self, split: str) -> Rules:
        if split == "train":
            return self.rules
        e = self.config.eval
        turns = e.max_turns or self.rules.max_turns
        return replace(self.rules, temperature=e.temperature, top_p=e.top_p, max_turns=turns)

    def watch(self, split: str, step: int) -> JudgeMonitor:
        """One a step: a judge that goes deaf late is noticed as soon as one that was deaf from the start."""
        if (split, step) not in self.watches:
            self.watches = {(split, step): JudgeMonitor(self.config.roles.max_unscored)}
        return self.watches[split, step]

    def keep(self, dialogue: Dialogue, split: str, step: int) -> None:
        """On disk before it counts; every process writes its own file."""
        file = dialogue_file(self.run, split, step, self.config.optim.steps, self.rank)
        if file not in self.writers:
            for writer in self.writers.values():  # one file at a time is written to
                writer.close()
            self.writers = {file: JsonlWriter(file)}
        self.writers[file].write_dialogue(dialogue)
        self.flush()


def dialogue_file(run: RunDir, split: str, step: int, steps: int, rank: int) -> Path:
    """Where dialogues of a split at a step are kept, as in a run of the local engine."""
    if split == "train":
        return run.dialogues_of(step, rank)
    ends = "before" if step == 0 else "after" if step >= steps else f"test_{step:05d}"
    return run.eval_dialogues(f"validation_{step:05d}" if split == "validation" else ends, rank)


async def site_of(root: Path, tokenizer: Any, model: str) -> Site:
    """The process's site; opened once."""
    async with _lock:
        if root not in _open:
            _open[root] = await _opened(root, tokenizer, model)
        return _open[root]


async def _opened(root: Path, tokenizer: Any, model: str) -> Site:
    from mapo.players.session import open_cast
    from mapo.train.run import rules_of

    config = load_config(RunDir(root).verl_config)
    template = keep_turns_verbatim(read_template(tokenizer, enable_thinking=config.model.thinking))
    rank, workers = _place(config)
    stack = AsyncExitStack()
    casting, flush, _ = await stack.enter_async_context(open_cast(config, root, rank, shared_by=workers))
    return Site(
        config=config,
        run=RunDir(root),
        scenarios=_scenarios(config),
        template=template,
        end_ids=template.end_ids | _generation_ends(model),
        casting=casting,
        rules=rules_of(config),
        rank=rank,
        gate=asyncio.Semaphore(max(1, config.rollout.at_once // workers)),
        stack=stack,
        flush=flush,
    )


def _scenarios(config: Config) -> dict[str, Scenario]:
    """All splits'; whether they leak into one another was checked before the run was started."""
    told = config.scenarios
    splits = (told.train, told.validation, told.test)
    return {s.id: s for split in splits for s in load_scenarios(split, told.domain)}


def _place(config: Config) -> tuple[int, int]:
    """Which of how many agent loop workers this process is."""
    import ray

    name = (ray.get_runtime_context().get_actor_name() or "") if ray.is_initialized() else ""
    found = re.match(r"agent_loop_worker_(\d+)_", name)
    return (int(found[1]) if found else 0), config.verl.workers


def _generation_ends(model: str) -> frozenset[int]:
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends or ())
