"""A cast of models: who plays the user, the director and the judge, and what the policy is told."""

from __future__ import annotations

from collections.abc import Mapping

from mapo.measure.rubric import Rubric
from mapo.models.chat import OWN_WAY, Chat, Sampling
from mapo.sandbox.cast import Cast, Casting, Job
from mapo.sandbox.director import ModelDirector
from mapo.sandbox.judge import ModelJudge
from mapo.sandbox.prompting import fill, language_of
from mapo.sandbox.user import ModelUser
from mapo.scenarios.scenario import Scenario


def model_cast(
    user: Chat, director: Chat, judge: Chat, rubric: Rubric, sampling: Mapping[str, Sampling] | None = None
) -> Casting:
    """Three models, perhaps the same one, as the casting of any number of dialogues; `sampling` by role."""
    ways = {role: (sampling or {}).get(role, OWN_WAY) for role in ("user", "director", "judge")}

    def cast(job: Job) -> Cast:
        scenario, seed, session = job.scenario, job.seed, job.session
        return Cast(
            user=ModelUser(user, scenario, rubric, seed, session, ways["user"]),
            director=ModelDirector(director, scenario, rubric, seed, session, ways["director"]),
            judge=ModelJudge(judge, scenario, rubric, seed, session, job.attempt, ways["judge"]),
            names={"user": user.name, "director": director.name, "judge": judge.name},
        )

    return cast


def policy_system(scenario: Scenario) -> str:
    """The policy's system prompt: it knows nothing of the person but their language."""
    return fill("policy", scenario.domain, language=language_of(scenario))
