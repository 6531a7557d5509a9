"""The user played by a model that was trained to be a user, such as UserLM-8b (arXiv:2510.06552).

Such a model is told only an intent: who it is and what it wants. It writes the messages with the role `user`,
so its prompt is the chat as the policy sees it, with the intent as system prompt, and ends with a message of
the assistant. Its chat template must continue with the user's turn. It decides itself when the conversation
is over and then writes `END`. It takes no directions, so no director is asked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Request, Sampling
from mapo.models.wire import storable
from mapo.sandbox.cast import MAX_TOKENS, Director, Job, Judge, Policy, RolePrompts, User, answer_seed
from mapo.sandbox.director import NoDirector
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts, escaped, language_of
from mapo.sandbox.user import cut, length_limit, similar
from mapo.scenarios.scenario import Scenario
from mapo.text import without_thinking
from mapo.types import Direction, Message, Turn

END = "<|endconversation|>"
"""What the model writes to leave."""
TEMPLATE = "intent"
_SPECIAL = re.compile(r"(?<!\s)(\s*<\|[\w-]+\|>)+\s*$")  # tries every run of spaces once


class IntentUser:
    """A User for one dialogue. It begins with the scenario's opening, so that siblings begin alike."""

    def __init__(
        self,
        chat: Chat,
        scenario: Scenario,
        seed: int = 0,
        session: str = "",
        sampling: Sampling = DEFAULT_SAMPLING,
        prompts: Prompts = DEFAULT_PROMPTS,
    ) -> None:
        self.chat = chat
        self.scenario = scenario
        self.sampling = sampling
        self.session = f"{session or f'{scenario.id}/{seed}'}/user"
        self.limit = length_limit(scenario)
        self.intent = intent_of(scenario, prompts)

    async def speak(self, turns: Sequence[Turn], _: Direction) -> str | None:
        """Return the next message, or None if the user leaves. A repeated message is sampled once more.

        An empty answer means leaving as well: most servers remove special tokens, `END` among them.
        """
        if not turns:
            return self.scenario.opening
        message = await self._sample(turns, "")
        if message and any(similar(message, turn.user) for turn in turns):
            message = await self._sample(turns, "/again")
        return message

    async def _sample(self, turns: Sequence[Turn], attempt: str) -> str | None:
        call = f"{self.session}{attempt}"
        request = Request(
            self._messages(turns),
            max_tokens=MAX_TOKENS,
            session=self.session,
            nonce=call,
            seed=answer_seed(call, len(turns)),
            turn=len(turns) + 1,
        )
        answer = await self.chat.reply(self.sampling.of(request))
        text = without_thinking(storable(answer.text))
        if END in text:
            return None
        message = _SPECIAL.sub("", text).strip()
        return cut(message, 2 * self.limit, self.scenario.language) or None

    def _messages(self, turns: Sequence[Turn]) -> tuple[Message, ...]:
        messages = [Message("system", self.intent)]
        for turn in turns:
            # A reply must not end the conversation or open a turn of its own.
            reply = turn.reply.text.replace("<|", "< |")
            messages += [Message("user", turn.user), Message("assistant", reply)]
        return tuple(messages)


def intent_of(scenario: Scenario, prompts: Prompts = DEFAULT_PROMPTS) -> str:
    """Return what the model is told: the person and what they want, without stages and memories."""
    table, persona = prompts.table(TEMPLATE), scenario.persona
    known = f"{scenario.language}_person" in table
    parts = {
        "person": persona.name if persona.age is None else f"{persona.name} ({persona.age})",
        "background": persona.background,
        "topic": scenario.topic,
        "wants": scenario.wants_to_say,
        "hopes": scenario.hopes_for,
        "language": "" if known else language_of(scenario),
    }
    prefix = scenario.language if known else "en"
    lines = [
        Template(table[f"{prefix}_{key}"]).substitute(text=escaped(text))
        for key, text in parts.items()
        if text
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class IntentPrompts:
    """The prompts `base`, but with users who get an intent and without directors."""

    base: RolePrompts
    templates: Prompts = DEFAULT_PROMPTS

    @property
    def name(self) -> str:
        return f"{self.base.name}+intent"

    def fingerprint(self, domain: str) -> str:
        parts = f"{self.base.fingerprint(domain)}/{self.templates.fingerprint_of(TEMPLATE)}"
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def user(self, chat: Chat, job: Job, _: Rubric, sampling: Sampling) -> User:
        return IntentUser(chat, job.scenario, job.seed, job.session, sampling, self.templates)

    def director(self, _: Chat, __: Job, ___: Rubric, ____: Sampling) -> Director:
        return NoDirector()

    def judge(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling, member: str = "") -> Judge:
        return self.base.judge(chat, job, rubric, sampling, member)

    def policy_system(self, scenario: Scenario) -> str:
        return self.base.policy_system(scenario)

    def policy(self, policy: Policy) -> Policy:
        return self.base.policy(policy)
