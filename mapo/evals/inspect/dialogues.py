"""The EMPA sandbox as a task of inspect_ai. Each sample is one dialogue, played by `mapo.play`.

User, director and judge are scripted (`agents=scripted`) or the models bound to the roles `user`, `director`
and `judge` (`agents=llm`).
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
from mapo.evals.inspect.chat import policy_chat, role_chat
from mapo.evals.inspect.epochs import by_epoch, one_epoch
from mapo.evals.inspect.names import task_name
from mapo.measure.epmq import composite
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Casting
from mapo.sandbox.domain import scripted_cast
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.rollout import Rules, play
from mapo.scenarios.sets import load_scenarios
from mapo.scenarios.start_levels import read_start_levels
from mapo.scoring.result import recompute
from mapo.types import Dialogue

DIALOGUE = "mapo_dialogue"
"""Key of the dialogue record in a sample's store."""


@task(name=task_name("empa"))
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
    """Long dialogues with simulated people, scored by EPM-Q."""
    if agents not in ("scripted", "llm"):
        raise InputError(f"agents is '{agents}'", where="-T agents", fix="Use scripted or llm")
    loaded = load_scenarios(scenarios, domain)
    rubric = Rubric.load(domain_folder(loaded[0].domain))
    levels = read_start_levels(Path(start_levels)) if start_levels else None
    plan = EmpaPlan(loaded, repeats, seed, levels)
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
    def play_dialogue() -> Solver:
        async def run(state: TaskState, generate: Generate) -> TaskState:
            del generate  # the sandbox makes its own calls
            job = jobs[str(state.sample_id)]
            dialogue = await play(job, policy_chat(job.id), _casting(agents, rubric)(job), rules)
            if not dialogue.judged:
                raise EndpointError(dialogue.error or "no turn was judged", where=f"dialogue {job.id}")
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
            metadata = {
                "indices": list(result.indices),
                "passed": result.passed,
                "unscored": result.unscored,
            }
            ending = dialogue.ending.reason.value if dialogue.ending else "unfinished"
            value = composite([result.indices]).epm_q
            return Score(value=value, answer=ending, metadata=metadata)

        return run

    samples = [Sample(id=job.id, input=job.scenario.opening) for job in jobs.values()]
    return Task(dataset=MemoryDataset(samples), solver=play_dialogue(), scorer=score(), epochs=one_epoch())


def _casting(agents: str, rubric: Rubric) -> Casting:
    if agents == "scripted":
        return scripted_cast(rubric.name)
    return model_cast(role_chat("user"), role_chat("director"), role_chat("judge"), rubric)


def _transcript(dialogue: Dialogue) -> str:
    return "\n\n".join(f"User: {turn.user}\n\nModel: {turn.reply.text}" for turn in dialogue.turns)


@metric
def empa_scores() -> Metric:
    """EPM-Q, its three components, and the number of passed dialogues, over all epochs together."""

    def run(scores: list[SampleScore]) -> dict[str, float]:
        results = [result for epoch in by_epoch(scores) for result in epoch]
        if not results:
            return {}
        total = composite([result["indices"] for result in results])
        return {
            "EPM-Q": total.epm_q,
            "Outcome": total.outcome,
            "Efficiency": total.efficiency,
            "Stability": total.stability,
            "passes": sum(result["passed"] for result in results),
            "dialogues": len(results),
        }

    return run
