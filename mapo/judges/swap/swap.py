"""Whole runs judged again by another judge: would it have come to the same result?

Every dialogue of finished runs is shown to the other judge as it was played, turn by turn, and its
trajectory, EPM-Q and ending are computed from the new levels. What was said stays as it was: the person,
steered by the first judge's levels, said what they said, and the dialogue stopped where it stopped. So a
dialogue that the new judge would have ended earlier is cut there, and one that it would have gone on with
counts as not over, which is no pass. Passes under the new judge are therefore a little hard on it; the order
of runs and the differences between them are what to read.

OUT/manifest.json, items.jsonl, cache.sqlite, ledger.json    as for every benchmark; an item is a dialogue
    RUN/manifest.json, dialogues/empa.jsonl                  a run of its own for `mapo score` and `mapo
    compare` swap.json, swap.md                                       the runs under both judges
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mapo.errors import AnswerError, InputError, RecordError
from mapo.evals.items import ASK_ANEW, Line
from mapo.judges.sample import Talk
from mapo.measure.potential import Trajectory
from mapo.measure.reward import REWARDS, rewards_of
from mapo.records import encode, encode_dialogue
from mapo.runs.claim import digest, read_manifest
from mapo.runs.kind import Kind, kind_in_manifest
from mapo.sandbox.cast import Job, Judge, panel_of
from mapo.sandbox.panel import Seat
from mapo.store import RunDir, write_atomic
from mapo.types import OUTSIDE_THE_RULES, AxisMarks, Dialogue, Levels, Mark, StartLevels, Turn

SCHEMA = "mapo.swap/1"
STEERED = ", on dialogues steered by "


@dataclass(frozen=True, slots=True)
class Again:
    """A dialogue to be judged again. `start`: whether its start form is the judge's too."""

    talk: Talk
    start: bool

    @property
    def id(self) -> str:
        return self.talk.id


def again(talks: Sequence[Talk], given: Mapping[str, bool]) -> list[Again]:
    """`given` says of a run whether its start levels were handed to it; those of scenarios always were."""
    return [Again(t, not t.scenario.start_levels and not given.get(t.run, False)) for t in talks]


def solving(seat: Seat) -> Callable[[Again, int], Awaitable[dict[str, Any]]]:
    """What `bench.run_items` calls for each dialogue: all its turns in order, because a judge may
    remember."""

    async def solve(item: Again, attempt: int) -> dict[str, Any]:
        dialogue = item.talk.dialogue
        job = Job(item.talk.scenario, f"again/{item.id}", seed=dialogue.seed or 0, attempt=attempt)
        judge = seat.judge(job)
        start = await judge.start() if item.start else None
        turns = [await _turn(judge, dialogue.turns[:at], item) for at in range(1, len(dialogue.turns) + 1)]
        return {"start": start and {key: asdict(mark) for key, mark in start.items()}, "turns": turns}

    return solve


async def _turn(judge: Judge, turns: Sequence[Turn], item: Again) -> dict[str, Any]:
    rubric = item.talk.rubric
    try:
        levels = await judge.judge([replace(turn, levels=None, state=None) for turn in turns])
        rubric.step(levels)
    except (AnswerError, InputError) as problem:
        return {"unscored": str(problem), "panel": panel_of(judge, rubric)}
    return {"levels": {k: asdict(levels[k]) for k in rubric.keys}, "panel": panel_of(judge, rubric)}


# ---- records of their own


def judged_again(item: Again, line: Line, judge: str) -> Dialogue:
    """The record as this judge would have left it, as far as it was played."""
    dialogue = item.talk.dialogue
    where = f"{RunDir.items.name}, {item.id}"
    try:
        start = _start(line["start"]) if line["start"] else dialogue.start_levels
        forms = [_form(turn.get("levels")) for turn in line["turns"]]
        told = [(turn.get("unscored"), turn.get("panel")) for turn in line["turns"]]
        path = Trajectory(
            item.talk.rubric,
            item.talk.rubric.start(start),
            dialogue.profile,
            min_turns=dialogue.min_turns,
            max_turns=dialogue.max_turns,
        )
        turns, ending = [], None
        for turn, levels, (unscored, panel) in zip(dialogue.turns, forms, told, strict=True):
            members = {name: tuple(own) for name, own in panel.items()} if panel else None
            state = path.judge(levels)
            turns.append(replace(turn, levels=levels, state=state, unscored=unscored, panel=members))
            if ending := path.ending():
                break
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"no dialogue judged again ({error!r})", where=where, fix=ASK_ANEW) from None
    recorded = dialogue.ending
    if ending is None and recorded is not None and recorded.reason in OUTSIDE_THE_RULES:
        ending = recorded
    name, _, distance = dialogue.reward.partition("/")
    known = name if name in REWARDS else "idr"
    rewards = rewards_of(path, known, distance="origin" if distance == "origin" else "zone", ending=ending)
    return replace(
        dialogue,
        start_levels=start,
        start=path.start,
        turns=tuple(replace(turn, reward=r) for turn, r in zip(turns, rewards, strict=True)),
        ending=ending,
        cast={**dialogue.cast, "judge": judge},
    )


def _start(given: Mapping[str, Any]) -> StartLevels:
    return {key: Mark(**mark) for key, mark in given.items()}


def _form(given: Mapping[str, Any] | None) -> Levels | None:
    if given is None:
        return None
    return {k: AxisMarks(Mark(**v["progress"]), Mark(**v["regression"])) for k, v in given.items()}


def title(judge: str, before: str) -> str:
    """What the judge of such records is called: no run that it judged while it was played stands beside
    them. Judged again and again, the dialogues are still those of the first."""
    return f"{judge}{STEERED}{before.rpartition(STEERED)[2]}"


@dataclass(frozen=True, slots=True)
class Source:
    """A run, or one test of a training run, and where its new records go."""

    name: str
    root: Path
    model: str
    folder: str

    @staticmethod
    def of(talk: Talk, roots: Mapping[str, Path]) -> Source:
        name, _, when = (
            talk.run.rpartition("/") if talk.run.endswith(("/before", "/after")) else (talk.run, "", "")
        )
        model = f"{name}, {when}" if when else talk.dialogue.model
        plain = "".join(c if c.isalnum() or c in "-._" else "_" for c in talk.run).strip(".") or "run"
        return Source(talk.run, roots[name], model, f"{plain}-{digest(talk.run)[:4]}")


def evaluations(talks: Sequence[Talk]) -> list[Talk]:
    """What is an evaluation: all of one, and of a training run its tests."""
    training = {t.run for t in talks if t.dialogue.step is not None}
    return [t for t in talks if t.run not in training]


def write_run(
    out: Path, source: Source, items: Sequence[Again], lines: Mapping[str, Line], judge: str
) -> Path:
    """A folder like that of an evaluation, with the new levels in it."""
    folder = out / source.folder
    before = items[0].talk.dialogue.cast.get("judge") or "unknown"
    named = title(judge, before)
    records = [judged_again(item, lines[item.id], named) for item in items if item.id in lines]
    text = b"".join(encode_dialogue(record) + b"\n" for record in records)
    run = RunDir(folder)
    write_atomic(run.empa_dialogues, text)
    own = RunDir(source.root).rubric
    if own.exists():
        write_atomic(run.rubric, own.read_bytes())
    write_atomic(run.manifest, encode(_manifest(source, items, named), str(run.manifest)) + b"\n")
    return folder


def _manifest(source: Source, items: Sequence[Again], judge: str) -> dict[str, Any]:
    """The evaluation's own with another judge in it; of a training's test, what `mapo compare` asks for."""
    told = read_manifest(RunDir(source.root).manifest) if RunDir(source.root).manifest.exists() else {}
    dialogue = items[0].talk.dialogue
    cast = {**dict.fromkeys(("user", "director"), "unknown"), **dialogue.cast, "judge": judge}
    again = {"cast": cast, "judged_again": {"run": source.name}}
    if kind_in_manifest(told) is Kind.EMPA:
        return {**told, **again}
    cases = list(dict.fromkeys(item.talk.dialogue.scenario for item in items))
    known = (told.get("scenarios") or {}).get("test") or {}
    return {
        "schema": "mapo.empa/1",
        "model": source.model,
        "scenarios": {case: str(known.get(case, "")) for case in cases},
        "repeats": max(1, len(items) // len(cases)),
        "profile": dialogue.profile,
        **again,
    }


def starts_given(root: Path) -> bool:
    """Whether an evaluation was handed its start levels."""
    path = RunDir(root).manifest
    return bool(path.exists() and read_manifest(path).get("start_levels"))


def swap_manifest(judge: str, talks: Sequence[Talk]) -> dict[str, Any]:
    """What makes a swap the swap it is."""
    said = {talk.id: digest([[t.user, t.reply.text] for t in talk.dialogue.turns]) for talk in talks}
    return {"schema": SCHEMA, "judge": judge, "dialogues": digest(json.loads(json.dumps(said)))}
