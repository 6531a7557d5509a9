"""The EMPA sandbox as a task of inspect_ai: a sample is a dialogue, played by `mapo.play`.

User, director and judge are plain code (`agents=scripted`) or the models bound to the roles `user`,
`director` and `judge` (`agents=llm`).
"""

from __future__ import annotations

import json
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from mapo.domain_folders import domain_folder
from mapo.errors import EndpointError, InputError
from mapo.evals.empa.benchmark import EmpaPlan
from mapo.evals.inspect.chat import player, talker
from mapo.evals.inspect.epochs import by_epoch, once
from mapo.measure.epmq import composite
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Casting
from mapo.sandbox.domain import scripted_cast
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.rollout import Rules, play
from mapo.scenarios.empa_cards import read_start_levels
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.result import recompute
from mapo.types import Dialogue

DIALOGUE = "mapo_dialogue"
"""Where a sample keeps its record."""


@task
def empa(
    agents: str = "scripted",
    scenarios: str = "builtin:test",
    domain: str | None = None,
    start_levels: str | None = None,
    repeats: int = 1,
    seed: int = 0,
    profile: str = "published",
    max_turns: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 512,
) -> Task:
    """Long talks with simulated people, scored by EPM-Q."""
    if agents not in ("scripted", "llm"):
        raise InputError(f"agents is '{agents}'", fix="Use scripted or llm")
    chosen = load_scenarios(scenarios, domain)
    rubric = Rubric.load(domain_folder(chosen[0].domain))
    known = read_start_levels(Path(start_levels)) if start_levels else None
    plan = EmpaPlan(chosen, repeats, seed, known)
    plan.check(rubric)
    jobs = {job.id: job for job in plan.jobs()}
    rules = Rules(
        rubric,
        profile,
        max_turns=max_turns,
        system=policy_system,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
    )

    @solver
    def talk() -> Solver:
        async def run(state: TaskState, generate: Generate) -> TaskState:
            del generate  # the sandbox talks in its own way
            job = jobs[str(state.sample_id)]
            dialogue = await play(job, talker(job.id), _casting(agents, rubric)(job), rules)
            if not dialogue.judged:
                raise EndpointError(dialogue.error or "not one turn was judged", where=f"dialogue {job.id}")
            state.output = ModelOutput.from_content(str(state.model), _transcript(dialogue))
            state.store.set(DIALOGUE, json.loads(encode_dialogue(dialogue)))
            return state

        return run

    @scorer(metrics=[empa_scores()], name="empa")
    def score() -> Scorer:
        async def run(state: TaskState, target: Target) -> Score:
            del target
            dialogue = decode_dialogue(json.dumps(state.store.get(DIALOGUE)).encode())
            result = recompute(dialogue, Path(), None, rubric, dialogue.id)
            kept = {"indices": list(result.indices), "passed": result.passed, "unscored": result.unscored}
            ending = dialogue.ending.reason.value if dialogue.ending else "unfinished"
            value = composite([result.indices]).epm_q
            return Score(value=value, answer=ending, metadata=kept)

        return run

    samples = [Sample(id=job.id, input=job.scenario.opening) for job in jobs.values()]
    return Task(dataset=MemoryDataset(samples), solver=talk(), scorer=score(), epochs=once())


def _casting(agents: str, rubric: Rubric) -> Casting:
    if agents == "scripted":
        return scripted_cast(rubric.name)
    return model_cast(player("user"), player("director"), player("judge"), rubric)


def _transcript(dialogue: Dialogue) -> str:
    return "\n\n".join(f"User: {turn.user}\n\nModel: {turn.reply.text}" for turn in dialogue.turns)


@metric
def empa_scores() -> Metric:
    """EPM-Q with its three parts, and how many dialogues passed, of all epochs together."""

    def run(scores: list[SampleScore]) -> dict[str, float]:
        kept = [found for epoch in by_epoch(scores) for found in epoch]
        if not kept:
            return {}
        found = composite([k["indices"] for k in kept])
        return {
            "EPM-Q": found.epm_q,
            "Outcome": found.outcome,
            "Efficiency": found.efficiency,
            "Stability": found.stability,
            "passes": sum(k["passed"] for k in kept),
            "dialogues": len(kept),
        }

    return run
