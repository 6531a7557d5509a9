"""The user played by a model.

The prompt is the chat from the person's side: their messages are the model's, and each reply of the policy is
quoted data, followed by a note with what the director then allowed. What has not been revealed is not in the
prompt, so it cannot leak. Notes stay in place, so that each prompt starts with the previous one. A message
that repeats an earlier one, is far too long or empty is requested once more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from string import Template

from mapo.errors import AnswerError, InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Request, Sampling
from mapo.models.wire import storable
from mapo.sandbox.cast import MAX_TOKENS, RECORDED_MAX_TOKENS, answer_seed
from mapo.sandbox.prompting import (
    DEFAULT_PROMPTS,
    REMEMBERED,
    Prompts,
    beat_text,
    escaped,
    language_of,
    persona_text,
)
from mapo.sandbox.transcript import block, delimiter_of, quote
from mapo.scenarios.scenario import Scenario
from mapo.text import without_thinking
from mapo.types import Direction, Message, Turn

SIMILAR = 0.7
"""Jaccard similarity of 4-grams from which two messages count as the same."""
_UNSPACED = ("zh", "ja", "th")
_SENTENCE_END = re.compile(r"(?<=[.!?。！？…])\s*")


class ModelUser:
    """A User for one dialogue."""

    def __init__(
        self,
        chat: Chat,
        scenario: Scenario,
        rubric: Rubric,
        seed: int = 0,
        session: str = "",
        sampling: Sampling = DEFAULT_SAMPLING,
        prompts: Prompts = DEFAULT_PROMPTS,
    ) -> None:
        self.chat = chat
        self.prompts = prompts
        self.sampling = sampling
        self.scenario = scenario
        self.rubric = rubric
        self.mark = delimiter_of(scenario.id, seed)
        self.session = f"{session or f'{scenario.id}/{seed}'}/user"
        self.limit = length_limit(scenario)
        unit = "characters" if scenario.language in _UNSPACED else "words"
        self._system = prompts.fill(
            "user",
            scenario.domain,
            person=persona_text(scenario, rubric),
            language=language_of(scenario),
            limit=f"{self.limit} {unit}",
        )

    async def speak(self, turns: Sequence[Turn], direction: Direction) -> str:
        """Return the next message. Raises AnswerError if the model's answer is empty twice."""
        if not turns:
            return self.scenario.opening
        messages = self.messages(turns, direction)
        request = self.sampling.of(
            Request(
                messages,
                max_tokens=MAX_TOKENS,
                session=self.session,
                nonce=self.session,
                seed=answer_seed(self.session, len(turns)),
                turn=len(turns) + 1,
                limit_in_key=RECORDED_MAX_TOKENS,
            )
        )
        line = self._message_in((await self.chat.reply(request)).text)
        if problem := self._problem(line, turns):
            retry = (
                Message("assistant", line or "..."),
                Message("user", self.prompts.fill("user_retry", problem=problem)),
            )
            again = replace(request, messages=(*request.messages, *retry), seed=request.seed + 1)
            answer = await self.chat.reply(again)
            line = self._new_sentences(self._message_in(answer.text) or line, turns)
        if not line:
            raise AnswerError(
                f"the user's model '{self.chat.name}' returned an empty message twice",
                fix="Use another model for the user",
            )
        return cut(line, 2 * self.limit, self.scenario.language)

    def messages(self, turns: Sequence[Turn], direction: Direction) -> tuple[Message, ...]:
        """Return the chat from the person's side. Each prompt starts with the previous prompt and
        its answer.
        """
        begin = self.prompts.fill("user_begin", mark=self.mark)
        messages = [Message("system", self._system), Message("user", begin)]
        directions = [*(turn.direction for turn in turns[1:]), direction]
        for number, (turn, direction_after) in enumerate(zip(turns, directions, strict=True), 1):
            quoted = block(f"reply {number}", [quote(turn.reply.text, self.mark)], self.mark)
            shown = f"{quoted}\n\n{self._note(direction_after or Direction('go_on'))}"
            messages += [Message("assistant", turn.user), Message("user", shown)]
        return tuple(messages)

    def _note(self, direction: Direction) -> str:
        notes = self.prompts.table("user_notes")
        try:
            return Template(notes[direction.act]).substitute(self._allowed(direction)).strip()
        except (LookupError, ValueError):
            raise InputError(
                f"direction '{direction.act} {direction.item}' does not fit this scenario",
                where=self.scenario.id,
                fix="Use an act of director.ACTS and an item of the scenario or rubric",
            ) from None

    def _allowed(self, direction: Direction) -> dict[str, str]:
        """Return the scenario's text that the direction allows the person to use."""
        scenario, item = self.scenario, direction.item
        if direction.act == "reveal_stage":
            return {"item": beat_text(scenario.stages[int(item)])}
        if direction.act == "release_memory":
            memory = scenario.memories[int(item)]
            return {"item": beat_text(memory), "period": memory.period}
        if direction.act == "shift_focus":
            axis = self.rubric.axes[self.rubric.keys.index(item)]
            return {"item": f"{axis.title}. {axis.asks}"}
        return {"item": escaped(scenario.wants_to_say or scenario.topic)}

    def _message_in(self, text: str) -> str:
        """Return the user message in a model's answer, without reasoning, speaker name or quotation marks."""
        text = without_thinking(storable(text)).split(f"<<{self.mark}")[0].strip()
        text = re.sub(rf"^{re.escape(self.scenario.persona.name)}\s*[:：]\s*", "", text)
        for left, right in ('""', "“”", "「」"):
            if len(text) > 1 and text[0] == left and text[-1] == right and left not in text[1:-1]:
                text = text[1:-1]
        return text.strip()

    def _new_sentences(self, line: str, turns: Sequence[Turn]) -> str:
        """Drop the sentences that were said before; keep the whole message if all of them were."""
        if not any(similar(line, turn.user) for turn in turns):
            return line
        ends = [0, *(match.end() for match in _SENTENCE_END.finditer(line)), len(line)]
        parts = [line[a:b].strip() for a, b in pairwise(ends)]
        earlier = [turn.user for turn in turns]
        fresh = [
            p for p in parts if p and not any(p in message or similar(p, message) for message in earlier)
        ]
        return " ".join(fresh) or line

    def _problem(self, line: str, turns: Sequence[Turn]) -> str:
        if not line:
            return "it was empty"
        if any(similar(line, turn.user) for turn in turns):
            return "you have said this before, almost in the same words"
        if _size(line, self.scenario.language) > 2 * self.limit:
            return "it was far too long"
        return ""


def similar(a: str, b: str) -> bool:
    """Return whether two messages are nearly identical, ignoring case, spaces and punctuation."""
    left, right = _grams(a), _grams(b)
    return len(left & right) >= SIMILAR * len(left | right)


@lru_cache(maxsize=REMEMBERED // 8)  # a set takes about 70 times the memory of its text
def _grams(text: str, size: int = 4) -> frozenset[str]:
    plain = "".join(c for c in text.casefold() if c.isalnum())
    return frozenset(plain[i : i + size] for i in range(max(1, len(plain) - size + 1)))


def length_limit(scenario: Scenario) -> int:
    """Return the maximum length of this person's messages, in words or characters: 1.5 times their longest
    line.
    """
    least, most = (40, 120) if scenario.language in _UNSPACED else (20, 80)
    lines = [scenario.opening, *(line for beat in scenario.beats for line in beat.says)]
    longest = max(_size(line, scenario.language) for line in lines)
    return min(max(longest * 3 // 2, least), most)


def cut(text: str, limit: int, language: str) -> str:
    """Truncate `text` to whole sentences within `limit`; cut inside the first sentence if that is
    too long.
    """
    if _size(text, language) <= limit:
        return text
    sentences = ""
    for end in [match.start() for match in _SENTENCE_END.finditer(text)]:
        if _size(text[:end], language) > limit:
            break
        sentences = text[:end]
    if sentences:
        return sentences.strip()
    return text[:limit] if language in _UNSPACED else " ".join(text.split()[:limit])


def _size(text: str, language: str) -> int:
    return len(text) if language in _UNSPACED else len(text.split())
