"""Reader of folders with recorded dialogues.

Two kinds of files are read: EMPA result files (`empa_files.py`) and mapo records, one dialogue per line
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
from mapo.runs.contents import deduplicated
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
"""Files of a run directory that hold no dialogues."""


@dataclass(slots=True)
class Folder:
    """The dialogues of one folder. `bad` lists unusable files and lines, `torn` lines cut off by a kill."""

    path: Path
    results: list[Result] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    broken: set[tuple[str, str]] = field(default_factory=set)
    """Broken dialogues by step and id, without those that finished when played again."""
    steps: set[str] = field(default_factory=set)
    """The training steps of the dialogues; empty for evaluations."""


def read_folders(root: Path, profile: str | None = None, rubric: Rubric | None = None) -> list[Folder]:
    """Read `root` if it holds results, otherwise each folder in it. Links are not followed."""
    try:
        if not root.exists():
            raise InputError(
                "the folder does not exist", where=str(root), fix="Pass a run or a folder of result files"
            )
        if root.is_file():
            raise InputError(
                "this is a file, not a folder", where=str(root), fix=f"Pass its folder: {root.parent}"
            )
        root = root.resolve() if root.is_symlink() else root  # the user named the link explicitly
        files = _files(root)
        is_run = kind_of(root) in (Kind.TRAINING, Kind.EMPA, Kind.EMPA_FILES, Kind.DIALOGUES)
        below = [] if is_run else [d for d in sorted(root.iterdir()) if d.is_dir() and _holds_results(d)]
    except OSError as error:
        raise InputError(
            f"the folder cannot be read ({error.strerror})",
            where=str(root)[:200],
            fix="Check the path and its permissions",
        ) from error
    if not files and not below:
        raise InputError(
            "the folder holds no result files",
            where=str(root),
            fix="Expected *_result.json (EMPA) or *.jsonl records, in it or one folder below",
        )
    return [_read_folder(folder, profile, rubric) for folder in below or [root]]


def _holds_results(folder: Path) -> bool:
    try:
        return bool(_files(folder))
    except OSError:
        return True  # reading it reports the problem


def _files(folder: Path) -> list[Path]:
    lines = RunDir(folder).dialogues
    candidates = lines.iterdir() if lines.is_dir() and not lines.is_symlink() else folder.iterdir()
    files = [f for f in folder.iterdir() if f.suffix == ".json"]
    files += [f for f in candidates if f.suffix == ".jsonl"]
    linked = [lines] if lines.is_symlink() else []  # refused when it is opened, like any other link
    return sorted(f for f in (*files, *linked) if f.name not in OWN_FILES and not is_ledger(f.name))


def _read_folder(path: Path, profile: str | None, rubric: Rubric | None) -> Folder:
    folder = Folder(path)
    if path.is_symlink():
        folder.bad.append(f"{path}: links are not followed; pass the folder itself")
        return folder
    try:
        files = _files(path)
    except OSError as error:
        folder.bad.append(f"{path}: cannot be read ({error.strerror})")
        return folder
    tags = read_tags(path, folder.bad)
    records = (record for file in files for record in _records(folder, file, profile, rubric, tags))
    for record in deduplicated(_with_duplicates_noted(folder, records)).values():
        folder.steps |= {record.step} if record.step else set()
        if record.broken:
            folder.broken.add((record.step, record.id))
        elif record.result is not None:
            folder.results.append(record.result)
    return folder


class _Record(NamedTuple):
    """One recorded dialogue. `result` is None if it is broken or cannot be scored. `step` is the training
    step of its file, if any: ids are unique within a step."""

    model: str
    id: str
    where: str
    step: str
    written: int
    broken: bool
    result: Result | None = None


def _with_duplicates_noted(
    folder: Folder, records: Iterable[_Record]
) -> Iterator[tuple[Hashable, bool, int, _Record]]:
    """Yield records in the form `deduplicated` expects, and note dialogues that are recorded twice."""
    seen: set[Hashable] = set()
    for record in records:
        key = (record.step, record.model, record.id)
        if not record.broken and key in seen:
            problem = f"dialogue '{record.id}' of '{record.model}' is recorded twice; the last record counts"
            folder.bad.append(f"{record.where}: {problem}")
        seen |= set() if record.broken else {key}
        yield key, not record.broken, record.written, record


def _records(
    folder: Folder, file: Path, profile: str | None, rubric: Rubric | None, tags: Mapping[str, dict[str, str]]
) -> Iterator[_Record]:
    """Yield the records of a file, scored; note those that cannot be used."""
    written = written_at(file)
    if file.suffix == ".json":
        try:
            result = read_result(file, profile or "published", rubric)
        except InputError as error:
            folder.bad.append(_placed(error, str(file)))
            return
        result = replace(result, tags=tags.get(result.case, {}))
        yield _Record(result.model, result.id, str(file), "", written, False, result)
        return
    step = _step_of(file)
    for number, item in enumerate(read_lines(file, decode_dialogue), 1):
        where = f"{file}, line {number}"
        if isinstance(item, BadLine):
            problem = str(item) if item.line else f"{file}: {item.problem}"
            (folder.torn if item.torn else folder.bad).append(problem)
        elif not item.usable:
            yield _Record(item.model, item.id, where, step, written, True)
        else:
            rescored: Result | None = None
            try:
                rescored = recompute(item, folder.path, profile, rubric, where)
            except InputError as error:
                folder.bad.append(_placed(error, where))
            yield _Record(item.model, item.id, where, step, written, False, rescored)


def _step_of(file: Path) -> str:
    """Return the step of a file: step_00001 for step_00001.jsonl and step_00001.1.jsonl (process 1)."""
    name = file.name.partition(".")[0]
    return name if name.startswith("step_") else ""


def _placed(error: InputError, where: str) -> str:
    return str(error) if error.where.startswith(where) else f"{where}: {error}"
