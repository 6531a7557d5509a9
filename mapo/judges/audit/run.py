"""Audit runs: the plan of what to ask, and the audit built from the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from mapo.errors import InputError
from mapo.estimators.methods import ESTIMATORS
from mapo.evals.items import ItemLine
from mapo.judges.audit.answers import RECORDED, answers_by_judge, recorded_answers
from mapo.judges.audit.judge_agreement import Agreement, agreement, self_agreement
from mapo.judges.audit.limits import MIN_DIALOGUES
from mapo.judges.audit.measure import DEFAULTS, measure_judge
from mapo.judges.audit.probes import PROBES, language_pairs, probe_texts
from mapo.judges.audit.questions import AuditQuestion, all_questions, panel_line
from mapo.judges.audit.report import SMALL_SAMPLE, Audit
from mapo.judges.audit.verdict import judge_verdict
from mapo.judges.credit import CreditSettings
from mapo.judges.sample import RecordedTurn, Recording, choose_dialogues, choose_turns, stratum_sizes
from mapo.runs.claim import digest
from mapo.text import counted

MANIFEST_SCHEMA = "mapo.audit/1"


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What every judge is asked."""

    judges: tuple[str, ...]
    recordings: Sequence[Recording]
    turns: int = 48
    dialogues: int = 12
    repeats: int = 4
    seed: int = 0
    pairs: bool = True
    credit: CreditSettings = DEFAULTS
    panel: str = ""
    """Name of the panel of all judges, if it is audited too."""

    def __post_init__(self) -> None:
        if len({recording.rubric.name for recording in self.recordings}) > 1:
            raise InputError("the runs use different rubrics", fix="Audit the runs of each rubric separately")
        if self.repeats < 2:
            raise InputError(
                f"{self.repeats} repeat per turn is too few to measure noise",
                fix="Judge each turn at least twice (--repeats 2 or more)",
            )

    def sampled_turns(self) -> list[RecordedTurn]:
        """Return the turns that are repeated and probed."""
        return choose_turns(self.recordings, self.turns, self.seed)

    def whole_dialogues(self) -> list[Recording]:
        """Return the dialogues that are judged twice."""
        return choose_dialogues(self.recordings, self.dialogues, self.seed)

    def warnings(self) -> list[str]:
        """Return what this sample is too small to measure, with the numbers of dialogues that tables show."""
        probed = {turn.recording.id for turn in self.sampled_turns()}
        twice = {recording.id for recording in self.whole_dialogues()}
        samples = [
            ("probe effects", probed, "--turns"),
            ("noise and agreement", probed | twice, "--turns or --dialogues"),
            *([("advantages and scores", twice, "--dialogues")] if self.dialogues else []),
        ]
        return [
            f"{what} are measured on {counted(len(dialogues), 'dialogue')}; an interval needs at least "
            f"{MIN_DIALOGUES} (add runs or increase {options})"
            for what, dialogues, options in samples
            if len(dialogues) < MIN_DIALOGUES
        ]

    def questions(self) -> list[AuditQuestion]:
        """Return the questions to ask. A panel is not asked: its answers follow from its members'."""
        return self._questions(self.judges)

    def with_panel(self, lines: Mapping[str, ItemLine]) -> tuple[list[AuditQuestion], dict[str, ItemLine]]:
        """Return all questions and lines, including those of the panel."""
        panel_questions = self._questions((self.panel,)) if self.panel else []
        panel_lines = {
            q.id: panel_line(q, [lines.get(replace(q, judge=name).id) for name in self.judges])
            for q in panel_questions
        }
        answered = {key: line for key, line in panel_lines.items() if line}
        return [*self.questions(), *panel_questions], {**lines, **answered}

    def _questions(self, judges: Sequence[str]) -> list[AuditQuestion]:
        rubric, credit = self.recordings[0].rubric, self.credit
        pairs = language_pairs(rubric, credit.reward, credit.distance) if self.pairs else []
        return all_questions(
            judges,
            self.sampled_turns(),
            self.whole_dialogues(),
            pairs,
            repeats=self.repeats,
            probes=list(PROBES.values()),
        )

    def manifest(self) -> dict[str, Any]:
        """Return the settings that a resumed audit must share."""
        messages = {
            recording.id: digest([[t.user, t.reply.text] for t in recording.dialogue.turns])
            for recording in self.recordings
        }
        return {
            "schema": MANIFEST_SCHEMA,
            "judges": list(self.judges),
            "dialogues_of": digest(messages),
            "turns": self.turns,
            "dialogues": self.dialogues,
            "repeats": self.repeats,
            "seed": self.seed,
            "probes": list(PROBES),
            "texts": digest(probe_texts()),
        }


def build_audit(
    plan: AuditPlan,
    lines: Mapping[str, ItemLine],
    costs: Mapping[str, Mapping[str, Any]],
    notes: Sequence[str] = (),
) -> Audit:
    """Measure all judges from their answers. The agreement of a panel with its members is left out: it would
    be meaningless, because they share their answers."""
    questions, lines = plan.with_panel(lines)
    whole, answers = plan.whole_dialogues(), answers_by_judge(questions, lines)
    members = [answers[name] for name in plan.judges]
    judges = [*members, answers[plan.panel]] if plan.panel else members
    with_self = [pair for judge in judges if (pair := self_agreement(judge, whole))]
    between = [pair for a, b in combinations(members, 2) if (pair := agreement(a, b, whole))]
    with_record = [pair for judge in judges if (pair := agreement(judge, recorded_answers(judge), whole))]
    sizes = stratum_sizes(plan.recordings)
    findings = [measure_judge(judge, whole, plan.credit, sizes) for judge in judges]

    def agreements_of(name: str) -> list[Agreement]:
        return [pair for pair in between if name in (pair.a, pair.b)]

    record_judges = sorted({rec.dialogue.cast.get("judge") or "unknown" for rec in plan.recordings})
    return Audit(
        runs=sorted({recording.run for recording in plan.recordings}),
        sample={
            "recorded dialogues": len(plan.recordings),
            "turns asked again": len(plan.sampled_turns()),
            "repeats": plan.repeats,
            "whole dialogues judged twice": len(whole),
            "questions": len(plan.questions()),
        },
        findings=findings,
        verdicts=[judge_verdict(each, agreements_of(each.judge)) for each in findings],
        agreements=[*between, *with_self, *with_record],
        costs=costs,
        credit=plan.credit,
        notes=[
            f"'{RECORDED}' is the judge of the records: {', '.join(record_judges)}",
            *(f"assumed {assumption}" for assumption in plan.credit.assumed),
            *(
                f"the advantages of {method}, used in training, are not measured: they need "
                f"{ESTIMATORS[method].needs} beside the rewards"
                for method in plan.credit.unmeasured
            ),
            *(f"{SMALL_SAMPLE}{warning}" for warning in plan.warnings()),
            *notes,
        ],
    )
