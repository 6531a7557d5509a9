"""The report of one training run: results, learning curves, credit, example dialogues, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mapo.config import without_addresses
from mapo.report.document import numbers
from mapo.report.document.blocks import (
    Block,
    BulletList,
    DialogueColumn,
    DialoguePair,
    Heading,
    Paragraph,
    Report,
    format_number,
)
from mapo.report.sections.credit import credit
from mapo.report.sections.faults import faults
from mapo.report.sections.held_out import held_out
from mapo.report.sections.judgements import judgements
from mapo.report.sections.learning import dialogue_statistics, learning, speed
from mapo.report.sections.movement import movement, movement_by_step
from mapo.report.sections.spot_checks import spot_checks
from mapo.report.sections.trajectories import DialogueSet, trajectories
from mapo.report.sections.user_health import user_health
from mapo.runs.contamination import notice_of
from mapo.runs.contents import number
from mapo.runs.training import TrainingRun
from mapo.scoring.reference import reference_text
from mapo.scripted.world import world_notice
from mapo.show.figures import AFTER, BEFORE
from mapo.show.tables import Table
from mapo.text import plural


def training_report(run: TrainingRun) -> Report:
    """Build all sections that have data; problems found while reading are listed at the end."""
    before = numbers.recomputed(run.before, run.root, run.problems)
    after = numbers.recomputed(run.after, run.root, run.problems)
    rubric = next((result.path.rubric for result in (*before, *after)), None)
    blocks: list[Block] = [
        *_status(run),
        *held_out(before, after),
        *movement({"before": before, "after": after}),
        *judgements({"before": run.before, "after": run.after}, rubric),
        *learning(run),
        *movement_by_step(run),
        *dialogue_statistics(run),
        *_user_health(run),
        *faults(run),
        *spot_checks(run),
        *credit(run),
        *trajectories([DialogueSet("before", before, BEFORE), DialogueSet("after", after, AFTER)]),
        *_dialogue_pair(run),
        *speed(run),
        *ledger_table(run.ledger),
        *_settings(run),
        *problem_list(run.problems),
    ]
    cautions = [f"{world_notice([run.world])} {reference_text(run.world)}"] if run.world else []
    cautions += [notice] if (notice := notice_of(run.manifest)) else []
    return Report(f"{run.method} on {run.model}", _lead(run), blocks, caution=" ".join(cautions))


def _lead(run: TrainingRun) -> str:
    s = run.summary
    steps = number(s.get("steps"))
    parts = [run.name, f"seed {run.seed}", _reward(run)]
    parts.append(plural(int(steps if steps is not None else len(run.steps)), "step"))
    dialogues = sum(number(line.get("dialogues")) or 0 for line in run.steps)
    parts.append(plural(int(dialogues), "training dialogue"))
    if (seconds := number(s.get("seconds"))) is not None:
        parts.append(f"{_duration(seconds)} of training")
    if run.finished and number(s.get("chosen_step")) is not None:
        best = ", the best on the validation set" if s.get("validation") else ""
        parts.append(f"tested with checkpoint {format_number(s['chosen_step'], '.0f')}{best}")
    return "; ".join(part for part in parts if part) + "."


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{seconds:.0f} s"
        if minutes < 3
        else f"{minutes:.0f} min"
        if minutes < 120
        else f"{minutes / 60:.1f} h"
    )


def _status(run: TrainingRun) -> list[Block]:
    if run.finished:
        return []
    if not run.steps and not run.before:
        return [Paragraph("This run is empty: no step has finished and no dialogue has been recorded.")]
    return [Paragraph("This run has not finished: the report covers what has been recorded so far.")]


def _user_health(run: TrainingRun) -> list[Block]:
    """Compare the users of the first and the last third of the steps read."""
    first, last = (
        [d for step in part for d in run.played[step]] for part in numbers.thirds(sorted(run.played))
    )
    recorded = run.steps[-1].get("health") if run.steps else None
    return user_health(
        {"early": first, "late": last} if len(run.played) > 1 else {"dialogues": last},
        recorded if isinstance(recorded, dict) else None,
    )


# ---- the same scenario before and after


def _dialogue_pair(run: TrainingRun) -> list[Block]:
    pair = numbers.typical_pair(run.before, run.after)
    if pair is None:
        return []
    sides = []
    for name, dialogue in zip(("before", "after"), pair, strict=True):
        ending = dialogue.ending.reason.label if dialogue.ending else "unfinished"
        turns = plural(len(dialogue.turns), "turn")
        score = numbers.dialogue_score(dialogue, run.root)
        sides.append(DialogueColumn(f"{name}: {score}{ending} after {turns}", dialogue))
    return [
        Heading("One dialogue, before and after"),
        Paragraph(
            f"Dialogue {pair[0].id}: the median gain in distance of the held-out test. Below each reply: the "
            "judge's levels per axis (progress, regression) and the turn's reward. Test dialogues have no "
            "credit, because they are not used for training."
        ),
        DialoguePair(*sides),
    ]


# ---- cost, configuration, problems


def ledger_table(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not rows:
        return []
    head = ["role", "model", "calls", "from cache", "retries", "failures", "tokens in", "tokens out", "cost"]
    keys = ("calls", "hits", "retries", "failures", "prompt", "completion")
    shown = [
        [
            row["role"],
            row["model"],
            *(format_number(row[key], ",.0f") for key in keys),
            format_number(row["cost"], ",.2f", "no price"),
        ]
        for row in rows
    ]
    costs = [number(row["cost"]) for row in rows if row["calls"]]
    known = [cost for cost in costs if cost is not None]
    complete = known and len(known) == len(costs)
    total = f"Total cost: {sum(known):,.2f}, in the currency of the price list." if complete else ""
    total = total or f"{'Some' if known else 'The'} models have no price, so there is no total cost."
    return [
        Heading("Calls to other models"),
        Table(head, shown, note=total, left=2),
    ]


def _reward(run: TrainingRun) -> str:
    expected = run.config is not None and run.config.reward.steps == "expected"
    return f"reward {run.reward}{', expected steps' if expected else ''}" if run.reward else ""


def _settings(run: TrainingRun) -> list[Block]:
    versions = run.manifest.get("versions")
    rows = []
    if run.config is not None:
        for section, values in without_addresses(run.config).items():
            for key, value in values.items() if isinstance(values, dict) else ():
                rows += (
                    []
                    if value is None or _address(section, value)
                    else [[f"{section}.{key}", setting_text(value)]]
                )
    blocks: list[Block] = [Heading("Configuration")]
    if isinstance(versions, dict) and versions:
        blocks.append(
            Paragraph("Versions: " + ", ".join(f"{k} {v}" for k, v in list(versions.items())[:12]) + ".")
        )
    if rows:
        blocks.append(Table(["setting", "value"], rows, title="All settings", left=2, folded=True))
    return blocks if len(blocks) > 1 else []


def _address(section: str, value: object) -> bool:
    return section == "roles" and isinstance(value, dict) and not value.get("model")


def setting_text(value: object) -> str:
    """Return a setting as text. For roles and panels, only the values that are set."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "; ".join(map(setting_text, value))
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    if value is None:
        return "not set"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def problem_list(problems: Sequence[str]) -> list[Block]:
    if not problems:
        return []
    return [Heading("Problems"), BulletList(list(dict.fromkeys(problems)))]
