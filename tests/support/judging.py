"""Shared by the audit tests: a recorded run with siblings, and judges with known faults."""

from __future__ import annotations

import asyncio
from functools import lru_cache

from mapo.judges.audit.questions import model_asker, question_solver
from mapo.judges.audit.run import AuditPlan
from mapo.judges.sample import Recording
from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import Job
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.testing.fakes import FakeChat
from mapo.testing.judges import JudgeErrors, faulty_judges

EMPATHY = Rubric.load("empathy")
POLICIES = {"empathy": ("honest", "early-adviser"), "tutoring": ("honest", "answer-giver")}


@lru_cache
def recordings(
    people: int = 6, siblings: int = 3, turns: int = 9, domain: str = "empathy"
) -> tuple[Recording, ...]:
    """Return dialogues of different policies with the same scenarios: siblings that differ."""
    scenarios = load_scenarios("builtin:test", domain)[:people]
    rubric = Rubric.load(domain)
    found = []
    for name in POLICIES[domain]:
        jobs = [
            Job(scenario, f"{scenario.id}_{name}_{k}", group=scenario.id, seed=k, step=1)
            for scenario in scenarios
            for k in range(siblings)
        ]
        rules = Rules(rubric, min_turns=turns, max_turns=turns)
        played = asyncio.run(play_all(jobs, scripted_policy(domain, name), scripted_cast(domain), rules))
        known = {scenario.id: scenario for scenario in scenarios}
        found += [Recording("run", dialogue, known[dialogue.scenario], rubric) for dialogue in played]
    return tuple(found)


def lines_of(plan: AuditPlan, judges, asked=None):
    """Return the answer lines of an audit whose judges are functions, without writing files."""

    async def solve():
        ask = question_solver(judges)
        return {q.id: {"id": q.id, "error": None, **await ask(q, 0)} for q in asked or plan.questions()}

    return asyncio.run(solve())


def faulty(habit: JudgeErrors, domain: str = "empathy"):
    """Return a judge with a habit as a function; it reads the prompt a model would get, without HTTP."""
    answer = faulty_judges({"it": habit}, domain)

    def said(request):
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        return answer({"model": "it", "messages": messages})

    return model_asker(FakeChat(said, name="it"))
