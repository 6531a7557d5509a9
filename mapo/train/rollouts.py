"""Playing the dialogues of training steps and evaluations, across processes, with records on disk.

The scenarios and seeds of a step depend only on the run's seed and the step number, so a resumed run plays
what an uninterrupted one would have played.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mapo.measure.reward import RANK
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Job, held_out_seed, world_seed
from mapo.sandbox.ranking import rank_dialogues
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.start_levels import StartLevelTable
from mapo.scoring.score import Score, score_dialogues
from mapo.store import BadLine, JsonlWriter, process_files, process_of, read_dialogues, write_atomic
from mapo.train.processes import ProcessGroup
from mapo.types import Dialogue

if TYPE_CHECKING:
    from mapo.config import Eval
    from mapo.train.setup import Training


def step_jobs(
    scenarios: Sequence[Scenario], step: int, *, per_step: int, siblings: int, seed: int
) -> list[Job]:
    """Return the jobs of a step: `per_step` scenarios, each `siblings` times.

    Every epoch uses each scenario once, in a new order; a step may span two epochs. Siblings share the seed
    of their roles, which differs from step to step.
    """
    first = (step - 1) * per_step
    chosen: list[Scenario] = []
    while len(chosen) < per_step:
        epoch, at = divmod(first + len(chosen), len(scenarios))
        order = list(scenarios)
        random.Random(f"{seed}/epoch/{epoch}").shuffle(order)  # noqa: S311 (not a secret)
        chosen.append(order[at])
    groups = [(f"{i:03d}_{scenario.id}", scenario) for i, scenario in enumerate(chosen)]
    world = world_seed(seed, step)
    return [
        Job(scenario, id=f"{group}_{k}", group=group, seed=world, step=step)
        for group, scenario in groups
        for k in range(siblings)
    ]


def eval_jobs(scenarios: Sequence[Scenario], *, repeats: int, seed: int) -> list[Job]:
    """Return the jobs of an evaluation: each scenario `repeats` times, with the same seeds at every step."""
    return [
        Job(scenario, id=f"{scenario.id}_{k}", group=scenario.id, seed=held_out_seed(seed, k))
        for scenario in scenarios
        for k in range(1, repeats + 1)
    ]


def with_start_levels(jobs: Sequence[Job], table: StartLevelTable) -> list[Job]:
    """Return the jobs with the start levels that are known for their scenarios."""
    return [replace(job, start_levels=table.get(job.scenario.id)) for job in jobs]


def evaluation_rules(rules: Rules, settings: Eval) -> Rules:
    """Return the rules of validation and test, given those of training."""
    return replace(
        rules,
        reward="idr" if rules.reward == RANK else rules.reward,  # repeats are no siblings
        steps="likely",
        temperature=settings.temperature,
        top_p=settings.top_p,
        min_turns=settings.min_turns,
        max_turns=settings.max_turns or rules.max_turns,
    )


def share(jobs: Sequence[Job], processes: ProcessGroup) -> list[Job]:
    """Return the jobs of this process: every n-th group, complete."""
    groups = list(dict.fromkeys(job.group for job in jobs))
    own_groups = set(groups[processes.rank :: processes.world_size])
    return [job for job in jobs if job.group in own_groups]


async def play_jobs(
    t: Training, jobs: Sequence[Job], file: Path, rules: Rules, begins: Callable[[int, int], None]
) -> list[Dialogue]:
    """Play `jobs` across all processes and return the dialogues in job order. Each process appends its own
    dialogues to `file` as they finish.

    Dialogues that an interrupted run left on disk are used again if all of this process's are there, or if
    the roles cost money. Otherwise they are played again, so that the batch is the one that an uninterrupted
    run would have had. `begins` is called with the number of dialogues of all processes, and the number of
    this process's dialogues that are on disk.
    """
    own_jobs = with_start_levels(share(jobs, t.processes), t.start_levels)
    max_unscored = t.config.roles.max_unscored
    dialogues = _on_disk(file, own_jobs, max_unscored)
    if dialogues and len(dialogues) < len(own_jobs) and not t.paid:
        dialogues = {}
        _remove_from_disk(file, own_jobs, t.processes.world_size)
    begins(len(jobs), len(dialogues))
    missing = [job for job in own_jobs if job.id not in dialogues]
    if missing:
        with JsonlWriter(file) as writer:

            def save(dialogue: Dialogue) -> None:
                writer.write_dialogue(dialogue)
                t.callbacks.dialogue_done(dialogue)

            for dialogue in await play_all(
                missing,
                t.sampler.policy,
                t.casting,
                rules,
                concurrency=t.config.rollout.at_once,
                max_unscored=max_unscored,
                on_done=save,
                on_turn=t.callbacks.turn_done,
            ):
                dialogues[dialogue.id] = dialogue
    own = [dialogues[job.id] for job in own_jobs]
    if rules.reward == RANK:
        own = await rank_siblings(t, own_jobs, own, file)
    return gather_dialogues(own, jobs, t.processes)


async def rank_siblings(
    t: Training, jobs: Sequence[Job], dialogues: Sequence[Dialogue], file: Path
) -> list[Dialogue]:
    """Have the replies of siblings compared and store the result in `file`, unless it is there already."""
    usable = {dialogue.group for dialogue in dialogues if dialogue.usable}
    one_per_group = {job.group: job for job in jobs if job.group in usable}
    rankers = {group: t.casting(job).ranker for group, job in one_per_group.items()}
    roles = t.config.roles
    ranked = await rank_dialogues(
        dialogues, rankers, concurrency=roles.requests, max_failed=roles.max_unscored
    )
    if ranked != list(dialogues):
        ids = {dialogue.id for dialogue in ranked}
        written = read_dialogues(file) if file.exists() else ()
        rest = [d for d in written if not isinstance(d, BadLine) and d.id not in ids]
        write_atomic(file, b"".join(encode_dialogue(d) + b"\n" for d in [*rest, *ranked]))
    return ranked


async def evaluate(t: Training, scenarios: Sequence[Scenario], repeats: int, label: str) -> Score | None:
    """Play an evaluation and return its score; None if no dialogue was judged."""
    dialogues = await play_evaluation(t, scenarios, repeats, label)
    return score_dialogues(label, dialogues, t.rules.rubric)


async def play_evaluation(
    t: Training, scenarios: Sequence[Scenario], repeats: int, label: str
) -> list[Dialogue]:
    """Play an evaluation, with records in eval/LABEL/, and return the dialogues of all processes."""
    jobs = eval_jobs(scenarios, repeats=repeats, seed=t.config.run.seed)
    rules = evaluation_rules(t.rules, t.config.eval)
    begins = partial(t.callbacks.eval_begins, label)
    dialogues = await play_jobs(t, jobs, t.eval_file(label), rules, begins)
    t.callbacks.eval_ends(label)
    return dialogues


def _on_disk(file: Path, jobs: Sequence[Job], max_unscored: float) -> dict[str, Dialogue]:
    """Return the usable dialogues of these jobs on disk by id; the last of an id counts, `file` first.

    The files of all processes are read, because a run may be resumed with another number of processes.
    """
    by_id = {job.id: job for job in jobs}
    dialogues: dict[str, Dialogue] = {}
    for item in (item for each in _files_of_all_processes(file) for item in read_dialogues(each)):
        if isinstance(item, BadLine) or item.id not in by_id or item.seed != by_id[item.id].seed:
            continue
        unscored = sum(turn.levels is None for turn in item.turns)
        if item.usable and item.turns and unscored <= max_unscored * len(item.turns):
            dialogues[item.id] = item
    return dialogues


def _files_of_all_processes(file: Path) -> list[Path]:
    """Return NAME.jsonl, NAME.1.jsonl and so on, as far as they exist; `file` itself last."""
    return [each for each in process_files(file) if each != file] + [file] * file.exists()


def _remove_from_disk(file: Path, jobs: Sequence[Job], world_size: int) -> None:
    """Remove the dialogues of these jobs from `file`, and from files that no process writes to any more.

    Other dialogues in these files may be in use by other processes, so files are replaced atomically and
    never deleted.
    """
    ids = {job.id for job in jobs}
    unused = [
        each for each in _files_of_all_processes(file) if each != file and process_of(each) >= world_size
    ]
    for each in [*unused, *([file] if file.exists() else [])]:
        rest = [d for d in read_dialogues(each) if not isinstance(d, BadLine) and d.id not in ids]
        write_atomic(each, b"".join(encode_dialogue(d) + b"\n" for d in rest))


def gather_dialogues(own: Sequence[Dialogue], jobs: Sequence[Job], processes: ProcessGroup) -> list[Dialogue]:
    """Return the dialogues of all processes, in every process, in the order of `jobs`."""
    if processes.world_size == 1:
        return list(own)
    texts = processes.gather([encode_dialogue(d).decode() for d in own])
    by_id = {d.id: d for d in (decode_dialogue(text.encode()) for text in texts)}
    return [by_id[job.id] for job in jobs]


def write_json(path: Path, data: object) -> None:
    """Write a small JSON file atomically."""
    write_atomic(path, json.dumps(data, indent=1) + "\n")
