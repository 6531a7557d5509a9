"""Runs below a root folder, and the files of each.

Links are never followed: they may lead out of the folder, or show a run twice. Runs and files have *keys* of
plain characters for URLs. A key from a URL is looked up among the known keys and never joined to a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mapo.measure.rubric import Rubric
from mapo.runs.contents import read_rubric
from mapo.runs.files import read_object
from mapo.runs.kind import Kind, kind_in_manifest, kind_of
from mapo.store import CACHE, MAKE_STEPS, RunDir, RunPath, ledger_name
from mapo.text import printable

DEPTH = 5
"""How deep below the root runs are searched for."""
RUN_MARKERS = {
    entry.name for entry in (RunDir.manifest, RunDir.metrics, RunDir.summary, RunDir.result, RunDir.dialogues)
}
"""A folder that holds one of these is a run."""
_PLAIN_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def key_of(relative: str) -> str:
    """Return a relative path as one URL segment: ':' between folders, '~XX' for other bytes."""
    if relative in ("", "."):
        return "~"
    raw = os.fsencode(relative)
    return "".join(":" if b == 47 else chr(b) if b in _PLAIN_BYTES else f"~{b:02X}" for b in raw)


def name_of(relative: str) -> str:
    """Return a path for display: invalid UTF-8 and control characters are replaced."""
    return printable(os.fsencode(relative).decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as the last scan found it."""

    path: Path
    part: str
    size: int
    changed: int
    inode: int


@dataclass(slots=True)
class RunFiles:
    """The files of one run: small files, dialogue files (`lines`), unknown files (`other`) and links."""

    root: Path
    key: str
    name: str
    small: dict[str, FileStamp] = field(default_factory=dict)
    lines: dict[str, FileStamp] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    def has(self, entry: RunPath) -> bool:
        """Return whether this exists as a regular file."""
        return entry.name in self.small

    @property
    def signature(self) -> tuple[object, ...]:
        """A value that changes whenever a file does."""
        every = [*self.small.items(), *self.lines.items()]
        return tuple((k, s.size, s.changed, s.inode) for k, s in every), tuple(self.other), tuple(self.links)

    @property
    def changed(self) -> float:
        """When a record was last written, as a Unix time."""
        no_records = (RunDir.report.name, RunDir.verl_lock.name)
        times = [s.changed for k, s in self.small.items() if k not in no_records]
        return max([*times, *(s.changed for s in self.lines.values())], default=0) / 1e9


def find_runs(root: Path) -> Iterator[RunFiles]:
    """Yield every run at or below `root`. An ablation is a run, and so is each run inside it.
    The same holds for swaps and screenings."""
    yield from _find(root, root, 0)


def _find(root: Path, folder: Path, depth: int) -> Iterator[RunFiles]:
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda e: e.name)
    except OSError:
        return
    relative = os.path.relpath(folder, root)
    marked = any(e.name in RUN_MARKERS and not e.is_symlink() for e in entries)
    if marked:
        kind = kind_of(folder)
        yield _run(folder, "" if relative == "." else relative, root, entries)
        if kind not in (Kind.SWAP, Kind.ABLATION, Kind.SCREENING):
            return  # these hold further runs
    for entry in entries:
        plain = not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        if plain and depth < DEPTH:
            yield from _find(root, Path(entry.path), depth + 1)


def _run(folder: Path, relative: str, root: Path, entries: list[os.DirEntry[str]]) -> RunFiles:
    run = RunFiles(folder, key_of(relative), name_of(relative) or name_of(root.name) or "run")
    for entry in entries:
        if entry.is_symlink():
            run.links.append(name_of(entry.name))
        elif entry.name == RunDir.dialogues.name and entry.is_dir():
            _lines(run, Path(entry.path), entry.name, "")
        elif entry.name == RunDir.verl.name and entry.is_dir():
            for part in _entries(run, Path(entry.path), entry.name):
                relative = f"{entry.name}/{part.name}"
                if relative == RunDir.verl_lock.name and (stamp := _stamp(part, "")):
                    run.small[relative] = stamp
        elif entry.name == RunDir.evals.name and entry.is_dir():
            for part in _entries(run, Path(entry.path), entry.name):
                if part.is_dir(follow_symlinks=False):
                    _lines(run, Path(part.path), f"{entry.name}/{part.name}", name_of(part.name))
        elif entry.is_file() and (entry.name in _SMALL_FILES or ledger_name(entry.name)):
            if stamp := _stamp(entry, ""):
                run.small[entry.name] = stamp
        elif not _known(entry.name) and not _is_run(entry):
            run.other.append(name_of(entry.name))
    return run


_SMALL_FILES = {
    entry.name
    for entry in (
        *(RunDir.manifest, RunDir.config, RunDir.rubric, RunDir.metrics, RunDir.summary, RunDir.best),
        *(RunDir.result, RunDir.items, RunDir.health, RunDir.stopped, RunDir.report),
        *(RunDir.audit, RunDir.audit_figure, RunDir.swap, RunDir.ablation, RunDir.screen, RunDir.make_report),
    )
}
_NOT_SHOWN = {
    entry.name
    for entry in (
        *(RunDir.checkpoints, RunDir.tensorboard, RunDir.empa_files, RunDir.verl, RunDir.logs),
        *(RunDir.score, RunDir.audit_markdown, RunDir.swap_markdown, RunDir.ablation_markdown),
        *(RunDir.scenarios, RunDir.source, RunDir.private_cache, RunDir.private_key),
        *(RunDir.raw_conversations, RunDir.others_log),
    )
} | {"figures", "ablation.png", "ablation.svg", "splits.json", *MAKE_STEPS}


def _is_run(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a run inside a swap, an ablation or a screening, which is listed separately."""
    inner = (Kind.EMPA, Kind.TRAINING)
    return (
        entry.is_dir(follow_symlinks=False)
        and kind_in_manifest(read_object(RunDir(Path(entry.path)).manifest)[0]) in inner
    )


def _known(name: str) -> bool:
    return name in _NOT_SHOWN or name.startswith((".", CACHE, "report"))


def _lines(run: RunFiles, folder: Path, relative: str, part: str) -> None:
    for entry in _entries(run, folder, relative):
        if f"{relative}/{entry.name}" == RunDir.cut_off.name:
            continue
        if not entry.is_file(follow_symlinks=False) or not entry.name.endswith(".jsonl"):
            run.other.append(name_of(f"{relative}/{entry.name}"))
        elif stamp := _stamp(entry, part or _part_of(entry.name)):
            run.lines[key_of(f"{relative}/{entry.name}")] = stamp


def _part_of(name: str) -> str:
    """Return the set that a file in dialogues/ belongs to: "train" for all steps, else the file's name."""
    return "train" if name.startswith("step_") else name_of(name.removesuffix(".jsonl"))[:100]


def _entries(run: RunFiles, folder: Path, relative: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda e: e.name)
    except OSError as error:
        run.other.append(f"{name_of(relative)} cannot be read ({error.strerror})")
        return
    for entry in entries:
        if entry.is_symlink():
            run.links.append(name_of(f"{relative}/{entry.name}"))
        elif not entry.name.startswith("."):
            yield entry


def _stamp(entry: os.DirEntry[str], part: str) -> FileStamp | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return FileStamp(Path(entry.path), part, status.st_size, status.st_mtime_ns, status.st_ino)


def rubric_of(run: RunFiles, name: str) -> Rubric | None:
    """Return the rubric a run was judged by: its own copy, or a shipped one with that name."""
    return read_rubric(RunDir(run.root).rubric, name)[0]
