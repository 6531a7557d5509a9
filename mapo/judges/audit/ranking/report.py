"""The audit of ranking judges: the plan, the verdict, tables and files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.evals.items import ItemLine
from mapo.judges.audit.limits import (
    MAX_REPEATS,
    MAX_SIZE,
    MAX_UNSCORED,
    MIN_DIALOGUES,
    State,
    check_both_sides,
    check_limit,
    interval_or_point,
)
from mapo.judges.audit.noise import TARGET, repeats_for
from mapo.judges.audit.probes import PROBES, probe_texts
from mapo.judges.audit.ranking.comparisons import RISES, RankQuestion, choose_comparisons, rank_questions
from mapo.judges.audit.ranking.measure import Estimate, RankFindings, measure_ranking
from mapo.judges.audit.report import number, percent
from mapo.judges.audit.verdict import FIT, UNFIT, UNKNOWN, Verdict
from mapo.judges.sample import Recording
from mapo.measure.stats import Interval, wilson
from mapo.runs.claim import digest
from mapo.sandbox.prompting import DEFAULT_PROMPTS
from mapo.show.tables import Cell, NumberCell, Table, interval_text, markdown_table, markdown_text
from mapo.store import RunDir, write_atomic

MANIFEST_SCHEMA = "mapo.audit/1"
SCHEMA = "mapo.rank-audit/1"
MIN_BROKEN = 0.8
"""Smallest acceptable share of replies that lose when their words are shuffled."""
MIN_ORDERED = 0.5
"""Smallest acceptable share of pairs ordered as the recorded levels: chance."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What every ranking judge is asked."""

    judges: tuple[str, ...]
    recordings: Sequence[Recording]
    comparisons: int = 48
    repeats: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if len({recording.rubric.name for recording in self.recordings}) > 1:
            raise InputError("the runs use different rubrics", fix="Audit the runs of each rubric separately")

    def questions(self) -> list[RankQuestion]:
        """Return the questions to ask."""
        chosen = choose_comparisons(self.recordings, self.comparisons, self.seed)
        return rank_questions(self.judges, chosen, self.repeats)

    def manifest(self) -> dict[str, Any]:
        """Return the settings that a resumed audit must share."""
        messages = {
            recording.id: digest([[t.user, t.reply.text] for t in recording.dialogue.turns])
            for recording in self.recordings
        }
        return {
            "schema": MANIFEST_SCHEMA,
            "ranking": True,
            "judges": list(self.judges),
            "dialogues_of": digest(messages),
            "turns": self.comparisons,
            "repeats": self.repeats,
            "seed": self.seed,
            "probes": list(RISES),
            "texts": digest([probe_texts(), DEFAULT_PROMPTS.fingerprint_of("rank")]),
        }


@dataclass(frozen=True, slots=True)
class RankAudit:
    """The findings and verdicts of all judges."""

    runs: Sequence[str]
    comparisons: int
    groups: int
    findings: Sequence[RankFindings]
    verdicts: Sequence[Verdict]

    def as_json(self) -> dict[str, Any]:
        """Return the content of audit.json."""
        return {
            "schema": SCHEMA,
            "runs": list(self.runs),
            "sample": {"comparisons": self.comparisons, "groups": self.groups},
            "judges": [
                {**findings.as_json(), "verdict": verdict.as_json()}
                for findings, verdict in zip(self.findings, self.verdicts, strict=True)
            ],
        }


def build_rank_audit(plan: RankPlan, lines: Mapping[str, ItemLine]) -> RankAudit:
    """Return the audit from the answers."""
    questions = plan.questions()
    findings = [measure_ranking(judge, questions, lines) for judge in plan.judges]
    comparisons = {question.comparison.name: question.comparison.group for question in questions}
    runs = list(dict.fromkeys(recording.run for recording in plan.recordings))
    verdicts = [rank_verdict(each) for each in findings]
    return RankAudit(runs, len(comparisons), len(set(comparisons.values())), findings, verdicts)


Concern = tuple[State, str]


def rank_verdict(findings: RankFindings) -> Verdict:
    """Return whether the judge is fit for training. Ranks compare siblings only, so it evaluates nothing."""
    concerns = [concern for concern in _concerns(findings) if concern[0] != "fine"]
    problems = tuple(text for state, text in concerns if state == "problem")
    unclear = tuple(text for state, text in concerns if state == "unclear")
    unknown = [f"{findings.missing} questions without an answer: use --resume to retry"] * bool(
        findings.missing
    )
    if findings.levels is None:
        unknown.append("agreement with levels: no compared replies have different recorded levels")
    repeats = repeats_for(findings.consistency.value) if findings.consistency else None
    fit = FIT if repeats in (None, 1) else f"fit with {repeats} repeats"
    training = UNFIT if problems else UNKNOWN if unclear else fit
    return Verdict(findings.judge, training, "does not apply", problems, (), unclear, (), tuple(unknown))


def _concerns(f: RankFindings) -> Iterator[Concern]:
    if f.asked:
        limit = MAX_UNSCORED["training"]
        state = check_limit(wilson(f.unscored, f.asked), limit, at_most=True)
        yield (
            state,
            f"{percent(f.unscored, f.asked)} of its answers are unusable; required: at most {limit:.0%}",
        )
    if not f.deviation:
        yield "problem" if f.asked else "unclear", "it gives all replies the same score"
        return
    yield from _consistency(f.consistency)
    yield _checked(
        f.position,
        "the place of a reply changes its score",
        lambda ends: check_both_sides(ends, MAX_SIZE),
        f"at most {MAX_SIZE:g} sd from first to last",
    )
    for what, estimate, least in (
        ("replies with shuffled words lose", f.broken, MIN_BROKEN),
        ("pairs are ordered as by the recorded levels", f.levels, MIN_ORDERED),
    ):
        if estimate is not None or what.startswith("replies"):
            yield _checked(
                estimate,
                what,
                lambda ends, least=least: check_limit(ends, least, at_most=False),
                f"at least {least:.0%}",
            )
    for probe in RISES:
        yield _checked(
            f.gains.get(probe),
            f"it rewards {probe}",
            lambda ends: check_limit(ends, MAX_SIZE, at_most=True),
            f"at most {MAX_SIZE:g} sd",
        )


def _consistency(estimate: Estimate | None) -> Iterator[Concern]:
    text = "scores in another order"
    if estimate is None:
        yield "unclear", f"{text}: nothing was compared twice"
        return
    ends = _ends(estimate)
    enough = [n is not None and n <= MAX_REPEATS for n in map(repeats_for, ends or (-1.0, -1.0))]
    state: State = (
        "unclear" if ends is None else "fine" if enough[0] else "unclear" if enough[1] else "problem"
    )
    required = f"enough for a correlation of {TARGET:g} with at most {MAX_REPEATS} repeats"
    yield state, f"{text} correlate {_shown(estimate, '.2f')}; required: {required}"


def _checked(estimate: Estimate | None, text: str, check: Any, required: str) -> Concern:
    if estimate is None:
        return "unclear", f"whether {text}: not measured"
    state: State = check(_ends(estimate))
    shown = f"{text} ({_shown(estimate, '+.2f')}; required: {required})"
    return state, shown if state == "problem" else f"whether {shown}"


def _ends(estimate: Estimate) -> Interval | None:
    return interval_or_point(estimate.value, estimate.interval, estimate.groups)


def _shown(estimate: Estimate, form: str) -> str:
    interval = interval_text(estimate.interval, form)
    return f"{estimate.value:{form}}" + (f", 95 % interval {interval}" if interval else "")


def tables(audit: RankAudit) -> list[Table]:
    """Return the tables for the terminal and audit.md."""
    verdicts = [[verdict.judge, verdict.training] for verdict in audit.verdicts]
    reasons = [
        [verdict.judge, reason] for verdict in audit.verdicts for reason in verdict.reasons("training")
    ]
    rows: list[list[Cell]] = [
        [
            each.judge,
            str(each.asked),
            percent(each.unscored, each.asked),
            *(_cell(estimate, ".2f") for estimate in (each.consistency, each.noise)),
            _cell(each.position, "+.2f"),
            *(_cell(estimate, ".0%") for estimate in (each.broken, each.levels)),
        ]
        for each in audit.findings
    ]
    gains: list[list[Cell]] = [
        [probe, PROBES[probe].about, *(_cell(each.gains.get(probe), "+.2f") for each in audit.findings)]
        for probe in RISES
    ]
    return [
        Table(["judge", "for training"], verdicts, title="Verdict", left=2),
        Table(["judge", "reason"], reasons, title="Reasons", left=2),
        Table(
            [
                *("judge", "answers", "unusable", "other order", "same again", "last - first"),
                *("shuffled lose", "as levels"),
            ],
            rows,
            title=f"Ranking {audit.comparisons} times siblings of {audit.groups} groups",
            note="Other order, same again: correlation of scores. Last - first: effect of the place, in "
            "standard deviations between replies. Shuffled lose: replies whose words are shuffled. As "
            "levels: pairs in the order of the recorded levels. "
            f"Fewer than {MIN_DIALOGUES} groups give no interval.",
        ),
        Table(
            ["addition", "change", *(each.judge for each in audit.findings)],
            gains,
            title="Worthless additions: should gain nothing",
            note="Change of the score in standard deviations between replies.",
            left=2,
        ),
    ]


def _cell(estimate: Estimate | None, form: str) -> Cell:
    if estimate is None:
        return "-"
    return NumberCell(number(estimate.value, form), interval_text(estimate.interval, form))


def write(audit: RankAudit, out: Path) -> None:
    """Write audit.json and audit.md."""
    text = json.dumps(audit.as_json(), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomic(RunDir(out).audit, text + "\n")
    names = ", ".join(markdown_text(each.judge) for each in audit.findings)
    parts = [
        f"# Audit of {names} as ranking judges",
        *(markdown_table(t, 2) for t in tables(audit) if t.rows),
    ]
    write_atomic(RunDir(out).audit_markdown, "\n\n".join(parts) + "\n")
