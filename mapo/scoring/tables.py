"""Terminal tables of scores and of model calls."""

from __future__ import annotations

from collections.abc import Sequence

from mapo.measure.epmq import INDICES
from mapo.models.ledger import Ledger
from mapo.scoring.context import ScoreContext
from mapo.scoring.reference import REFERENCE_NOTE, reference_rows
from mapo.scoring.score import Score, Scoring
from mapo.show.tables import Cell, NumberCell, Table, interval_text, print_line, print_tables
from mapo.types import ending_label

_COMPONENTS = {"outcome": "Outcome", "efficiency": "Efficiency", "stability": "Stability"}
_MAX_LISTED = 10
"""Remarks that are listed; further ones are counted."""


def print_scoring(scoring: Scoring, *, everything: bool = False) -> None:
    """Print the scores of all models, grouped by judge and world. `everything` adds the nine sub-indices."""
    groups: dict[ScoreContext, list[Score]] = {}
    for model in scoring.models:
        groups.setdefault(model.score.context, []).append(model.score)
    for context, scores in groups.items():
        print_scores(context, "model", scores, everything=everything)
    for model in scoring.models:
        if model.by:
            name = f"{model.score.name}, by group"
            print_scores(model.score.context, "", list(model.by.values()), everything=everything, title=name)
    if scoring.broken:
        print_line(f"Excluded: {scoring.broken} broken dialogues (something other than the policy failed).")
    differences = [line for model in scoring.models for line in model.differences]
    notes = [line for model in scoring.models for line in model.notes]
    _print_list("recorded numbers differ from the recomputed ones", differences)
    _print_list("irregular judgement forms", notes)


def print_scores(
    context: ScoreContext,
    label: str,
    scores: Sequence[Score],
    *,
    everything: bool = False,
    title: str = "",
) -> None:
    """Print scores of one context: judge and scenarios, the notice of a test world, the numbers, remarks."""
    if title:
        print_line(title, style="bold")
    print_line(context.describe(), style="")
    columns, rows = [label, "EPM-Q", "passes", "turns"], [_main_row(s) for s in scores]
    if label and context.world:
        rows += reference_rows(context.world, len(columns) + len(_COMPONENTS))
    references = label and len(rows) > len(scores)
    note = REFERENCE_NOTE if references else ""
    table = Table([*columns, *_COMPONENTS.values()], rows, title=context.notice, note=note)
    print_tables([table, *(_detail_tables(label, scores) if everything else ())])
    for line in _remarks(scores, named=bool(label)):
        print_line(line)


def _main_row(score: Score) -> list[Cell]:
    interval = interval_text(score.intervals["epm_q"]) if score.intervals else ""
    return [
        score.name,
        NumberCell(f"{score.composite.epm_q:.2f}", interval),
        NumberCell(f"{score.passes}/{score.n}", f"{score.unmet} unmet" if score.unmet else ""),
        f"{score.turns:.1f}",
        *(f"{getattr(score.composite, part):.2f}" for part in _COMPONENTS),
    ]


def _detail_tables(label: str, scores: Sequence[Score]) -> list[Table]:
    return [_indices(label, scores), _alignment(label, scores), *movement_tables(label, scores)]


def _indices(label: str, scores: Sequence[Score]) -> Table:
    """Return intervals of the components and the nine sub-indices."""
    names = [*_COMPONENTS, *INDICES]
    rows: list[list[Cell]] = []
    for score in scores:
        values = {**{part: getattr(score.composite, part) for part in _COMPONENTS}, **score.composite.indices}
        intervals = score.intervals or {}
        rows.append(
            [score.name, *(NumberCell(f"{values[n]:.2f}", interval_text(intervals.get(n))) for n in names)]
        )
    return Table(
        [label, *(_COMPONENTS.get(name, name) for name in names)],
        rows,
        title="Components and sub-indices of EPM-Q",
        note="Outcome: RDI, Etot, Snet. Efficiency: Rho, Sproj, Tau. Stability: Rpos, Align, Pen. "
        "Formulas: docs/method.md.",
    )


def _alignment(label: str, scores: Sequence[Score]) -> Table:
    """Return the mean alignment of steps with the fixed and with the current direction."""
    rows: list[list[Cell]] = [
        [score.name, f"{score.alignment:+.2f}", f"{score.dynamic_alignment:+.2f}"] for score in scores
    ]
    return Table(
        [label, "fixed", "dynamic"],
        rows,
        title="Alignment of steps, mean cosine",
        note="fixed: with the direction of need at the start. dynamic: with that before each turn; it falls "
        "when a need that is already met is met again.",
    )


def movement_tables(label: str, scores: Sequence[Score]) -> list[Table]:
    """Return the mean reward per axis and regression, one table for each set of axes."""
    by_axes: dict[tuple[str, ...], list[Score]] = {}
    for score in scores:
        by_axes.setdefault(tuple(score.movement.axes), []).append(score)
    return [_movement(label, group) for group in by_axes.values()]


def _movement(label: str, scores: Sequence[Score]) -> Table:
    rows: list[list[Cell]] = []
    for score in scores:
        m = score.movement
        harm = "–" if m.regression is None else f"{m.regression:.2f}"
        share = "–" if m.regressed is None else f"{100 * m.regressed:.1f} %"
        rewards = ("–" if x is None else f"{x:+.2f}" for x in m.axes.values())
        rows.append([score.name, *rewards, harm, share])
    return Table(
        [label, *scores[0].movement.axes, "regression", "turns with regression"],
        rows,
        title="Movement per scored turn",
        note="Per axis: the deficit that a turn removes, on average. Regression is part of it and also shown "
        "on its own.",
    )


def _remarks(scores: Sequence[Score], *, named: bool) -> list[str]:
    """Return the footnotes of a table of scores."""
    lines = []
    if with_interval := [s for s in scores if s.intervals]:
        unit = "scenarios" if all(s.cases > 1 for s in with_interval) else "the dialogues of a scenario"
        lines.append(f"Below EPM-Q: 95 % bootstrap interval over {unit}.")
    if any(s.unmet for s in scores):
        lines.append("Below passes: how many leave an axis unmet (a final deficit outside the target zone).")
    for score in scores if named else ():
        endings = ", ".join(f"{ending_label(reason)} {n}" for reason, n in sorted(score.endings.items()))
        lines.append(f"Endings of {score.name}: {endings}.")
    lines += [line for score in scores if named and (line := _blame(score))]
    if unfinished := sum(s.endings.get("unfinished", 0) for s in scores):
        lines.append(f"Unfinished dialogues (the record ends before the dialogue does): {unfinished}.")
    if unscored := sum(s.unscored for s in scores):
        lines.append(f"Unscored turns (the judge failed): {unscored}.")
    return lines


def _blame(score: Score) -> str:
    """Return whose fault the failed dialogues were; empty if no fault is recorded."""
    faults = score.faults
    if not faults.kinds or not faults.failed:
        return ""
    roles = ", ".join(f"{role} {n} ({n / faults.failed:.0%})" for role, n in faults.blamed.items())
    return f"Failed dialogues of {score.name} by the role at fault: {roles}."


def _print_list(title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    print_line(f"\n{len(lines)} x {title}:", style="")
    for line in lines[:_MAX_LISTED]:
        print_line(f"  {line}", style="")
    if len(lines) > _MAX_LISTED:
        print_line(f"  ... and {len(lines) - _MAX_LISTED} more (--json lists all)", style="")


def print_ledger(ledger: Ledger) -> None:
    """Print calls, tokens and cost per role and model, if any model was called.

    The ledger of an audit counts by judge: a role with its model's name is shown as "judge".
    """
    columns = ("calls", "hits", "retries", "failures", "prompt", "cached", "completion", "cost")
    names = ("calls", "from cache", "retries", "failures", "tokens in", "server-cached", "tokens out", "cost")
    rows = [
        [
            "judge" if row["role"] == row["model"] else row["role"],
            row["model"],
            *("-" if row[c] is None else f"{row[c]:.4f}" if c == "cost" else str(row[c]) for c in columns),
        ]
        for row in ledger.as_rows()
        if row["calls"] or row["hits"]
    ]
    print_tables([Table(["role", "model", *names], rows, left=2)])
