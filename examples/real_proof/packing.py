"""An archive with which a study continues on another machine, in parts that are small enough to be sent.

FILE.000, FILE.001 ...    a tar archive, compressed with gzip: cat FILE.[0-9]* | tar xz -C WORK
FILE.json                 sizes and checksums of the parts, written last
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path

from stages import needs_policy
from study import Study

from mapo.errors import InputError
from mapo.evals.processes import locked
from mapo.local_model.role_file import NAME as ROLE_FILE
from mapo.store import RunDir, write_atomic

INPUTS = ("cards", "scenarios", "recordings")
"""Folders with copies of the inputs. All of their files are needed, whatever their names are."""
UNNEEDED = ("tensorboard", "empa", "cache.sqlite", "cache.sqlite-wal", "cache.sqlite-shm", ".lock")
"""What is in no archive of the rest: copies and caches."""
BYTES_PER_SECOND = 10e6
"""The speed of packing on a busy processor."""


def pack(study: Study, file: Path, *, everything: bool = False, part_bytes: int = 50_000_000) -> list[Path]:
    """Write the archive and return its parts.

    It holds what is needed to continue and to write the same report. With `everything`, it also holds the
    dialogues of finished trainings, the short trainings and the adapters that are tested already.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_name(f".{file.name}.tmp")
    earlier = {path.resolve() for path in (_index(file), *_parts(file))}
    with tarfile.open(whole, "w:gz", compresslevel=1) as archive:
        for path in _wanted(study, everything=everything):
            if path.resolve() not in earlier:
                archive.add(path, arcname=str(path.relative_to(study.work)))
    for path in earlier:
        path.unlink(missing_ok=True)
    entries: list[dict[str, str]] = []
    with open(whole, "rb") as content:
        while part := content.read(part_bytes):
            name = f"{file.name}.{len(entries):03d}"
            write_atomic(file.with_name(name), part)
            entries.append({"name": name, "sha256": hashlib.sha256(part).hexdigest()})
    whole.unlink()
    write_atomic(_index(file), json.dumps({"parts": entries}, indent=1) + "\n")
    return _parts(file)


def unpack(work: Path, file: Path) -> None:
    """Create the work folder from an archive. Raises InputError if it is not empty, a stage is running in it,
    or a part is damaged."""
    existed = work.exists()
    with locked(work, "stage"):
        lock = RunDir(work).grid_lock
        try:
            if any(path != lock for path in work.iterdir()):
                raise InputError("the folder is not empty", where=str(work), fix="Use another --work")
            draft = _extract(work, file)
        except BaseException:
            if not existed:
                lock.unlink()
                with suppress(OSError):  # it is not empty: another stage has begun in it
                    work.rmdir()
            raise
        with locked(draft, "stage"):  # its lock takes the place of the one that is removed
            lock.unlink()
            _move(draft, work)


def _extract(work: Path, file: Path) -> Path:
    """Return a folder beside the work folder with the content of the archive."""
    index, whole = _index(file), work.with_name(f".{work.name}.tar.gz")
    draft = work.with_name(f".{work.name}.tmp")
    try:
        with open(whole, "wb") as content:
            for entry in json.loads(index.read_bytes())["parts"]:
                part = (file.parent / Path(entry["name"]).name).read_bytes()
                if hashlib.sha256(part).hexdigest() != entry["sha256"]:
                    raise InputError("a part is damaged", where=entry["name"], fix="Copy it again")
                content.write(part)
        shutil.rmtree(draft, ignore_errors=True)
        with tarfile.open(whole) as archive:
            archive.extractall(draft, filter="data")
    except (OSError, ValueError, KeyError, TypeError, tarfile.TarError) as error:
        raise InputError(
            f"the archive cannot be unpacked ({error})",
            where=str(index),
            fix="Copy its index and all its parts",
        ) from None
    finally:
        whole.unlink(missing_ok=True)
    return draft


def _move(draft: Path, work: Path) -> None:
    """Replace the work folder, which must be empty."""
    try:
        draft.replace(work)
    except OSError as error:
        raise InputError(
            f"the folder cannot be replaced ({error.strerror})",
            where=str(work),
            fix="Wait until no stage runs in it, or use another --work",
        ) from None


def seconds_to_pack(study: Study) -> float:
    """Return an estimate of how long packing takes."""
    return sum(path.stat().st_size for path in _wanted(study)) / BYTES_PER_SECOND


def _wanted(study: Study, *, everything: bool = False) -> list[Path]:
    """Return the files of the archive."""
    files = sorted(path for path in study.work.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if not _left_out(study, path.relative_to(study.work), everything)]


def _left_out(study: Study, path: Path, everything: bool) -> bool:
    """Return whether a file of the work folder is not packed."""
    if any(part.endswith(".tmp") for part in path.parts):
        return True
    if path.parts[0] in INPUTS:
        return False
    if set(path.parts) & set(UNNEEDED):
        return True
    if any(f.name == "checkpoints" and _finished(study.work / f.parent) for f in path.parents):
        return True
    if everything or len(path.parts) < 3:
        return False
    top, name, part = path.parts[:3]
    if top == "tune" and study.rates_file.exists():
        return True
    if top in ("tune", "runs") and part == "checkpoints":  # a training continues from its last one
        last = max((study.work / top / name / part).glob("step_*"), default=None)
        return last is not None and path.parts[3] != last.name
    if top == "runs":
        return part == "dialogues" and _finished(study.work / top / name)
    if top == "people" and name in ("user", "director") and part.endswith(".safetensors"):
        return study.people_file.exists() and f"local:{study.work / top / name}" not in study.cast()
    return top == "policies" and any(r.name == name and not needs_policy(study, r) for r in study.trainings)


def _finished(folder: Path) -> bool:
    """Return whether a training, or the training of a role, is complete."""
    return RunDir(folder).summary.exists() or (folder / ROLE_FILE).exists()


def _index(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _parts(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}.[0-9][0-9][0-9]"))
