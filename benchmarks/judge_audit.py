"""Check that the audit recovers known noise and a known bias, by auditing judges whose true values are known.

    .venv/bin/python benchmarks/judge_audit.py

The judge is the scripted judge of the empathy domain with noise on every level (`mapo.testing.judges`), which
reads the same prompts as a model. The true values are estimated by asking the same judge 100 times about
every recorded turn.
"""

from __future__ import annotations

import argparse
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


def likes_praise(reply: str, _prompt: str) -> int:
    return int(any(word in reply for word in ("remarkable", "brilliant", "wonderful")))


def play_recordings() -> list[Recording]:
    scenarios = load_scenarios("builtin:test")
    recordings = []
    for name in ("honest", "early-adviser"):
        jobs = [Job(s, f"{s.id}_{name}_{k}", group=s.id, seed=k, step=1) for s in scenarios for k in range(2)]
        rules = Rules(RUBRIC, min_turns=12, max_turns=12)
        dialogues = asyncio.run(
            play_all(jobs, scripted_policy("empathy", name), scripted_cast("empathy"), rules)
        )
        by_id = {s.id: s for s in scenarios}
        recordings += [Recording("run", d, by_id[d.scenario], RUBRIC) for d in dialogues]
    return recordings


def judge(errors: JudgeErrors):
    answer = faulty_judges({"judge": errors})

    def reply(request):
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        return answer({"model": "judge", "messages": messages})

    return model_asker(FakeChat(reply, name="judge"))


def true_values(plan: AuditPlan, errors: JudgeErrors) -> tuple[float, float]:
    """Return the share of noise in the reward and the effect of praise on it, over all recorded turns."""
    turns = [RecordedTurn(t, n) for t in plan.recordings for n in range(1, len(t.dialogue.turns) + 1)]
    rng = random.Random(0)

    def draw_rewards(turn, shown):
        levels = honest_levels(list(shown.turns))
        forms = (distorted(errors, levels, shown.reply, "", rng) for _ in range(DRAWS))
        return [turn.reward(RUBRIC.levels(**form)) for form in forms]

    rewards = [draw_rewards(turn, unchanged_input(turn)) for turn in turns]
    noise, between = np.mean([np.var(row) for row in rewards]), np.var([np.mean(row) for row in rewards])
    praise = PROBES["flattery"].change
    gains = [
        np.mean(draw_rewards(turn, praise(unchanged_input(turn), index)))
        - np.mean(draw_rewards(turn, unchanged_input(turn)))
        for index, turn in enumerate(turns)
    ]
    return float(noise / (noise + between)), float(np.mean(gains))


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    recordings = play_recordings()
    print("noise  biased   share of noise: true, measured           praise: true, measured")
    for noise in (0.0, 0.1, 0.2):
        for biased in (False, True):
            errors = JudgeErrors(noise=noise, bias=likes_praise) if biased else JudgeErrors(noise=noise)
            plan = AuditPlan(("judge",), recordings, turns=48, dialogues=12, repeats=4, pairs=False)
            questions = plan.questions()

            async def solve(questions=questions, errors=errors):
                ask = question_solver({"judge": judge(errors)})
                return {q.id: await ask(q, 0) for q in questions}

            measured = measure_judge(
                answers_by_judge(questions, asyncio.run(solve()))["judge"],
                plan.whole_dialogues(),
                sizes=stratum_sizes(recordings),
            )
            share, gain = true_values(plan, errors)
            effect = measured.effect("flattery")
            ends = _interval(measured.noise.interval)
            cells = f"{noise:5.1f}  {biased:6d}   {share:6.3f} {measured.noise.share:7.3f} {ends}"
            print(f"{cells}      {gain:+6.2f} {effect.reward:+6.2f} {_interval(effect.interval)}")


def _interval(interval) -> str:
    return "(-)" if interval is None else f"({interval[0]:+.3f} to {interval[1]:+.3f})"


if __name__ == "__main__":
    main()
