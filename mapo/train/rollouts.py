"""The dialogues of a step, and of a test: which ones, played where, kept how.

Everything about a step follows from the run's seed and the step's number: which scenarios, which seeds.
So a run that was cut off can be taken up at any step and plays what it would have played.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Job, held_out_seed, world_seed
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.scenario import Scenario
from mapo.scoring.score import Score, score_dialogues
from mapo.store import BadLine, JsonlWriter, process_files, process_of, read_dialogues, write_atomic
from mapo.train.processes import Team
from mapo.types import Dialogue

if TYPE_CHECKING:
    from mapo.train.setup import Training


def step_jobs(
    scenarios: Sequence[Scenario], step: int, *, per_step: int, siblings: int, seed: int
) -> list[Job]:
    """The step's scenarios, each `siblings` times. Every epoch goes through all of them once, in an order
    of its own; a step may span two epochs. Siblings meet the same world, which is another at each step."""
    first = (step - 1) * per_step
    picked: list[Scenario] = []
    while len(picked) < per_step:
        epoch, at = divmod(first + len(picked), len(scenarios))
        order = list(scenarios)
        random.Random(f"{seed}/epoch/{epoch}").shuffle(order)  # noqa: S311 (an order, no secret)
        picked.append(order[at])
    groups = [(f"{i:03d}_{scenario.id}", scenario) for i, scenario in enumerate(picked)]
    world = world_seed(seed, step)
    return [
        Job(scenario, id=f"{group}_{k}", group=group, seed=world, step=step)
        for group, scenario in groups
        for k in range(siblings)
    ]


def eval_jobs(scenarios: Sequence[Scenario], *, repeats: int, seed: int) -> list[Job]:
    """Every scenario `repeats` times; the same seeds at every step, so that steps can be compared."""
    return [
        Job(scenario, id=f"{scenario.id}_{k}", group=scenario.id, seed=held_out_seed(seed, k))
        for scenario in scenarios
        for k in range(1, repeats + 1)
    ]


def share(jobs: Sequence[Job], team: Team) -> list[Job]:
    """This member's jobs: whole groups, dealt out in turn."""
    groups = list(dict.fromkeys(job.group for job in jobs))
    mine = set(groups[team.rank :: team.world])
    return [job for job in jobs if job.group in mine]


async def played(
    t: Training, jobs: Sequence[Job], file: Path, rules: Rules, begins: Callable[[int, int], None]
) -> list[Dialogue]:
    """All jobs' dialogues, every member's, in order; this member's are on disk in `file` as they end.

    What a run that was cut off left there, or beside it in another member's file, is used again: always if
    it is all there, or if the roles cost money. A part of it that costs nothing is played anew, so that
    every batch is the one an undisturbed run would have had. `begins` is told how many are this member's, and
    how many of those are there already.
    """
    mine = share(jobs, t.team)
    max_unscored = t.config.roles.max_unscored
    kept = _kept(file, mine, max_unscored)
    if kept and len(kept) < len(mine) and not t.paid:
        kept = {}
        _drop(file, mine, t.team.world)
    begins(len(mine), len(kept))
    todo = [job for job in mine if job.id not in kept]
    if todo:
        with JsonlWriter(file) as writer:

            def keep(dialogue: Dialogue) -> None:
                writer.write_dialogue(dialogue)
                t.callbacks.dialogue_done(dialogue)

            for dialogue in await play_all(
                todo,
                t.sampler.policy,
                t.casting,
                rules,
                concurrency=t.config.rollout.at_once,
                max_unscored=max_unscored,
                on_done=keep,
                on_turn=t.callbacks.turn_done,
            ):
                kept[dialogue.id] = dialogue
    return gather_dialogues([kept[job.id] for job in mine], jobs, t.team)


async def evaluate(t: Training, scenarios: Sequence[Scenario], repeats: int, label: str) -> Score | None:
    """The score, with the dialogues in eval/LABEL/; None if nothing was played or judged."""
    dialogues = await evaluated(t, scenarios, repeats, label)
    return score_dialogues(label, dialogues, t.rules.rubric)


async def evaluated(t: Training, scenarios: Sequence[Scenario], repeats: int, label: str) -> list[Dialogue]:
    """The dialogues themselves, everybody's; what is on disk already is not played again."""
    jobs = eval_jobs(scenarios, repeats=repeats, seed=t.config.run.seed)
    settings = t.config.eval
    turns = settings.max_turns or t.config.rollout.max_turns
    rules = replace(t.rules, temperature=settings.temperature, top_p=settings.top_p, max_turns=turns)
    return await played(t, jobs, t.eval_file(label), rules, partial(t.callbacks.eval_begins, label))


def _kept(file: Path, jobs: Sequence[Job], max_unscored: float) -> dict[str, Dialogue]:
    """Dialogues of these jobs that need not be played again; the last of an id counts, in `file` first.

    Whoever played them: a run may be resumed with another number of processes, and then other members have
    these jobs.
    """
    wanted = {job.id: job for job in jobs}
    found: dict[str, Dialogue] = {}
    for item in (item for each in _members_files(file) for item in read_dialogues(each)):
        if isinstance(item, BadLine) or item.id not in wanted or item.seed != wanted[item.id].seed:
            continue
        unscored = sum(turn.levels is None for turn in item.turns)
        if item.usable and item.turns and unscored <= max_unscored * len(item.turns):
            found[item.id] = item
    return found


def _members_files(file: Path) -> list[Path]:
    """NAME.jsonl, NAME.1.jsonl and so on, as far as they are there; `file` itself last."""
    return [each for each in process_files(file) if each != file] + [file] * file.exists()


def _drop(file: Path, jobs: Sequence[Job], world: int) -> None:
    """Take these jobs' dialogues out of `file`, and out of files no member of `world` writes to any more.

    The rest may be what another member goes on with, so a file is replaced whole and never gone.
    """
    ids = {job.id for job in jobs}
    nobodys = [each for each in _members_files(file) if each != file and process_of(each) >= world]
    for each in [*nobodys, *([file] if file.exists() else [])]:
        rest = [d for d in read_dialogues(each) if not isinstance(d, BadLine) and d.id not in ids]
        write_atomic(each, b"".join(encode_dialogue(d) + b"\n" for d in rest))


def gather_dialogues(mine: Sequence[Dialogue], jobs: Sequence[Job], team: Team) -> list[Dialogue]:
    """Everybody's dialogues, for everybody, in the order of all members' `jobs`: how many members there are
    changes nothing."""
    if team.world == 1:
        return list(mine)
    texts = team.gather([encode_dialogue(d).decode() for d in mine])
    found = {d.id: d for d in (decode_dialogue(text.encode()) for text in texts)}
    return [found[job.id] for job in jobs]


def write_json(path: Path, data: object) -> None:
    """A small JSON file, whole or not at all."""
    write_atomic(path, json.dumps(data, indent=1) + "\n")
