"""Copies of the inputs in the work folder: scenarios, recordings, and the halves of the two judges."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from study import HERE, Study

from mapo.errors import InputError
from mapo.store import write_atomic

RECORDED_RESULTS = "results"


def copy_inputs(study: Study) -> None:
    """Copy what the stages need, so that the work folder needs nothing from outside but the model."""
    write_atomic(study.work / "train.toml", (HERE / "train.toml").read_bytes())
    _copy(Path(study.inputs.cards), study.scenarios, native=not study.settings.data.official)
    if study.inputs.results:
        _copy_tree(Path(study.inputs.results), study.recordings / RECORDED_RESULTS)
    _divide_recordings(study)


def _copy(source: Path, target: Path, *, native: bool) -> None:
    if native:
        for file in sorted(source.glob("*.toml")):
            write_atomic(target / file.name, file.read_bytes())
        return
    for name in ("cases", "scenarios"):
        _copy_tree(source / name, target / name)
    for name in ("case_metadata.json", "official_cases.txt"):
        if (source / name).exists():
            write_atomic(target / name, (source / name).read_bytes())


def _copy_tree(source: Path, target: Path) -> None:
    if target.exists():
        return
    if not source.is_dir():
        raise InputError("there is no such folder", where=str(source))
    draft = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft)
    draft.replace(target)


def _divide_recordings(study: Study) -> None:
    """Give every second policy to judge A and the others to judge B."""
    lines = list(recorded_lines(Path(study.inputs.turns)))
    policies = sorted({json.loads(line)["model"] for line in lines})
    halves = {"all": policies, "a": policies[0::2], "b": policies[1::2]}
    for name, own in halves.items():
        chosen = [line for line in lines if json.loads(line)["model"] in own]
        write_atomic(study.turns(name), gzip.compress(b"".join(chosen), mtime=0))
    record = {name: own for name, own in halves.items() if name != "all"}
    write_atomic(study.halves, json.dumps(record, indent=1) + "\n")


def recorded_lines(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    text = gzip.decompress(content) if path.name.endswith(".gz") else content
    yield from (line for line in text.splitlines(keepends=True) if line.strip())
