"""The report of several runs: which they are and what they are called, training curves, scores side by side.

One run that cannot be read, or whose numbers cannot be drawn, costs no other: it is named with its reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mapo.errors import InputError
from mapo.evals.compare.comparison import named
from mapo.report.document.blocks import NAME, Block, Report
from mapo.report.sections.several import training_blocks
from mapo.report.sections.side_by_side import comparison_blocks
from mapo.report.training import problem_list
from mapo.runs.kind import Kind, kind_of
from mapo.runs.training import Training, is_scripted, read_object, read_training
from mapo.scripted.notice import scripted_world
from mapo.store import RunDir
from mapo.text import clip


@dataclass(slots=True)
class _Found:
    """What several folders gave. `lost` says of each run that is not in the report why."""

    trained: list[Training] = field(default_factory=list)
    readable: list[str] = field(default_factory=list)
    """As `mapo compare` takes them."""
    names: list[str] = field(default_factory=list)
    scripted: dict[str, str] = field(default_factory=dict)
    """Names of those in which plain code played the other roles, and their domains."""
    problems: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def reportable(root: Path) -> Kind:
    """Say what a folder is; raise InputError for one that has no report."""
    if not root.is_dir():
        raise InputError("no such folder", where=str(root), fix="Give the folder of a run")
    kind = kind_of(root)
    if kind.has_result and not os.path.lexists(RunDir(root).result):
        raise InputError(
            f"a run ({kind}) without {RunDir.result.name}: it did not come to an end",
            where=str(root),
            fix="Run it with --resume",
        )
    if kind in (Kind.RUNS, Kind.SWAP, Kind.SCREENING):
        raise InputError("is a folder of runs", where=str(root), fix="Name the runs: mapo report RUN RUN ...")
    return kind


def several_report(runs: Sequence[str]) -> Report:
    """A run is a folder, or NAME=FOLDER."""
    found = _Found()
    for run, name in zip(runs, names_of(runs), strict=True):
        try:
            _read(found, run, name)
        except (InputError, RecursionError, OSError, ArithmeticError) as error:
            found.lost.append(_told(named(run)[1], error))
    blocks: list[Block] = _trainings(found)
    compared, unread = comparison_blocks(found.readable)
    shown = len(found.names) - len(unread)
    if shown <= 0:
        told = "; ".join([*found.lost, *unread][:3])
        raise InputError(f"nothing to report: {told}", fix="Give folders of runs")
    found.lost += unread
    lead = ", ".join(clip(name, NAME) for name in found.names[:12])
    blocks += [*compared, *problem_list([*found.lost, *found.problems])]
    title = f"{shown} run{'' if shown == 1 else 's'}"
    return Report(title, f"{lead}.", blocks, found.lost, caution=_caution(found))


def _caution(found: _Found) -> str:
    """Which of them were played in the scripted world; nothing where none was."""
    if not found.scripted:
        return ""
    told = scripted_world([*found.scripted.values()])
    if [*found.scripted] == found.names:
        return told
    return f"Of {', '.join(clip(name, NAME) for name in [*found.scripted][:6])}: {told}"


def names_of(runs: Sequence[str]) -> list[str]:
    """What each run is called: its NAME, else its folder's; with the folder above where two are alike."""
    given = [named(run) for run in runs]
    twice = [name for name, n in Counter(name for name, _ in given if name).items() if n > 1]
    if twice:
        raise InputError(f"two runs are called '{twice[0]}'", fix="Give each run a name of its own")
    roots = [root.resolve() for _, root in given]
    taken = Counter(name or root.name for (name, _), root in zip(given, roots, strict=True))
    return [
        name or (root.name if taken[root.name] == 1 else f"{root.parent.name}/{root.name}")
        for (name, _), root in zip(given, roots, strict=True)
    ]


def _read(found: _Found, run: str, name: str) -> None:
    root = named(run)[1]
    kind = reportable(root)
    if kind is Kind.ABLATION:
        raise InputError("an ablation is a report of its own", where=str(root), fix="Give it alone")
    if kind is Kind.TRAINING:
        found.trained.append(read_training(root, name))
        found.problems += found.trained[-1].problems
    scripted = found.trained[-1].scripted if kind is Kind.TRAINING else _scripted(root)
    own = kind is Kind.TRAINING and "=" not in name  # a test's rows are called as the run's curves are
    found.readable.append(f"{name}={root}" if own else run)
    found.names.append(name)
    found.scripted |= {name: scripted} if scripted else {}


def _scripted(root: Path) -> str:
    """The domain of an evaluation in which plain code played the other roles, as its manifest says."""
    told = read_object(RunDir(root).manifest, [])
    return str(told.get("rubric", "conversation")).partition(" ")[0] if is_scripted(told.get("cast")) else ""


def _trainings(found: _Found) -> list[Block]:
    """The trainings laid over each other; those whose numbers cannot be drawn are left out and told."""
    if not found.trained:
        return []
    try:
        return training_blocks(found.trained, found.problems)
    except Exception:  # noqa: BLE001 (a run may hold anything: whose fault it is, is found out below)
        fine = []
    for run in found.trained:
        try:
            training_blocks([run], [])
            fine.append(run)
        except Exception as error:  # noqa: BLE001
            found.lost.append(_told(run.root, error))
    return training_blocks(fine, found.problems) if fine else []


def _told(root: Path, error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{root}: {type(error).__name__}: {error}"[:300]
