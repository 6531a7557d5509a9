"""State shared by the dialogues of one agent-loop worker process: roles, limits, records, judge monitors.

verl creates an agent loop per dialogue and runs many of them concurrently in a few processes. The first one
opens the `AgentWorker`, which lives as long as the process. verl passes only the path of the run directory;
everything else is read from there.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapo.config import Config, load_config
from mapo.local_model.template import Template, keep_turns_verbatim, read_template
from mapo.sandbox.cast import Casting, Job, held_out_seed, world_seed
from mapo.sandbox.monitoring.judge_failures import JudgeMonitor
from mapo.sandbox.rollout import Rules
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scenarios.start_levels import StartLevelTable
from mapo.store import JsonlWriter, RunDir
from mapo.train.rollouts import evaluation_rules, with_start_levels
from mapo.types import Dialogue

_workers: dict[Path, AgentWorker] = {}
_lock = asyncio.Lock()


@dataclass(slots=True)
class AgentWorker:
    """Everything the dialogues of one process share."""

    config: Config
    run: RunDir
    scenarios: dict[str, Scenario]
    start_levels: StartLevelTable
    template: Template
    end_ids: frozenset[int]
    casting: Casting
    rules: Rules
    rank: int
    semaphore: asyncio.Semaphore
    stack: AsyncExitStack
    flush: Any
    writers: dict[Path, JsonlWriter] = field(default_factory=dict)
    monitors: dict[tuple[str, int], JudgeMonitor] = field(default_factory=dict)

    def job(self, scenario: str, split: str, step: int, group: str, number: int) -> Job:
        """Return the job of one dialogue, with the same seeds as in the local engine."""
        card, seed = self.scenarios[scenario], self.config.run.seed
        if split == "train":
            job = Job(card, id=f"{group}_{number}", group=group, seed=world_seed(seed, step), step=step)
        else:
            held_out = held_out_seed(seed, number + 1)
            job = Job(card, id=f"{scenario}_{number + 1}", group=scenario, seed=held_out)
        [job] = with_start_levels([job], self.start_levels)
        return job

    def rules_for(self, split: str) -> Rules:
        if split == "train":
            return self.rules
        return evaluation_rules(self.rules, self.config.eval)

    def monitor(self, split: str, step: int) -> JudgeMonitor:
        """Return the judge monitor of a step. Each step has its own, so that late failures are noticed."""
        if (split, step) not in self.monitors:
            self.monitors = {(split, step): JudgeMonitor(self.config.roles.max_unscored)}
        return self.monitors[split, step]

    def record(self, dialogue: Dialogue, split: str, step: int) -> None:
        """Append a finished dialogue to this process's file."""
        file = dialogue_file(self.run, split, step, self.config.optim.steps, self.rank)
        if file not in self.writers:
            for writer in self.writers.values():  # only one file is open at a time
                writer.close()
            self.writers = {file: JsonlWriter(file)}
        self.writers[file].write_dialogue(dialogue)
        self.flush()


def dialogue_file(run: RunDir, split: str, step: int, steps: int, rank: int) -> Path:
    """Return the file of a split's dialogues at a step, named as in runs of the local engine."""
    if split == "train":
        return run.dialogues_of(step, rank)
    test_name = "before" if step == 0 else "after" if step >= steps else f"test_{step:05d}"
    return run.eval_dialogues(f"validation_{step:05d}" if split == "validation" else test_name, rank)


async def get_worker(root: Path, tokenizer: Any, model: str) -> AgentWorker:
    """Return this process's worker for a run directory, opening it on the first call."""
    async with _lock:
        if root not in _workers:
            _workers[root] = await _open_worker(root, tokenizer, model)
        return _workers[root]


async def _open_worker(root: Path, tokenizer: Any, model: str) -> AgentWorker:
    from mapo.engines.verl.roles import open_role
    from mapo.players.session import open_cast
    from mapo.train.run import rules_of
    from mapo.train.setup import start_levels_of

    config = load_config(RunDir(root).verl_config, flat=True)
    template = keep_turns_verbatim(read_template(tokenizer, enable_thinking=config.model.thinking))
    rank, workers = _worker_rank(), config.verl.workers
    stack = AsyncExitStack()
    cast = open_cast(config, root, rank, shared_by=workers, open_role=open_role)
    casting, flush, _ = await stack.enter_async_context(cast)
    return AgentWorker(
        config=config,
        run=RunDir(root),
        scenarios=_scenarios(config),
        start_levels=start_levels_of(config),
        template=template,
        end_ids=template.end_ids | _generation_end_ids(model),
        casting=casting,
        rules=rules_of(config),
        rank=rank,
        semaphore=asyncio.Semaphore(max(1, config.rollout.at_once // workers)),
        stack=stack,
        flush=flush,
    )


def _scenarios(config: Config) -> dict[str, Scenario]:
    """Return the scenarios of all splits by id. Leakage between splits was checked before the run started."""
    sources = config.scenarios
    splits = (sources.train, sources.validation, sources.test)
    return {s.id: s for split in splits for s in load_scenarios(split, sources.domain)}


def _worker_rank() -> int:
    """Return the number of this process among the agent-loop workers."""
    import ray

    name = (ray.get_runtime_context().get_actor_name() or "") if ray.is_initialized() else ""
    match = re.match(r"agent_loop_worker_(\d+)_", name)
    return int(match[1]) if match else 0


def _generation_end_ids(model: str) -> frozenset[int]:
    """Return the end-of-sequence ids in the model's generation config, if it has one."""
    from transformers import GenerationConfig

    try:
        ids = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids or ())
