"""The report of several runs: training curves and scores side by side.

A run that cannot be read or drawn is listed with the reason; the other runs are still reported.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from mapo.errors import InputError
from mapo.evals.compare.comparison import split_name
from mapo.report.document.blocks import MAX_NAME, Block, Report
from mapo.report.sections.several import training_blocks
from mapo.report.sections.side_by_side import comparison_blocks
from mapo.report.training import problem_list
from mapo.runs.contamination import notice_of
from mapo.runs.kind import Kind, kind_of
from mapo.runs.training import TrainingRun, read_object, read_training
from mapo.scoring.reference import reference_text
from mapo.scripted.world import World, world_notice, world_of
from mapo.store import RunDir
from mapo.text import clip


@dataclass(slots=True)
class _Collected:
    """The contents of several folders. `missing` says why a run is not in the report."""

    trained: list[TrainingRun] = field(default_factory=list)
    readable: list[str] = field(default_factory=list)
    """Arguments for `mapo compare`."""
    names: list[str] = field(default_factory=list)
    worlds: dict[str, World] = field(default_factory=dict)
    """Test worlds by name, for runs with scripted people."""
    marked: dict[str, str] = field(default_factory=dict)
    """Notice by name, for runs whose policy was trained on test scenarios."""
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def reportable(root: Path) -> Kind:
    """Return the kind of run in `root`. Raise InputError if there is no report for it."""
    if root.is_file():
        raise InputError(
            "this is a file, not a folder", where=str(root), fix=f"Give its folder: {root.parent}"
        )
    if not root.is_dir():
        raise InputError("the folder does not exist", where=str(root), fix="Give the folder of a run")
    kind = kind_of(root)
    if kind.has_result and not os.path.lexists(RunDir(root).result):
        raise InputError(
            f"this {kind} run has no {RunDir.result.name}: it has not finished",
            where=str(root),
            fix="Finish it with --resume",
        )
    if kind is Kind.RUNS:
        raise InputError(
            "this is a folder of runs, not a run",
            where=str(root),
            fix="Name the runs: mapo report RUN RUN ...",
        )
    if kind in (Kind.AUDIT, Kind.SWAP, Kind.SCREENING):
        raise InputError(
            f"there is no report for a {kind}{'ing' if kind is Kind.SCREENING else ''} run",
            where=str(root),
            fix=f"Look at it with mapo view {quote(str(root))}",
        )
    return kind


def several_report(runs: Sequence[str]) -> Report:
    """Build one report of several runs, each given as FOLDER or MAX_NAME=FOLDER."""
    collected = _Collected()
    for run, name in zip(runs, names_of(runs), strict=True):
        try:
            _read(collected, run, name)
        except (InputError, RecursionError, OSError, ArithmeticError) as error:
            collected.missing.append(_reason(split_name(run)[1], error))
    blocks: list[Block] = _training_blocks(collected)
    compared, unread = comparison_blocks(collected.readable)
    shown = len(collected.names) - len(unread)
    if shown <= 0:
        reasons = "; ".join([*collected.missing, *unread][:3])
        raise InputError(f"nothing to report: {reasons}", fix="Give folders of runs")
    collected.missing += unread
    lead = ", ".join(clip(name, MAX_NAME) for name in collected.names[:12])
    blocks += [*compared, *problem_list([*collected.missing, *collected.problems])]
    title = f"{shown} run{'' if shown == 1 else 's'}"
    return Report(title, f"{lead}.", blocks, collected.missing, caution=_caution(collected))


def _caution(collected: _Collected) -> str:
    """Return the notices about runs in test worlds and about those trained on test scenarios."""
    marked = [f"{clip(name, MAX_NAME)}: {notice}" for name, notice in collected.marked.items()]
    return " ".join([*filter(None, [_world_caution(collected)]), *marked])


def _world_caution(collected: _Collected) -> str:
    """Return the notice about runs in test worlds; "" if there are none."""
    if not collected.worlds:
        return ""
    worlds = [*collected.worlds.values()]
    notice = " ".join([world_notice(worlds), *map(reference_text, dict.fromkeys(worlds))])
    if [*collected.worlds] == collected.names:
        return notice
    return f"{', '.join(clip(name, MAX_NAME) for name in [*collected.worlds][:6])}: {notice}"


def names_of(runs: Sequence[str]) -> list[str]:
    """Return a name per run: MAX_NAME if given, else the folder name, with its parent folder if ambiguous."""
    parsed = [split_name(run) for run in runs]
    duplicates = [name for name, n in Counter(name for name, _ in parsed if name).items() if n > 1]
    if duplicates:
        raise InputError(f"two runs are named '{duplicates[0]}'", fix="Give each run a different name")
    roots = [root.resolve() for _, root in parsed]
    uses = Counter(name or root.name for (name, _), root in zip(parsed, roots, strict=True))
    return [
        name or (root.name if uses[root.name] == 1 else f"{root.parent.name}/{root.name}")
        for (name, _), root in zip(parsed, roots, strict=True)
    ]


def _read(collected: _Collected, run: str, name: str) -> None:
    root = split_name(run)[1]
    kind = reportable(root)
    if kind in (Kind.ABLATION, Kind.MADE_SCENARIOS):
        name = "an ablation" if kind is Kind.ABLATION else "a run of scenarios make"
        raise InputError(
            f"{name} cannot be combined with other runs", where=str(root), fix="Report it on its own"
        )
    if kind is Kind.TRAINING:
        collected.trained.append(read_training(root, name))
        collected.problems += collected.trained[-1].problems
    world = collected.trained[-1].world if kind is Kind.TRAINING else _world(root)
    renamed = kind is Kind.TRAINING and "=" not in name  # use the same name in tables as in the run's curves
    collected.readable.append(f"{name}={root}" if renamed else run)
    collected.names.append(name)
    collected.worlds |= {name: world} if world else {}
    notice = notice_of(read_object(RunDir(root).manifest, []))
    collected.marked |= {name: notice} if notice else {}


def _world(root: Path) -> World | None:
    """Return the test world of an evaluation, from its manifest; None for other runs."""
    manifest = read_object(RunDir(root).manifest, [])
    domain = str(manifest.get("rubric", "conversation")).partition(" ")[0]
    return world_of(domain, manifest.get("cast"))


def _training_blocks(collected: _Collected) -> list[Block]:
    """Return the overlaid training runs. Runs that cannot be drawn are moved to `missing`."""
    if not collected.trained:
        return []
    try:
        return training_blocks(collected.trained, collected.problems)
    except Exception:  # noqa: BLE001 (untrusted files; the loop below finds the run that fails)
        drawable = []
    for run in collected.trained:
        try:
            training_blocks([run], [])
            drawable.append(run)
        except Exception as error:  # noqa: BLE001
            collected.missing.append(_reason(run.root, error))
    return training_blocks(drawable, collected.problems) if drawable else []


def _reason(root: Path, error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{root}: {type(error).__name__}: {error}"[:300]
