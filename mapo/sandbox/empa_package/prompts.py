"""EMPA's prompts as `RolePrompts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mapo.errors import ScenarioError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat, Sampling
from mapo.sandbox.cast import Director, Job, Judge, Policy, User
from mapo.sandbox.empa_package.cards import EmpaCard, read_empa_cards
from mapo.sandbox.empa_package.package import NAME, EmpaPackage, load_package
from mapo.sandbox.empa_package.roles import EmpaDirector, EmpaJudge, EmpaPolicy, EmpaUser
from mapo.scenarios.scenario import Scenario
from mapo.types import Goal


@dataclass(frozen=True, slots=True)
class EmpaPrompts:
    """RolePrompts from the published package, for the cases in `cards`."""

    package: EmpaPackage
    cards: Mapping[str, EmpaCard]

    @staticmethod
    def load(files: Mapping[str, Path], rubric: Rubric) -> EmpaPrompts:
        """Import the package and read the cards of scenarios, given by their files."""
        package = load_package()
        package.check_rubric(rubric)
        return EmpaPrompts(package, read_empa_cards(files, package.data, rubric))

    @property
    def name(self) -> str:
        return NAME

    def fingerprint(self, domain: str) -> str:  # noqa: ARG002 (the same for every domain)
        return self.package.fingerprint()

    @property
    def start_levels(self) -> dict[str, dict[str, int]]:
        """The precomputed start levels by case, where there are any."""
        return {
            case: {key: mark.level for key, mark in card.start.items()}
            for case, card in self.cards.items()
            if card.start
        }

    @property
    def goals(self) -> dict[str, Goal]:
        """The precomputed goals by case, where there are any."""
        return {case: card.goal for case, card in self.cards.items() if card.goal}

    def user(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> User:  # noqa: ARG002
        return EmpaUser(self.package, self._card(job), chat, job, sampling)

    def director(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> Director:  # noqa: ARG002
        return EmpaDirector(self.package, self._card(job), chat, job, sampling)

    def judge(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling, member: str = "") -> Judge:
        return EmpaJudge(self.package, self._card(job), chat, job, rubric, sampling, member)

    def policy_system(self, scenario: Scenario) -> str:  # noqa: ARG002
        return self.package.policy_system

    def policy(self, policy: Policy) -> Policy:
        return lambda job: EmpaPolicy(self.package, policy(job))

    def _card(self, job: Job) -> EmpaCard:
        try:
            return self.cards[job.scenario.id]
        except KeyError:
            raise ScenarioError(
                "EMPA's prompts need the card of this scenario", where=job.scenario.id
            ) from None
