"""One training run as a report: what it is, what came of it, how it went, what was credited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mapo.config import without_addresses
from mapo.report.document import numbers
from mapo.report.document.blocks import Block, Heading, Lines, Report, Side, Talk, Words, told
from mapo.report.sections.credit import credit
from mapo.report.sections.held_out import held_out
from mapo.report.sections.learning import learning, play, speed
from mapo.report.sections.marks import marks
from mapo.report.sections.paths import Walkers, trajectories
from mapo.report.sections.people import people
from mapo.runs.contents import number
from mapo.runs.training import Training
from mapo.scripted.notice import scripted_world
from mapo.show.figures import AFTER, BEFORE
from mapo.show.tables import Table


def training_report(run: Training) -> Report:
    """All sections; those without material are left out, and what could not be read stands at the end."""
    before = numbers.recomputed(run.before, run.root, run.problems)
    after = numbers.recomputed(run.after, run.root, run.problems)
    rubric = next((result.path.rubric for result in (*before, *after)), None)
    blocks: list[Block] = [
        *_state(run),
        *held_out(before, after),
        *marks({"before": run.before, "after": run.after}, rubric),
        *learning(run),
        *play(run),
        *_people(run),
        *credit(run),
        *trajectories([Walkers("before", before, BEFORE), Walkers("after", after, AFTER)]),
        *_talk(run),
        *speed(run),
        *ledger_table(run.ledger),
        *_settings(run),
        *problem_list(run.problems),
    ]
    caution = scripted_world([run.scripted]) if run.scripted else ""
    return Report(f"{run.method} on {run.model}", _lead(run), blocks, caution=caution)


def _lead(run: Training) -> str:
    s = run.summary
    steps = number(s.get("steps"))
    parts = [run.name, f"seed {run.seed}", f"reward {run.reward}" if run.reward else ""]
    parts.append(f"{told(steps if steps is not None else len(run.steps), '.0f')} steps")
    dialogues = sum(number(line.get("dialogues")) or 0 for line in run.steps)
    parts.append(f"{told(dialogues, ',.0f')} training dialogues")
    if (seconds := number(s.get("seconds"))) is not None:
        parts.append(f"{_clock(seconds)} of training")
    if run.finished and number(s.get("chosen_step")) is not None:
        best = ", the best on the validation scenarios" if s.get("validation") else ""
        parts.append(f"tested with the checkpoint of step {told(s['chosen_step'], '.0f')}{best}")
    return "; ".join(part for part in parts if part) + "."


def _clock(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{seconds:.0f} s"
        if minutes < 3
        else f"{minutes:.0f} min"
        if minutes < 120
        else f"{minutes / 60:.1f} h"
    )


def _state(run: Training) -> list[Block]:
    if run.finished:
        return []
    if not run.steps and not run.before:
        return [Words("This run is empty: not one step is finished, and no dialogue is on disk.")]
    return [Words("This run is not over: what follows is how far it had come.")]


def _people(run: Training) -> list[Block]:
    """Of the first and the last third of the steps that were read."""
    first, last = (
        [d for step in part for d in run.played[step]] for part in numbers.thirds(sorted(run.played))
    )
    return people({"early": first, "late": last} if len(run.played) > 1 else {"dialogues": last})


# ---- one person, twice


def _talk(run: Training) -> list[Block]:
    pair = numbers.typical_pair(run.before, run.after)
    if pair is None:
        return []
    credited = (
        f"the advantage {run.method} gives it if all test dialogues of this scenario, before and after, are "
        "taken as siblings"
        if run.advantage
        else f"none here, for {run.uncredited}"
    )
    given = numbers.pair_credit(pair, run.before, run.after, run.advantage)
    sides = []
    for name, dialogue, own in zip(("before", "after"), pair, given, strict=True):
        ending = dialogue.ending.reason.value if dialogue.ending else "unfinished"
        sides.append(Side(f"{name}: {ending} after {len(dialogue.turns)} turns", dialogue, own))
    return [
        Heading("One person, before and after"),
        Words(
            f"{pair[0].scenario}: of all held-out dialogues the one of median gain in distance, neither "
            "the best nor the worst. Under each reply the judge's levels by axis (progress, regression), "
            f"the turn's reward, and its credit: {credited}."
        ),
        Talk(*sides),
    ]


# ---- what it cost, what it was told, what could not be read


def ledger_table(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not rows:
        return []
    head = ["role", "model", "calls", "from cache", "retries", "failures", "tokens in", "tokens out", "cost"]
    keys = ("calls", "hits", "retries", "failures", "prompt", "completion")
    shown = [
        [
            row["role"],
            row["model"],
            *(told(row[key], ",.0f") for key in keys),
            told(row["cost"], ",.2f", "no price"),
        ]
        for row in rows
    ]
    costs = [number(row["cost"]) for row in rows if row["calls"]]
    known = [cost for cost in costs if cost is not None]
    total = (
        f"Cost in all: {sum(known):,.2f}"
        if known and len(known) == len(costs)
        else "Not all models have a price"
    )
    return [
        Heading("Calls to other models"),
        Table(head, shown, note=f"{total}, in the unit of the price list.", left=2),
    ]


def _settings(run: Training) -> list[Block]:
    versions = run.manifest.get("versions")
    rows = []
    if run.config is not None:
        for section, values in without_addresses(run.config).items():
            for key, value in values.items() if isinstance(values, dict) else ():
                rows += (
                    [] if value is None or _address(section, value) else [[f"{section}.{key}", _told(value)]]
                )
    blocks: list[Block] = [Heading("What it was told")]
    if isinstance(versions, dict) and versions:
        blocks.append(
            Words("Made with " + ", ".join(f"{k} {v}" for k, v in list(versions.items())[:12]) + ".")
        )
    if rows:
        blocks.append(Table(["setting", "value"], rows, title="All settings", left=2, folded=True))
    return blocks if len(blocks) > 1 else []


def _address(section: str, value: object) -> bool:
    return section == "roles" and isinstance(value, dict) and not value.get("model")


def _told(value: object) -> str:
    """Return a setting as text: of a role, or of each judge of a panel, what is set."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "; ".join(map(_told, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def problem_list(problems: Sequence[str]) -> list[Block]:
    if not problems:
        return []
    return [Heading("What could not be read"), Lines(list(dict.fromkeys(problems)))]
