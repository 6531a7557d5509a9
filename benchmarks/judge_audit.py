"""Check that the audit recovers known noise and a known bias: audit judges whose true values are known.

    .venv/bin/python benchmarks/judge_audit.py

The judge is the empathy domain's plain code with noise on every level (`mapo.testing.judges`), read off the
very prompts a model would get. The truth is had by drawing from the same judge, a hundred times for every
recorded turn.
"""

from __future__ import annotations

import asyncio
import random

import numpy as np

from mapo.judges.audit.answers import answers_by_judge
from mapo.judges.audit.measure import measure_judge
from mapo.judges.audit.probes import PROBES, unchanged_input
from mapo.judges.audit.questions import model_asker, question_solver
from mapo.judges.audit.run import AuditPlan
from mapo.judges.sample import RecordedTurn, Recording, stratum_sizes
from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import Job
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.sandbox.rollout import Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.testing.fakes import FakeChat
from mapo.testing.judges import JudgeErrors, distorted, faulty_judges, honest_levels

RUBRIC = Rubric.load("empathy")
DRAWS = 100


def flattered(reply: str, _prompt: str) -> int:
    return int(any(word in reply for word in ("remarkable", "brilliant", "wonderful")))


def played() -> list[Recording]:
    people = load_scenarios("builtin:test")
    found = []
    for name in ("honest", "early-adviser"):
        jobs = [Job(s, f"{s.id}_{name}_{k}", group=s.id, seed=k, step=1) for s in people for k in range(2)]
        rules = Rules(RUBRIC, min_turns=12, max_turns=12)
        dialogues = asyncio.run(
            play_all(jobs, scripted_policy("empathy", name), scripted_cast("empathy"), rules)
        )
        known = {s.id: s for s in people}
        found += [Recording("run", d, known[d.scenario], RUBRIC) for d in dialogues]
    return found


def judge(habit: JudgeErrors):
    answer = faulty_judges({"it": habit})

    def said(request):
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        return answer({"model": "it", "messages": messages})

    return model_asker(FakeChat(said, name="it"))


def truth(plan: AuditPlan, habit: JudgeErrors) -> tuple[float, float]:
    """The share of noise in the reward, and what praise adds to it, over all recorded turns."""
    turns = [RecordedTurn(t, at) for t in plan.recordings for at in range(1, len(t.dialogue.turns) + 1)]
    chance = random.Random(0)

    def drawn(turn, shown):
        levels = honest_levels(list(shown.turns))
        forms = (distorted(habit, levels, shown.reply, "", chance) for _ in range(DRAWS))
        return [turn.reward(RUBRIC.levels(**form)) for form in forms]

    rewards = [drawn(turn, unchanged_input(turn)) for turn in turns]
    noise, between = np.mean([np.var(own) for own in rewards]), np.var([np.mean(own) for own in rewards])
    praise = PROBES["flattery"].change
    gains = [
        np.mean(drawn(m, praise(unchanged_input(m), at))) - np.mean(drawn(m, unchanged_input(m)))
        for at, m in enumerate(turns)
    ]
    return float(noise / (noise + between)), float(np.mean(gains))


def main() -> None:
    talks = played()
    print("noise  liking   share of noise: true, found              praise: true, found")
    for noise in (0.0, 0.1, 0.2):
        for likes in (0, 1):
            habit = JudgeErrors(noise=noise, bias=flattered if likes else JudgeErrors().likes)
            plan = AuditPlan(("it",), talks, turns=48, dialogues=12, repeats=4, pairs=False)
            asked = plan.questions()

            async def solve(asked=asked, habit=habit):
                ask = question_solver({"it": judge(habit)})
                return {q.id: await ask(q, 0) for q in asked}

            found = measure_judge(
                answers_by_judge(asked, asyncio.run(solve()))["it"],
                plan.whole_dialogues(),
                sizes=stratum_sizes(talks),
            )
            share, gain = truth(plan, habit)
            effect = found.effect("flattery")
            noisy, ends = found.noise.share, _ends(found.noise.interval)
            told = f"{noise:5.1f}  {likes:6d}   {share:6.3f} {noisy:7.3f} {ends}"
            print(f"{told}      {gain:+6.2f} {effect.reward:+6.2f} {_ends(effect.interval)}")


def _ends(interval) -> str:
    return "(-)" if interval is None else f"({interval[0]:+.3f} to {interval[1]:+.3f})"


if __name__ == "__main__":
    main()
