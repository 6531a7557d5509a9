"""Folders of result files -> results, recomputed from what the judge filled in.

Two kinds of files are read: EMPA's (`empa_files.py`) and our own records, one line a dialogue
(`dialogues/*.jsonl`). Nothing derived is taken on trust: positions, metrics and the ending are computed
again from the levels, and `differences` says where a file disagrees. Of a dialogue that is there twice the
record written last counts, as in the viewer and in reports (`reading/`); links are not followed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

from mapo.errors import InputError, RecordError, RubricError
from mapo.measure.epmq import indices
from mapo.measure.potential import Trajectory
from mapo.measure.reward import rewards_of
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue
from mapo.runs.contents import read_rubric, rubric_file, that_count
from mapo.runs.files import read_lines, written_at
from mapo.runs.kind import Kind, kind_of
from mapo.scoring.empa_files import read_result, read_tags
from mapo.scoring.result import Result, ending_differences
from mapo.store import BadLine, RunDir, is_ledger
from mapo.types import OUTSIDE_THE_RULES, Dialogue, PotentialState

OWN_FILES = {
    entry.name
    for entry in (
        *(RunDir.manifest, RunDir.summary, RunDir.metrics, RunDir.best, RunDir.health),
        *(RunDir.result, RunDir.items, RunDir.score),
    )
}
"""Files of a run directory that hold no dialogues; nor do its ledgers."""


@dataclass(slots=True)
class Folder:
    """What one folder gave. `bad` names unusable files and lines; `torn`, last lines cut off by a kill."""

    path: Path
    results: list[Result] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    broken: set[tuple[str, str]] = field(default_factory=set)
    """Broken dialogues, by step and id; one that was played again and finished is not among them."""
    steps: set[str] = field(default_factory=set)
    """The training steps whose dialogues these are; none for a test's."""


def read_folders(root: Path, profile: str | None = None, rubric: Rubric | None = None) -> list[Folder]:
    """`root` itself if it holds results, else each folder below it; no link in them is followed."""
    try:
        if not root.exists():
            raise InputError("no such folder", where=str(root), fix="Give a folder of result files or a run")
        if root.is_file():
            raise InputError("is a file, not a folder", where=str(root), fix=f"Try its folder: {root.parent}")
        root = root.resolve() if root.is_symlink() else root  # it was named by whoever asked
        here = _files(root)
        sure = kind_of(root) in (Kind.TRAINING, Kind.EMPA, Kind.EMPA_FILES, Kind.DIALOGUES)
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
    own = lines.iterdir() if lines.is_dir() and not lines.is_symlink() else folder.iterdir()
    found = [f for f in folder.iterdir() if f.suffix == ".json"] + [f for f in own if f.suffix == ".jsonl"]
    linked = [lines] if lines.is_symlink() else []  # refused when it is opened, like any other link
    return sorted(f for f in (*found, *linked) if f.name not in OWN_FILES and not is_ledger(f.name))


def _read_folder(folder: Path, profile: str | None, rubric: Rubric | None) -> Folder:
    got = Folder(folder)
    if folder.is_symlink():
        got.bad.append(f"{folder}: a link; not followed: name the folder itself")
        return got
    try:
        found = _files(folder)
    except OSError as error:
        got.bad.append(f"{folder}: cannot be read ({error.strerror})")
        return got
    tags = read_tags(folder, got.bad)
    records = (record for file in found for record in _records(got, file, profile, rubric, tags))
    for record in that_count(_told_twice(got, records)).values():
        got.steps |= {record.step} if record.step else set()
        if record.broken:
            got.broken.add((record.step, record.id))
        elif record.result is not None:
            got.results.append(record.result)
    return got


class _Record(NamedTuple):
    """`result` is None of a broken dialogue, and of one that cannot be scored. `step` is the training step
    its file is of, if any: each step names its dialogues anew."""

    model: str
    id: str
    where: str
    step: str
    written: int
    broken: bool
    result: Result | None = None


def _told_twice(got: Folder, records: Iterable[_Record]) -> Iterator[tuple[Hashable, bool, int, _Record]]:
    """Records as `that_count` takes them; a dialogue that is there a second time is told."""
    seen: set[Hashable] = set()
    for record in records:
        key = (record.step, record.model, record.id)
        if not record.broken and key in seen:
            told = f"dialogue '{record.id}' of '{record.model}' is there twice; the one written last counts"
            got.bad.append(f"{record.where}: {told}")
        seen |= set() if record.broken else {key}
        yield key, not record.broken, record.written, record


def _records(
    got: Folder, file: Path, profile: str | None, rubric: Rubric | None, tags: Mapping[str, dict[str, str]]
) -> Iterator[_Record]:
    """A file's records, scored as they are read; what cannot be used is told."""
    written = written_at(file)
    if file.suffix == ".json":
        try:
            result = read_result(file, profile or "published", rubric)
        except InputError as error:
            got.bad.append(_placed(error, str(file)))
            return
        result = replace(result, tags=tags.get(result.case, {}))
        yield _Record(result.model, result.id, str(file), "", written, False, result)
        return
    step = _step_of(file)
    for number, item in enumerate(read_lines(file, decode_dialogue), 1):
        where = f"{file}, line {number}"
        if isinstance(item, BadLine):
            told = str(item) if item.line else f"{file}: {item.problem}"
            (got.torn if item.torn else got.bad).append(told)
        elif not item.usable:
            yield _Record(item.model, item.id, where, step, written, True)
        else:
            found = None
            try:
                found = recompute(item, got.path, profile, rubric, where)
            except InputError as error:
                got.bad.append(_placed(error, where))
            yield _Record(item.model, item.id, where, step, written, False, found)


def _step_of(file: Path) -> str:
    """step_00001 of step_00001.jsonl, and of step_00001.1.jsonl, which another process wrote."""
    name = file.name.partition(".")[0]
    return name if name.startswith("step_") else ""


def _placed(error: InputError, where: str) -> str:
    return str(error) if error.where.startswith(where) else f"{where}: {error}"


# ---- our own records


def recompute(
    dialogue: Dialogue, folder: Path, profile: str | None, rubric: Rubric | None, where: str
) -> Result:
    """Replay a record's levels under `profile` (its own if None), and say where it disagrees."""
    rubric = rubric or _rubric_of(dialogue.rubric, rubric_file(folder))
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


def _rubric_of(name: str, copy: Path) -> Rubric:
    found, problem = read_rubric(copy, name)
    if problem:
        raise RubricError(problem, where=str(copy), fix="Restore it, or name another with --rubric")
    if found is None:
        raise RubricError(
            f"rubric '{name}' is not shipped with mapo", fix=f"Put it at {copy}, or name it with --rubric"
        )
    return found
