"""A cast whose user, director and judge are played by models, and the prompts they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Sampling
from mapo.sandbox.cast import Cast, Casting, Director, Job, Judge, Policy, RolePrompts, User, prompts_id
from mapo.sandbox.director import ModelDirector, NoDirector
from mapo.sandbox.judge import ModelJudge
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts, language_of
from mapo.sandbox.user import ModelUser
from mapo.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class TemplatePrompts:
    """RolePrompts from templates: the shipped ones, or files of the user's own."""

    templates: Prompts = DEFAULT_PROMPTS

    @staticmethod
    def of(folder: Path) -> TemplatePrompts:
        """Return the prompts of a folder, with the shipped templates for those it does not have."""
        return TemplatePrompts(Prompts(folder))

    @property
    def name(self) -> str:
        return self.templates.name

    def fingerprint(self, domain: str) -> str:
        return self.templates.fingerprint(domain)

    def user(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> User:
        return ModelUser(chat, job.scenario, rubric, job.seed, job.session, sampling, self.templates)

    def director(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> Director:
        return ModelDirector(chat, job.scenario, rubric, job.seed, job.session, sampling, self.templates)

    def judge(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling, member: str = "") -> Judge:
        session = f"{job.session}/{member}" if member else job.session
        return ModelJudge(
            chat,
            job.scenario,
            rubric,
            job.seed,
            session,
            job.attempt,
            sampling,
            member=member,
            prompts=self.templates,
        )

    def policy_system(self, scenario: Scenario) -> str:
        """Return the policy's system prompt. Of the scenario, it reveals only the language."""
        return self.templates.fill("policy", scenario.domain, language=language_of(scenario))

    def policy(self, policy: Policy) -> Policy:
        return policy


SHIPPED_PROMPTS = TemplatePrompts()
"""mapo's own prompts."""


def model_cast(
    user: Chat,
    director: Chat,
    judge: Chat,
    rubric: Rubric,
    sampling: Mapping[str, Sampling] | None = None,
    prompts: RolePrompts = SHIPPED_PROMPTS,
) -> Casting:
    """Return a casting played by three models, which may be the same; `sampling` maps roles to settings."""
    settings = {role: (sampling or {}).get(role, DEFAULT_SAMPLING) for role in ("user", "director", "judge")}
    names = {"user": user.name, "director": director.name, "judge": judge.name}
    ids: dict[str, str] = {}

    def cast(job: Job) -> Cast:
        domain = job.scenario.domain
        directing = prompts.director(director, job, rubric, settings["director"])
        return Cast(
            user=prompts.user(user, job, rubric, settings["user"]),
            director=directing,
            judge=prompts.judge(judge, job, rubric, settings["judge"]),
            names={**names, **({"director": "none"} if isinstance(directing, NoDirector) else {})},
            prompts=ids.get(domain) or ids.setdefault(domain, prompts_id(prompts, domain)),
        )

    return cast


def judged_by_model(
    base: Casting, judge: Chat, rubric: Rubric, sampling: Sampling, prompts: RolePrompts = SHIPPED_PROMPTS
) -> Casting:
    """Return `base`, such as a scripted cast, with a model as its judge."""
    ids: dict[str, str] = {}

    def cast(job: Job) -> Cast:
        played, domain = base(job), job.scenario.domain
        return replace(
            played,
            judge=prompts.judge(judge, job, rubric, sampling),
            names={**played.names, "judge": judge.name},
            prompts=ids.get(domain) or ids.setdefault(domain, prompts_id(prompts, domain)),
        )

    return cast


def policy_system(scenario: Scenario) -> str:
    """Return the policy's system prompt of the shipped templates."""
    return SHIPPED_PROMPTS.policy_system(scenario)
