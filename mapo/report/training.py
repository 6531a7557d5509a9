"""One training run as a report: what it is, what came of it, how it went, what was credited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mapo.evals.compare import paired
from mapo.evals.entries import Case
from mapo.evals.figures import TEST_WORLD
from mapo.evals.result import Result
from mapo.evals.score import PARTS, Score, score_results
from mapo.evals.stats import Interval
from mapo.reading.run import number
from mapo.report import numbers, plots
from mapo.report.blocks import (
    Block,
    Heading,
    Lines,
    Report,
    Side,
    Table,
    Talk,
    Tile,
    Tiles,
    Words,
    span,
    told,
)
from mapo.report.credit import credit
from mapo.report.learning import learning, play, speed
from mapo.report.paths import Walkers, trajectories
from mapo.report.people import people
from mapo.report.read import Training


def training_report(run: Training) -> Report:
    """All sections; those without material are left out, and what could not be read stands at the end."""
    before = numbers.recomputed(run.before, run.root, run.problems)
    after = numbers.recomputed(run.after, run.root, run.problems)
    blocks: list[Block] = [
        *_state(run),
        *held_out(before, after),
        *learning(run),
        *play(run),
        *_people(run),
        *credit(run),
        *trajectories([Walkers("before", before, plots.BEFORE), Walkers("after", after, plots.AFTER)]),
        *_talk(run),
        *speed(run),
        *ledger_table(run.ledger),
        *_settings(run),
        *problem_list(run.problems),
    ]
    caution = TEST_WORLD if run.scripted else ""
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


# ---- the held-out test


def held_out(before: Sequence[Result], after: Sequence[Result]) -> list[Block]:
    rows: list[tuple[str, Score]] = []
    for name, results in (("before", before), ("after", after)):
        if results:
            rows.append((name, score_results(name, alike(results))))
    if not rows:
        return []
    table = Table(
        [
            "",
            "EPM-Q",
            "95 % interval",
            "outcome",
            "efficiency",
            "stability",
            "passed",
            "turns",
            "unscored turns",
        ],
        [score_row(name, score) for name, score in rows],
        "EPM-Q and its three parts are points: at 100 every index is at its reference, and more is possible. "
        "Points of two domains do not compare. Intervals: bootstrap over scenarios.",
    )
    blocks: list[Block] = [Heading("The held-out test"), Words("Scenarios that were never trained on.")]
    if len(rows) < 2:
        return [*blocks, table]
    difference = paired_difference(before, after)
    blocks[:0] = [_tiles(rows[0][1], rows[1][1], difference)]
    return [*blocks, table, *_difference_words(difference)]


def alike(results: Sequence[Result]) -> list[Result]:
    """Those of the first one's rubric and profile: others are never pooled with them."""
    kind = (results[0].path.rubric.name, results[0].path.profile.name)
    return [r for r in results if (r.path.rubric.name, r.path.profile.name) == kind]


def score_row(name: str, score: Score) -> list[str]:
    ends = score.intervals["epm_q"] if score.intervals else None
    parts = [told(getattr(score.composite, part)) for part in PARTS[:3]]
    passed = f"{score.passes} of {score.n}"
    return [
        name,
        told(score.composite.epm_q),
        span(ends),
        *parts,
        passed,
        told(score.turns),
        str(score.unscored),
    ]


def paired_difference(
    before: Sequence[Result], after: Sequence[Result]
) -> tuple[float, Interval | None, float, int] | None:
    """After minus before in EPM-Q over the scenarios that both have: mean, interval, p, scenarios."""
    means = []
    for results in (before, after):
        by_case: dict[str, list[float]] = {}
        for r in results:
            by_case.setdefault(r.case, []).append(numbers.quality(r))
        means.append({case: Case(sum(own) / len(own)) for case, own in by_case.items()})
    common = [case for case in means[0] if case in means[1]]
    if not common:
        return None
    mean, interval, p = paired([means[1][c] for c in common], [means[0][c] for c in common])
    return mean, interval, p, len(common)


def _tiles(
    before: Score, after: Score, difference: tuple[float, Interval | None, float, int] | None
) -> Tiles:
    ends = after.intervals["epm_q"] if after.intervals else None
    tiles = [
        Tile(
            "EPM-Q, held-out",
            f"{told(before.composite.epm_q)} → {told(after.composite.epm_q)}",
            f"after: {span(ends)} (95 %)" if ends else "",
        )
    ]
    if difference:
        mean, interval, _, n = difference
        tiles.append(
            Tile("Paired difference", told(mean, "+.1f"), f"{span(interval, '+.1f')} (95 %), {n} scenarios")
        )
    tiles.append(
        Tile("Passed", f"{before.passes} → {after.passes}", f"of {before.n} and {after.n} dialogues")
    )
    tiles.append(Tile("Turns a dialogue", f"{told(before.turns)} → {told(after.turns)}"))
    return Tiles(tiles)


def _difference_words(difference: tuple[float, Interval | None, float, int] | None) -> list[Block]:
    if difference is None:
        return [Words("No scenario was played both before and after, so there is no paired difference.")]
    mean, interval, p, n = difference
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return [
        Words(
            f"Scenario by scenario, EPM-Q changed by {told(mean, '+.1f')} (95 % interval "
            f"{span(interval, '+.1f')}; sign-flip test over {n} scenarios: {chance}). This speaks of other "
            "scenarios of this kind, not of another training with another seed."
        )
    ]


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
        Table(head, shown, f"{total}, in the unit of the price list.", left=2),
    ]


def _settings(run: Training) -> list[Block]:
    versions = run.manifest.get("versions")
    rows = []
    if run.config is not None:
        for section, values in run.config.model_dump(mode="json").items():
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
        blocks.append(Table(["setting", "value"], rows, "All settings", left=2, folded=True))
    return blocks if len(blocks) > 1 else []


def _address(section: str, value: object) -> bool:
    return section == "roles" and isinstance(value, dict) and not value.get("model")


def _told(value: object) -> str:
    """A setting as text; of a role its model and sampling, never its address."""
    if isinstance(value, dict):
        return ", ".join(
            f"{k} {v}" for k, v in value.items() if v is not None and k not in ("base_url", "key_env")
        )
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def problem_list(problems: Sequence[str]) -> list[Block]:
    if not problems:
        return []
    return [Heading("What could not be read"), Lines(list(dict.fromkeys(problems)))]
