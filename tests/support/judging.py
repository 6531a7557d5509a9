"""What the tests of the audit share: a recorded run with siblings, and judges whose faults are known."""

from __future__ import annotations

import asyncio
from functools import lru_cache

from mapo.judges.audit.ask import model_asking, solving
from mapo.judges.audit.run import Plan
from mapo.judges.sample import Talk
from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import Job
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.testing.fakes import FakeChat
from mapo.testing.judges import Habit, judges_that

EMPATHY = Rubric.load("empathy")
POLICIES = {"empathy": ("honest", "early-adviser"), "tutoring": ("honest", "answer-giver")}


@lru_cache
def talks(people: int = 6, siblings: int = 3, turns: int = 9, domain: str = "empathy") -> tuple[Talk, ...]:
    """Dialogues of unlike policies with the same people: siblings that differ."""
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
        found += [Talk("run", dialogue, known[dialogue.scenario], rubric) for dialogue in played]
    return tuple(found)


def lines_of(plan: Plan, judges, asked=None):
    """The lines of an audit whose judges are functions, without a disk."""

    async def solve():
        ask = solving(judges)
        return {q.id: {"id": q.id, "error": None, **await ask(q, 0)} for q in asked or plan.questions()}

    return asyncio.run(solve())


def faulty(habit: Habit, domain: str = "empathy"):
    """A judge with a habit, as an `Asking`: read off the prompt a model would get, without HTTP."""
    answer = judges_that({"it": habit}, domain)

    def said(request):
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        return answer({"model": "it", "messages": messages})

    return model_asking(FakeChat(said, name="it"))
