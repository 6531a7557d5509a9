"""Folders of result files -> scored dialogues.

Two kinds of files are read: EMPA's (`empa_files.py`) and our own records, one dialogue per line
(`dialogues/*.jsonl`). Every dialogue is recomputed from the judge's levels (`result.py`). If a dialogue is
recorded twice, the record written last counts, as in the viewer and in reports; links are not followed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue
from mapo.runs.contents import that_count
from mapo.runs.files import read_lines, written_at
from mapo.runs.kind import Kind, kind_of
from mapo.scoring.empa_files import read_result, read_tags
from mapo.scoring.result import Result, recompute
from mapo.store import BadLine, RunDir, is_ledger

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
