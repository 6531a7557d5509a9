"""An audit from its questions to its findings: what is asked, what makes it the audit it is, what came of
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from mapo.errors import InputError
from mapo.evals.items import Line
from mapo.judges.audit.answers import RECORDED, answers_of, recorded
from mapo.judges.audit.ask import Question, panel_line, questions
from mapo.judges.audit.between import Agreement, agreement, with_itself
from mapo.judges.audit.measure import DEFAULTS, findings
from mapo.judges.audit.probes import PROBES, language_pairs, texts
from mapo.judges.audit.report import SCHEMA, Audit
from mapo.judges.audit.verdict import dialogues_needed, verdict
from mapo.judges.sample import Moment, Talk, choose_dialogues, choose_turns, strata_of
from mapo.judges.terms import Terms
from mapo.runs.claim import digest


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of every judge."""

    judges: tuple[str, ...]
    talks: Sequence[Talk]
    turns: int = 48
    dialogues: int = 12
    repeats: int = 4
    seed: int = 0
    pairs: bool = True
    terms: Terms = DEFAULTS
    panel: str = ""
    """What the panel of all judges is called, where it is audited too."""

    def __post_init__(self) -> None:
        if len({talk.rubric.name for talk in self.talks}) > 1:
            raise InputError("runs of several rubrics", fix="Audit a judge on one rubric at a time")
        if self.repeats < 2:
            raise InputError(
                f"{self.repeats} repeat", fix="Noise shows only when a turn is asked twice or more"
            )

    def sampled(self) -> list[Moment]:
        return choose_turns(self.talks, self.turns, self.seed)

    def whole(self) -> list[Talk]:
        return choose_dialogues(self.talks, self.dialogues, self.seed)

    def warnings(self) -> list[str]:
        """What the answers will not tell, whatever they are."""
        probed = len({moment.talk.id for moment in self.sampled()})
        need = dialogues_needed(len(PROBES) + 1)
        few = f"probes over {probed} dialogues can show no effect, {need} are needed (more runs, or --turns)"
        return [few] if probed < need else []

    def questions(self) -> list[Question]:
        """A panel is asked nothing: its answers are its members'."""
        return self._questions(self.judges)

    def with_panel(self, lines: Mapping[str, Line]) -> tuple[list[Question], dict[str, Line]]:
        """All questions, and the lines with those of the panel."""
        together = self._questions((self.panel,)) if self.panel else []
        own = {
            q.id: panel_line(q, [lines.get(replace(q, judge=name).id) for name in self.judges])
            for q in together
        }
        return [*self.questions(), *together], {**lines, **{key: line for key, line in own.items() if line}}

    def _questions(self, judges: Sequence[str]) -> list[Question]:
        terms = self.terms
        pairs = language_pairs(self.talks[0].rubric, terms.reward, terms.distance) if self.pairs else []
        probes = list(PROBES.values())
        return questions(judges, self.sampled(), self.whole(), pairs, repeats=self.repeats, probes=probes)

    def manifest(self) -> dict[str, Any]:
        """What makes an audit the audit it is; a resume must agree in all of it."""
        said = {talk.id: digest([[t.user, t.reply.text] for t in talk.dialogue.turns]) for talk in self.talks}
        return {
            "schema": SCHEMA,
            "judges": list(self.judges),
            "dialogues_of": digest(said),
            "turns": self.turns,
            "dialogues": self.dialogues,
            "repeats": self.repeats,
            "seed": self.seed,
            "probes": list(PROBES),
            "texts": digest(texts()),
        }


def audited(
    plan: Plan,
    lines: Mapping[str, Line],
    costs: Mapping[str, Mapping[str, Any]],
    notes: Sequence[str] = (),
) -> Audit:
    """Everything about all judges, from their answers. A panel and its members share theirs, so how far they
    agree would say nothing."""
    asked, lines = plan.with_panel(lines)
    whole, answers = plan.whole(), answers_of(asked, lines)
    members = [answers[name] for name in plan.judges]
    judges = [*members, answers[plan.panel]] if plan.panel else members
    own = [pair for judge in judges if (pair := with_itself(judge, whole))]
    others = [pair for a, b in combinations(members, 2) if (pair := agreement(a, b, whole))]
    written = [pair for judge in judges if (pair := agreement(judge, recorded(judge), whole))]
    strata = strata_of(plan.talks)
    found = [findings(judge, whole, plan.terms, strata) for judge in judges]

    def of(name: str) -> list[Agreement]:
        return [pair for pair in others if name in (pair.a, pair.b)]

    record = sorted({talk.dialogue.cast.get("judge") or "unknown" for talk in plan.talks})
    return Audit(
        runs=sorted({talk.run for talk in plan.talks}),
        sample={
            "recorded dialogues": len(plan.talks),
            "turns asked again": len(plan.sampled()),
            "repeats": plan.repeats,
            "whole dialogues judged twice": len(whole),
            "questions": len(plan.questions()),
        },
        findings=found,
        verdicts=[verdict(each, of(each.judge)) for each in found],
        agreements=[*others, *own, *written],
        costs=costs,
        terms=plan.terms,
        notes=[
            f"'{RECORDED}' is the judge of the records: {', '.join(record)}",
            *(f"assumed {said}" for said in plan.terms.assumed),
            *notes,
        ],
    )
