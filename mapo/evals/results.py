"""Folders of result files -> results, recomputed from what the judge filled in.

Two kinds of files are read: EMPA's (`empa_files.py`) and our own records, one line a dialogue
(`dialogues/*.jsonl`). Nothing derived is taken on trust: positions, metrics and the ending are computed
again from the levels, and `differences` says where a file disagrees.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path as File

from mapo.errors import InputError, RecordError, RubricError
from mapo.evals.empa_files import read_result, read_tags
from mapo.evals.epmq import indices
from mapo.evals.result import Result, ending_differences
from mapo.sandbox.potential import Path
from mapo.sandbox.rubric import SHIPPED, Rubric
from mapo.store import BadLine, RunDir, read_dialogues
from mapo.types import Dialogue, StopReason

OWN_FILES = {"manifest.json", "summary.json", "metrics.jsonl", "score.json"}
"""Files of a run directory that hold no dialogues."""


@dataclass(slots=True)
class Folder:
    """What one folder gave. `bad` names unusable files and lines; `torn`, last lines cut off by a kill."""

    path: File
    results: list[Result] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    broken: int = 0


def read_folders(root: File, profile: str | None = None, rubric: Rubric | None = None) -> list[Folder]:
    """`root` itself if it holds results, else each folder below it that does."""
    if not root.exists():
        raise InputError("no such folder", where=str(root), fix="Give a folder of result files or a run")
    if root.is_file():
        raise InputError("is a file, not a folder", where=str(root), fix=f"Try: mapo score {root.parent}")
    try:
        below = [root] if _files(root) else [d for d in sorted(root.iterdir()) if d.is_dir() and _files(d)]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(root)) from error
    if not below:
        raise InputError(
            "no result files in it",
            where=str(root),
            fix="Expected *_result.json (EMPA) or *.jsonl records, here or one folder below",
        )
    return [_read_folder(folder, profile, rubric) for folder in below]


def _files(folder: File) -> list[File]:
    lines = RunDir(folder).dialogues
    own = sorted(lines.glob("*.jsonl")) if lines.is_dir() else sorted(folder.glob("*.jsonl"))
    return [f for f in [*sorted(folder.glob("*.json")), *own] if f.name not in OWN_FILES]


def _read_folder(folder: File, profile: str | None, rubric: Rubric | None) -> Folder:
    got = Folder(folder)
    tags = read_tags(folder)
    for file in _files(folder):
        if file.suffix == ".json":
            try:
                result = read_result(file, profile or "published", rubric)
                got.results.append(replace(result, tags=tags.get(result.case, {})))
            except InputError as error:
                got.bad.append(str(error))
            continue
        try:
            for number, item in enumerate(read_dialogues(file), 1):
                _take(got, item, f"{file}, line {number}", profile, rubric)
        except InputError as error:
            got.bad.append(str(error))
    return got


def _take(
    got: Folder, item: Dialogue | BadLine, where: str, profile: str | None, rubric: Rubric | None
) -> None:
    if isinstance(item, BadLine):
        (got.torn if item.torn else got.bad).append(str(item))
        return
    if item.ending is not None and item.ending.reason is StopReason.BROKEN:
        got.broken += 1
        return
    try:
        got.results.append(recompute(item, got.path, profile, rubric, where))
    except InputError as error:
        got.bad.append(str(error) if error.where.startswith(where) else f"{where}: {error}")


# ---- our own records


def recompute(
    dialogue: Dialogue, folder: File, profile: str | None, rubric: Rubric | None, where: str
) -> Result:
    rubric = rubric or _rubric_of(dialogue.rubric, folder)
    path = Path(
        rubric,
        rubric.start(dialogue.start_levels),
        profile or dialogue.profile,
        min_turns=dialogue.min_turns,
        max_turns=dialogue.max_turns,
    )
    differences, forms, ending = [], [], None
    if path.start != dialogue.start:
        differences.append(f"{where}: start is {list(dialogue.start)}, its levels give {list(path.start)}")
    for number, turn in enumerate(dialogue.turns, 1):
        try:
            state = path.advance(None if turn.levels is None else rubric.step(turn.levels))
        except InputError as error:
            raise RecordError(str(error), where=f"{where}, turn {number}") from None
        if turn.levels is not None:
            forms.append(turn.levels)
        if turn.state is not None and turn.state.position != state.position:
            recorded = list(turn.state.position)
            differences.append(f"{where}, turn {number}: position is {recorded}, not {list(state.position)}")
        if ending := path.ending():
            break
    if not forms:
        raise RecordError("no judged turn", where=where, fix="A dialogue without judgements has no score")
    differences += ending_differences(path, ending, len(dialogue.turns), dialogue.ending, where)
    return Result(
        model=dialogue.model,
        case=dialogue.scenario,
        path=path,
        ending=ending,
        indices=indices(path, forms),
        unscored=sum(s.step is None for s in path.states[1:]),
        tags=dialogue.tags,
        differences=differences,
    )


def _rubric_of(name: str, folder: File) -> Rubric:
    copy = RunDir(folder).rubric
    if copy.exists():
        found = Rubric.load(copy)
        if found.name == name:
            return found
    if name not in SHIPPED:
        raise RubricError(
            f"rubric '{name}' is not shipped with mapo", fix=f"Put it at {copy}, or name it with --rubric"
        )
    return Rubric.load(name)
