"""Folders of result files -> results, recomputed from what the judge filled in.

Two kinds of files are read: EMPA's (`empa_files.py`) and our own records, one line a dialogue
(`dialogues/*.jsonl`). Nothing derived is taken on trust: positions, metrics and the ending are computed
again from the levels, and `differences` says where a file disagrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path

from mapo.errors import InputError, RecordError, RubricError
from mapo.evals.empa_files import read_result, read_tags
from mapo.evals.epmq import indices
from mapo.evals.result import Result, ending_differences
from mapo.sandbox.potential import Trajectory
from mapo.sandbox.reward import rewards_of
from mapo.sandbox.rubric import SHIPPED, Rubric
from mapo.store import BadLine, RunDir, read_dialogues
from mapo.types import OUTSIDE_THE_RULES, Dialogue, PotentialState, StopReason

OWN_FILES = {"manifest.json", "summary.json", "metrics.jsonl", "ledger.json", "score.json"} | {
    "result.json",
    "items.jsonl",
    "best.json",
}
"""Files of a run directory that hold no dialogues."""


@dataclass(slots=True)
class Folder:
    """What one folder gave. `bad` names unusable files and lines; `torn`, last lines cut off by a kill."""

    path: Path
    results: list[Result] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Ids of broken dialogues; one that was played again and finished is not among them in the end."""


def read_folders(root: Path, profile: str | None = None, rubric: Rubric | None = None) -> list[Folder]:
    """`root` itself if it holds results, else each folder below it."""
    try:
        if not root.exists():
            raise InputError("no such folder", where=str(root), fix="Give a folder of result files or a run")
        if root.is_file():
            raise InputError("is a file, not a folder", where=str(root), fix=f"Try its folder: {root.parent}")
        here = _files(root)
        sure = any(f.suffix == ".jsonl" or f.name.endswith("_result.json") for f in here)
        below = [] if sure else [d for d in sorted(root.iterdir()) if d.is_dir() and _holds_results(d)]
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})",
            where=str(root)[:200],
            fix="Check the path and its permissions",
        ) from error
    if not here and not below:
        raise InputError(
            "no result files in it",
            where=str(root),
            fix="Expected *_result.json (EMPA) or *.jsonl records, here or one folder below",
        )
    return [_read_folder(folder, profile, rubric) for folder in below or [root]]


def _holds_results(folder: Path) -> bool:
    try:
        return bool(_files(folder))
    except OSError:
        return True  # reading it will say what is wrong


def _files(folder: Path) -> list[Path]:
    lines = RunDir(folder).dialogues
    own = lines.iterdir() if lines.is_dir() else folder.iterdir()
    files = [f for f in folder.iterdir() if f.suffix == ".json"] + [f for f in own if f.suffix == ".jsonl"]
    return sorted(f for f in files if f.name not in OWN_FILES)


def _read_folder(folder: Path, profile: str | None, rubric: Rubric | None) -> Folder:
    got = Folder(folder)
    try:
        files = _files(folder)
    except OSError as error:
        got.bad.append(f"{folder}: cannot be read ({error.strerror})")
        return got
    tags = read_tags(folder, got.bad)
    seen: set[tuple[str, str]] = set()
    for file in files:
        try:
            if file.exists() and not file.is_file():
                raise RecordError("cannot be read (not a regular file)", where=str(file))
            if file.suffix == ".json":
                result = read_result(file, profile or "published", rubric)
                _add(got, replace(result, tags=tags.get(result.case, {})), str(file), seen)
                continue
            for number, item in enumerate(read_dialogues(file), 1):
                _take(got, item, f"{file}, line {number}", profile, rubric, seen)
        except InputError as error:
            got.bad.append(_placed(error, str(file)))
    return got


def _take(
    got: Folder,
    item: Dialogue | BadLine,
    where: str,
    profile: str | None,
    rubric: Rubric | None,
    seen: set[tuple[str, str]],
) -> None:
    if isinstance(item, BadLine):
        (got.torn if item.torn else got.bad).append(str(item))
    elif item.ending is not None and item.ending.reason is StopReason.BROKEN:
        got.broken.add(item.id)
    else:
        try:
            _add(got, recompute(item, got.path, profile, rubric, where), where, seen)
        except InputError as error:
            got.bad.append(_placed(error, where))


def _add(got: Folder, result: Result, where: str, seen: set[tuple[str, str]]) -> None:
    key = (result.model, result.id)
    if key in seen:
        got.bad.append(f"{where}: dialogue '{result.id}' of '{result.model}' is there twice; counted once")
        return
    seen.add(key)
    got.broken.discard(result.id)
    got.results.append(result)


def _placed(error: InputError, where: str) -> str:
    return str(error) if error.where.startswith(where) else f"{where}: {error}"


# ---- our own records


def recompute(
    dialogue: Dialogue, folder: Path, profile: str | None, rubric: Rubric | None, where: str
) -> Result:
    """Replay a record's levels under `profile` (its own if None), and say where it disagrees."""
    rubric = rubric or _rubric_of(dialogue.rubric, RunDir(folder).rubric)
    same = profile in (None, dialogue.profile)
    path = Trajectory(
        rubric,
        rubric.start(dialogue.start_levels),
        profile or dialogue.profile,
        min_turns=dialogue.min_turns,
        max_turns=dialogue.max_turns,
    )
    differences, ending = [], None
    if path.start != dialogue.start:
        differences.append(f"{where}: start is {list(dialogue.start)}, its levels give {list(path.start)}")
    for number, turn in enumerate(dialogue.turns, 1):
        try:
            state = path.judge(turn.levels)
        except InputError as error:
            raise RecordError(str(error), where=f"{where}, turn {number}") from None
        if turn.state is not None and same:
            differences += _state_differences(turn.state, state, f"{where}, turn {number}")
        if ending := path.ending():
            break
    if not path.forms:
        raise RecordError("no judged turn", where=where, fix="A dialogue without judgements has no score")
    if same:
        differences += _reward_differences(dialogue, path, where)
    differences += ending_differences(path, ending, len(dialogue.turns), dialogue.ending, where)
    if ending is None and dialogue.ending is not None and dialogue.ending.reason in OUTSIDE_THE_RULES:
        ending = dialogue.ending
    return Result(
        model=dialogue.model,
        case=dialogue.scenario,
        path=path,
        ending=ending,
        indices=indices(path),
        unscored=sum(s.step is None for s in path.states[1:]),
        id=dialogue.id,
        tags=dialogue.tags,
        cast=dialogue.cast,
        differences=differences,
    )


def _state_differences(recorded: PotentialState, state: PotentialState, where: str) -> Iterator[str]:
    for field_ in fields(PotentialState):
        theirs, ours = getattr(recorded, field_.name), getattr(state, field_.name)
        if theirs != ours:
            yield f"{where}: {field_.name} is {theirs}, not {ours}"


def _reward_differences(dialogue: Dialogue, path: Trajectory, where: str) -> Iterator[str]:
    name, _, distance = dialogue.reward.partition("/")
    if name not in ("idr", "adr", "increment", "outcome") or path.now.turn < len(dialogue.turns):
        return
    ours = rewards_of(
        path, name, distance="origin" if distance == "origin" else "zone", ending=dialogue.ending
    )
    for number, (turn, reward) in enumerate(zip(dialogue.turns, ours, strict=True), 1):
        if (turn.reward is None) != (reward is None) or abs((turn.reward or 0) - (reward or 0)) > 1e-9:
            yield f"{where}, turn {number}: reward is {turn.reward}, not {reward}"


@lru_cache
def _rubric_of(name: str, copy: Path) -> Rubric:
    if copy.exists():
        found = Rubric.load(copy)
        if found.name == name:
            return found
    if name not in SHIPPED:
        raise RubricError(
            f"rubric '{name}' is not shipped with mapo", fix=f"Put it at {copy}, or name it with --rubric"
        )
    return Rubric.load(name)
