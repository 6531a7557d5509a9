"""A cast whose user, director and judge are played by models, and the policy's system prompt."""

from __future__ import annotations

from collections.abc import Mapping

from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Sampling
from mapo.sandbox.cast import Cast, Casting, Job
from mapo.sandbox.director import ModelDirector
from mapo.sandbox.judge import ModelJudge
from mapo.sandbox.prompting import fill, language_of
from mapo.sandbox.user import ModelUser
from mapo.scenarios.scenario import Scenario


def model_cast(
    user: Chat, director: Chat, judge: Chat, rubric: Rubric, sampling: Mapping[str, Sampling] | None = None
) -> Casting:
    """Return a casting played by three models, which may be the same; `sampling` maps roles to settings."""
    settings = {role: (sampling or {}).get(role, DEFAULT_SAMPLING) for role in ("user", "director", "judge")}

    def cast(job: Job) -> Cast:
        scenario, seed, session = job.scenario, job.seed, job.session
        return Cast(
            user=ModelUser(user, scenario, rubric, seed, session, settings["user"]),
            director=ModelDirector(director, scenario, rubric, seed, session, settings["director"]),
            judge=ModelJudge(judge, scenario, rubric, seed, session, job.attempt, settings["judge"]),
            names={"user": user.name, "director": director.name, "judge": judge.name},
        )

    return cast


def policy_system(scenario: Scenario) -> str:
    """Return the policy's system prompt. Of the scenario, it reveals only the language."""
    return fill("policy", scenario.domain, language=language_of(scenario))
