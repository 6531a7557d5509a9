"""Audit output: tables for the terminal and audit.md, and all measurements in audit.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mapo.judges.audit import verdict as rules
from mapo.judges.audit.between import Agreement
from mapo.judges.audit.measure import Findings
from mapo.judges.audit.noise import TARGET, group_for
from mapo.judges.audit.probes import LANGUAGE_PROBE, PROBES
from mapo.judges.audit.verdict import Verdict
from mapo.judges.terms import Terms
from mapo.measure.stats import Interval
from mapo.show.tables import Table, markdown_table, markdown_text
from mapo.store import RunDir, write_atomic

SCHEMA = "mapo.audit/1"


@dataclass(frozen=True, slots=True)
class Audit:
    """Everything that was found. `costs` holds what each judge's calls came to, from the ledger."""

    runs: Sequence[str]
    sample: Mapping[str, Any]
    findings: Sequence[Findings]
    verdicts: Sequence[Verdict]
    agreements: Sequence[Agreement]
    costs: Mapping[str, Mapping[str, Any]]
    terms: Terms
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        names = ("MAX_REPEATS", "MAX_SIZE", "SURE", "MAX_WORKED", "MAX_UNSCORED", "MIN_SCORES", "MIN_KAPPA")
        limits = {name: getattr(rules, name) for name in (*names, "MIN_RANKS", "MIN_QUOTED")}
        return {
            "schema": SCHEMA,
            "runs": list(self.runs),
            "sample": dict(self.sample),
            "terms": self.terms.as_json(),
            "thresholds": {**limits, "TARGET": TARGET},
            "judges": [
                {**found.as_json(), "verdict": said.as_json(), "cost": self.costs.get(found.judge)}
                for found, said in zip(self.findings, self.verdicts, strict=True)
            ],
            "agreement": [asdict(pair) for pair in self.agreements],
            "notes": list(self.notes),
        }


def tables(audit: Audit) -> list[Table]:
    return [_verdicts(audit), _noise(audit), _probes(audit), _agreement(audit), _costs(audit)]


def _verdicts(audit: Audit) -> Table:
    rows = []
    for said in audit.verdicts:
        why = dict.fromkeys([*said.because("training"), *said.because("evaluation")])
        rows.append([said.judge, said.training, said.evaluation, "; ".join(why) or "-"])
    return Table(["judge", "for training", "for evaluation", "because"], rows, title="Verdict", left=4)


def _noise(audit: Audit) -> Table:
    head = [
        "judge",
        "forms",
        "unusable",
        "noise in the reward",
        "mapo",
        "grpo",
        "batch grows by",
        "group",
        "repeats",
    ]
    rows = []
    for found in audit.findings:
        by = {r.method: r for r in found.reliability}
        mapo = by["mapo"].as_json() if "mapo" in by else {}
        rows.append(
            [
                found.judge,
                str(found.asked),
                share(found.unscored, found.asked),
                "-" if found.noise is None else spread(found.noise.share, found.noise.interval, ".0%"),
                *(number(by[m].with_truth if m in by else None, ".2f") for m in ("mapo", "grpo")),
                number(mapo.get("growth"), ".2f"),
                number(group_for(found.among_siblings), "d"),
                number(mapo.get("repeats"), "d"),
                number(found.scores, ".2f"),
                number(found.quotes.share, ".0%"),
            ]
        )
    note = (
        "Noise: the share of the reward's variance that comes from asking the judge again. mapo, grpo: how "
        "far its advantages correlate with those of the same judge without noise. Batch grows by: so many "
        "times the dialogues carry what they would without noise. Group, repeats: siblings, or answers a "
        f"turn averaged, with which the correlation is {TARGET:g}; -: none is enough. Scores again: that of "
        "dialogues' scores with themselves. Evidence: marks whose words are in the reply."
    )
    return Table([*head, "scores again", "evidence"], rows, title="Noise", note=note)


def _probes(audit: Audit) -> Table:
    rows = []
    for probe in (*PROBES.values(), LANGUAGE_PROBE):
        cells = []
        for found in audit.findings:
            effect = found.effect(probe.name)
            mark = " *" if rules.real(effect) else ""
            cells.append("-" if effect is None else spread(effect.reward, effect.interval, "+.2f") + mark)
        rows.append([f"{probe.name}: {probe.about}", *cells])
    worked = [
        "-"
        if f.attacks is None
        else f"{f.attacks.worked} of {f.attacks.n}, by chance {number(f.attacks.chance, '.0%')}"
        for f in audit.findings
    ]
    note = (
        "Change of the reward against the same turn as it was, with 95 % intervals over dialogues. "
        f"*: larger than {rules.MAX_SIZE:g} standard deviations of the reward between turns, and "
        f"p < {rules.SURE:g} after Holm's correction. Attacks: forms above all but one of their repeats; by "
        "chance, the one left out above the others."
    )
    names = [found.judge for found in audit.findings]
    rows.append(["attacks that raised a form", *worked])
    return Table(["probe", *names], rows, title="What moves it", note=note)


def _agreement(audit: Audit) -> Table:
    rows = []
    for pair in audit.agreements:
        known = {item: k for item, k in pair.kappas.items() if k is not None}
        worst = min(known, key=lambda item: known[item]) if known else ""
        rows.append(
            [
                f"{pair.a} / {pair.b}",
                str(pair.turns),
                spread(pair.kappa, pair.interval, ".2f"),
                f"{worst} {known[worst]:.2f}" if worst else "-",
                number(pair.cosine, ".2f"),
                f"{number(pair.ranks, '.2f')} ({pair.dialogues})",
                number(pair.milder, "+.2f"),
            ]
        )
    head = ["judges", "turns", "kappa", "worst level", "cosine", "ranks (dialogues)", "milder by"]
    note = (
        "Quadratic kappa of all levels and of the worst one, cosine of steps, rank correlation of EPM-Q, "
        "difference of rewards."
    )
    return Table(head, rows, title="Agreement", note=note)


def by_level(audit: Audit) -> Table:
    """Too wide for a terminal: audit.md has it."""
    items = list(dict.fromkeys(item for pair in audit.agreements for item in pair.kappas))
    rows = [
        [f"{pair.a} / {pair.b}", *(number(pair.kappas.get(item), ".2f") for item in items)]
        for pair in audit.agreements
    ]
    note = "Quadratic kappa; -: neither ever moves."
    return Table(["judges", *items], rows, title="Agreement by level", note=note)


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
    columns = ["judge", "calls", "seconds per call", "prompt", "completion", "cost"]
    return Table(columns, rows, title="Cost")


# ---- numbers as text


def number(value: float | None, digits: str) -> str:
    return "-" if value is None else format(value, digits)


def spread(value: float | None, interval: Interval | None, digits: str) -> str:
    if value is None or interval is None:
        return number(value, digits)
    return f"{value:{digits}} ({interval[0]:{digits}} to {interval[1]:{digits}})"


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


# ---- files


def markdown(audit: Audit, figure: str = "") -> str:
    counts = ", ".join(f"{value} {name}" for name, value in audit.sample.items())
    parts = [
        f"# Audit of {', '.join(markdown_text(found.judge) for found in audit.findings)}",
        f"Over {', '.join(map(markdown_text, audit.runs))}: {counts}. What the numbers mean: docs/judges.md.",
    ]
    for said in audit.verdicts:
        parts.append(f"**{markdown_text(said.judge)}** {markdown_text(said.told())}.")
        parts += [f"- Not known: {markdown_text(line)}" for line in said.unknown]
    parts += [markdown_table(table, 2) for table in (*tables(audit), by_level(audit)) if table.rows]
    parts += [f"Note: {markdown_text(note)}" for note in audit.notes]
    if figure:
        parts.append(f"![Noise, and what moves the judges]({figure})")
    return "\n\n".join(parts) + "\n"


def write(audit: Audit, out: Path, figure: str = "") -> None:
    text = json.dumps(audit.as_json(), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomic(RunDir(out).audit, text + "\n")
    write_atomic(RunDir(out).audit_markdown, markdown(audit, figure))
