"""Audit output: tables for the terminal and audit.md, and all measurements in audit.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mapo.judges.audit import limits
from mapo.judges.audit.effects import AttackResults, Effect
from mapo.judges.audit.judge_agreement import Agreement
from mapo.judges.audit.limits import MAX_SIZE, MAX_WORKED, MIN_DIALOGUES
from mapo.judges.audit.measure import Findings
from mapo.judges.audit.noise import TARGET, group_size_for
from mapo.judges.audit.probes import LANGUAGE_PROBE, PROBES
from mapo.judges.audit.verdict import BOTH, Verdict
from mapo.judges.credit import METHODS, CreditSettings
from mapo.measure.stats import Interval
from mapo.show.tables import Cell, NumberCell, Table, interval_text, markdown_table, markdown_text
from mapo.store import RunDir, write_atomic

SCHEMA = "mapo.audit/2"
"""Schema of audit.json. Version 1 tested effects against 0: they have `p` and `p_holm` instead of `state`,
and `attacks` has `which` instead of `names`."""
SMALL_SAMPLE = "small sample: "
"""Start of notes about sample sizes, which commands print as warnings before they start."""
LIMITS = (
    *("MAX_REPEATS", "MAX_SIZE", "MAX_WORKED", "MAX_UNSCORED", "MIN_SCORES", "MIN_KAPPA", "MIN_RANKS"),
    *("MIN_QUOTED", "MIN_DIALOGUES"),
)


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit. `costs` holds calls, tokens and cost per judge, from the ledger."""

    runs: Sequence[str]
    sample: Mapping[str, Any]
    findings: Sequence[Findings]
    verdicts: Sequence[Verdict]
    agreements: Sequence[Agreement]
    costs: Mapping[str, Mapping[str, Any]]
    credit: CreditSettings
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the content of audit.json."""
        return {
            "schema": SCHEMA,
            "runs": list(self.runs),
            "sample": dict(self.sample),
            "terms": self.credit.as_json(),
            "thresholds": {**{name: getattr(limits, name) for name in LIMITS}, "TARGET": TARGET},
            "judges": [
                {**findings.as_json(), "verdict": verdict.as_json(), "cost": self.costs.get(findings.judge)}
                for findings, verdict in zip(self.findings, self.verdicts, strict=True)
            ],
            "agreement": [asdict(pair) for pair in self.agreements],
            "notes": list(self.notes),
        }


def tables(audit: Audit) -> list[Table]:
    """Return the tables for the terminal."""
    return [
        _verdicts(audit),
        _reasons(audit),
        _noise(audit),
        _training(audit),
        *_probes(audit),
        _agreement(audit),
        _costs(audit),
    ]


def _verdicts(audit: Audit) -> Table:
    rows = [[verdict.judge, verdict.training, verdict.evaluation] for verdict in audit.verdicts]
    note = (
        "fit: every number is within its limit. not fit: the whole 95 % interval of a number is beyond its "
        "limit. unknown: too few samples to tell, or not measured."
    )
    return Table(["judge", "for training", "for evaluation"], rows, title="Verdict", note=note, left=3)


def _reasons(audit: Audit) -> Table:
    rows = []
    for verdict in audit.verdicts:
        uses: dict[str, list[str]] = {}
        for use in BOTH:
            for reason in verdict.reasons(use):
                uses.setdefault(reason, []).append(use)
        rows += [[verdict.judge, ", ".join(used), reason] for reason, used in uses.items()]
    return Table(["judge", "affects", "reason"], rows, title="Reasons", left=3)


def _noise(audit: Audit) -> Table:
    rows: list[list[Cell]] = []
    for found in audit.findings:
        noise = found.noise
        share = None if noise is None else noise.share
        interval, dialogues = (None, 0) if noise is None else (noise.interval, noise.dialogues)
        rows.append(
            [
                found.judge,
                str(found.asked),
                percent(found.unscored, found.asked),
                estimate(share, interval, ".0%", dialogues),
                estimate(found.scores, found.scores_interval, ".2f", found.scored_dialogues),
                estimate(found.quotes.share, found.quotes.interval, ".0%"),
            ]
        )
    note = (
        "Noise: share of the reward's variance that comes from judging the same turn again. Score "
        "correlation: of dialogue scores judged twice. Evidence: share of marks whose quoted words are in "
        f"the reply. With fewer than {MIN_DIALOGUES} dialogues a number has no interval and supports no "
        "verdict; only unusable forms are counted one by one."
    )
    columns = ["judge", "forms", "unusable", "noise", "score correlation", "evidence"]
    return Table(columns, rows, title="Noise", note=note)


def _training(audit: Audit) -> Table:
    methods = ("mapo", "grpo", *(m for m in audit.credit.methods if m not in METHODS))
    rows: list[list[Cell]] = []
    for found in audit.findings:
        mapo = found.reliability_of("mapo")
        derived = mapo.as_json() if mapo else {}
        correlations = []
        for method in methods:
            correlation = found.reliability_of(method)
            correlations.append(
                estimate(
                    correlation.with_truth, correlation.with_truth_interval, ".2f", correlation.dialogues
                )
                if correlation
                else NumberCell("-")
            )
        rows.append(
            [
                found.judge,
                *correlations,
                number(derived.get("growth"), ".2f"),
                number(group_size_for(found.among_siblings), "d"),
                number(derived.get("repeats"), "d"),
            ]
        )
    note = (
        f"{', '.join(methods)}: correlation of the method's advantages with those of the same judge without "
        "noise. "
        "Batch multiplier: how many times more dialogues are needed to offset judge noise. Group size, "
        f"repeats: siblings per group, or averaged answers per turn, needed for a correlation of {TARGET:g} "
        "(-: no number is enough)."
    )
    columns = ["judge", *methods, "batch multiplier", "group size", "repeats"]
    return Table(columns, rows, title="Effect of noise on training", note=note)


def _probes(audit: Audit) -> list[Table]:
    names = [found.judge for found in audit.findings]
    probes = (*PROBES.values(), LANGUAGE_PROBE)
    rows = {
        kind: [
            [probe.name, probe.about, *(_effect_cell(found.effect(probe.name)) for found in audit.findings)]
            for probe in probes
            if probe.kind == kind
        ]
        for kind in ("rise", "shift")
    }
    rows["rise"].append(
        ["attacks", "attacks that raised a form", *(_attack_cell(found.attacks) for found in audit.findings)]
    )
    columns = ["probe", "change", *names]
    note = (
        "Mean change of the reward in standard deviations between turns, with 95 % intervals over dialogues. "
        f"problem: the interval is above {MAX_SIZE:g}; fine: below; unclear: it contains {MAX_SIZE:g}, or "
        f"fewer than {MIN_DIALOGUES} dialogues were probed. Attacks: limit {MAX_WORKED:.0%} above chance."
    )
    shift_note = f"As above; the limit is {MAX_SIZE:g} in both directions."
    return [
        Table(columns, rows["rise"], title="Worthless additions: should gain nothing", note=note, left=2),
        Table(
            columns,
            rows["shift"],
            title="Irrelevant changes: should change nothing",
            note=shift_note,
            left=2,
        ),
    ]


def _effect_cell(effect: Effect | None) -> Cell:
    if effect is None or effect.size is None:
        return "-"
    shown = estimate(effect.size, effect.size_interval, "+.2f", effect.clusters)
    return NumberCell(f"{shown.value} {effect.state}", shown.interval)


def _attack_cell(attacks: AttackResults | None) -> Cell:
    if attacks is None:
        return "-"
    return NumberCell(f"{attacks.worked} of {attacks.n} {attacks.state}", f"{attacks.chance:.0%} by chance")


def _agreement(audit: Audit) -> Table:
    rows: list[list[Cell]] = []
    for pair in audit.agreements:
        kappas = {level: k for level, k in pair.kappas.items() if k is not None}
        worst = min(kappas, key=lambda level: kappas[level]) if kappas else ""
        rows.append(
            [
                f"{pair.a} / {pair.b}",
                str(pair.turns),
                estimate(pair.kappa, pair.interval, ".2f", pair.clusters),
                NumberCell(f"{kappas[worst]:.2f}", worst) if worst else "-",
                number(pair.cosine, ".2f"),
                estimate(pair.ranks, pair.ranks_interval, ".2f", pair.dialogues),
                number(pair.milder, "+.2f"),
            ]
        )
    columns = ["judges", "turns", "kappa", "worst level", "cosine", "rank correlation", "reward gap"]
    note = (
        "Kappa: quadratic, over all levels, and of the level with the least agreement. Cosine: of step "
        "vectors. Rank correlation: of dialogue scores (EPM-Q). Reward gap: how much more the first judge "
        "gives per turn."
    )
    return Table(columns, rows, title="Agreement", note=note)


def agreement_by_level(audit: Audit) -> Table:
    """Return the kappa of every level; only for audit.md, because it is too wide for a terminal."""
    levels = list(dict.fromkeys(level for pair in audit.agreements for level in pair.kappas))
    rows = [
        [f"{pair.a} / {pair.b}", *(number(pair.kappas.get(level), ".2f") for level in levels)]
        for pair in audit.agreements
    ]
    note = "Quadratic kappa; -: neither judge ever used another level."
    return Table(["judges", *levels], rows, title="Agreement by level", note=note)


def _costs(audit: Audit) -> Table:
    rows = []
    for judge, cost in audit.costs.items():
        calls = cost["calls"] or 0
        rows.append(
            [
                judge,
                str(calls),
                number(cost["seconds"] / calls if calls else None, ".2f"),
                number(cost["prompt"] / calls if calls else None, ".0f"),
                number(cost["completion"] / calls if calls else None, ".0f"),
                number(cost["cost"], ".4f"),
            ]
        )
    columns = ["judge", "calls", "seconds per call", "prompt tokens", "completion tokens", "cost"]
    return Table(columns, rows, title="Cost", note="Tokens are means per call.")


# ---- numbers as text


def number(value: float | None, digits: str) -> str:
    """Format a number; "-" if there is none."""
    return "-" if value is None else format(value, digits)


def estimate(
    value: float | None, interval: Interval | None, digits: str, dialogues: int = MIN_DIALOGUES
) -> NumberCell:
    """Format a number with its interval or, if there are too few dialogues for one, with their number."""
    if value is None:
        return NumberCell("-")
    if interval is None and dialogues < MIN_DIALOGUES:
        return NumberCell(number(value, digits), f"only {dialogues} dialogue{'s' * (dialogues != 1)}")
    return NumberCell(number(value, digits), interval_text(interval, digits))


def percent(part: int, total: int) -> str:
    """Format a share as a percentage; "-" if there is nothing to divide by."""
    return f"{part / total:.1%}" if total else "-"


# ---- files


def markdown(audit: Audit, figure: str = "") -> str:
    """Return audit.md."""
    counts = ", ".join(f"{value} {name}" for name, value in audit.sample.items())
    parts = [
        f"# Audit of {', '.join(markdown_text(found.judge) for found in audit.findings)}",
        f"Over {', '.join(map(markdown_text, audit.runs))}: {counts}. docs/judges.md explains the numbers.",
    ]
    for verdict in audit.verdicts:
        parts.append(f"**{markdown_text(verdict.judge)}** {markdown_text(verdict.summary())}.")
        parts += [f"- Not measured: {markdown_text(text)}" for text in verdict.unknown]
    parts += [markdown_table(table, 2) for table in (*tables(audit), agreement_by_level(audit)) if table.rows]
    parts += [f"Note: {markdown_text(note)}" for note in audit.notes]
    if figure:
        parts.append(f"![Noise and probe effects of the judges]({figure})")
    return "\n\n".join(parts) + "\n"


def write(audit: Audit, out: Path, figure: str = "") -> None:
    """Write audit.json and audit.md."""
    text = json.dumps(audit.as_json(), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomic(RunDir(out).audit, text + "\n")
    write_atomic(RunDir(out).audit_markdown, markdown(audit, figure))
