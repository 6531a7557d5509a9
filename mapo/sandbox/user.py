"""The person, played by a model.

Its prompt is the chat as the person lived it: their own lines as the model's, each reply of the policy as
quoted data followed by a note of what the director then allowed. What has not been released is not in the
prompt, so it cannot slip out. Notes stay where they were given, so each prompt starts with the one before.
A line that repeats an earlier one, is far too long or empty is asked for once more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from string import Template

from mapo.errors import AnswerError, InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import OWN_WAY, Chat, Request, Sampling
from mapo.models.wire import storable
from mapo.sandbox.prompting import fill, language_of, person, table, told
from mapo.sandbox.transcript import block, mark_of, quote
from mapo.scenarios.scenario import Scenario
from mapo.text import aloud
from mapo.types import Direction, Message, Turn

ALIKE = 0.7
"""Share of common 4-grams (Jaccard) from which on two lines count as the same."""
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
        sampling: Sampling = OWN_WAY,
    ) -> None:
        self.chat = chat
        self.sampling = sampling
        self.scenario = scenario
        self.rubric = rubric
        self.mark = mark_of(scenario.id, seed)
        self.session = f"{session or f'{scenario.id}/{seed}'}/user"
        self.limit = length_limit(scenario)
        unit = "characters" if scenario.language in _UNSPACED else "words"
        self._system = fill(
            "user",
            scenario.domain,
            person=person(scenario, rubric),
            language=language_of(scenario),
            limit=f"{self.limit} {unit}",
        )

    async def speak(self, turns: Sequence[Turn], direction: Direction) -> str:
        """The next line. Raises AnswerError where the model has nothing to say, even when asked again."""
        if not turns:
            return self.scenario.opening
        messages = self._messages(turns, direction)
        request = self.sampling.of(Request(messages, session=self.session, nonce=self.session))
        line = self._spoken((await self.chat.reply(request)).text)
        if problem := self._problem(line, turns):
            retry = (
                Message("assistant", line or "..."),
                Message("user", fill("user_retry", problem=problem)),
            )
            answer = await self.chat.reply(replace(request, messages=(*request.messages, *retry)))
            line = self._unsaid(self._spoken(answer.text) or line, turns)
        if not line:
            raise AnswerError(
                f"the user's model '{self.chat.name}' said nothing, twice",
                fix="Try another model for the user",
            )
        return cut(line, 2 * self.limit, self.scenario.language)

    def _messages(self, turns: Sequence[Turn], direction: Direction) -> tuple[Message, ...]:
        """The chat from the person's side: call t+1 starts with all of call t, and the line it gave."""
        messages = [Message("system", self._system), Message("user", fill("user_begin", mark=self.mark))]
        directions = [*(turn.direction for turn in turns[1:]), direction]
        for number, (turn, given) in enumerate(zip(turns, directions, strict=True), 1):
            quoted = block(f"reply {number}", [quote(turn.reply.text, self.mark)], self.mark)
            shown = f"{quoted}\n\n{self._note(given or Direction('go_on'))}"
            messages += [Message("assistant", turn.user), Message("user", shown)]
        return tuple(messages)

    def _note(self, direction: Direction) -> str:
        try:
            return Template(table("user_notes")[direction.act]).substitute(self._allowed(direction)).strip()
        except (LookupError, ValueError):
            raise InputError(
                f"direction '{direction.act} {direction.item}' does not fit this scenario",
                where=self.scenario.id,
                fix="Give an act of director.ACTS with an item the scenario or its rubric has",
            ) from None

    def _allowed(self, direction: Direction) -> dict[str, str]:
        """What the note is about, in the scenario's own words."""
        scenario, item = self.scenario, direction.item
        if direction.act == "reveal_stage":
            return {"item": told(scenario.stages[int(item)])}
        if direction.act == "release_memory":
            memory = scenario.memories[int(item)]
            return {"item": told(memory), "period": memory.period}
        if direction.act == "shift_focus":
            axis = self.rubric.axes[self.rubric.keys.index(item)]
            return {"item": f"{axis.title}. {axis.asks}"}
        return {"item": scenario.wants_to_say or scenario.topic}

    def _spoken(self, text: str) -> str:
        """What is said aloud: no thinking, no other voices, no name in front, no quotation marks around."""
        text = aloud(storable(text)).split(f"<<{self.mark}")[0].strip()
        text = re.sub(rf"^{re.escape(self.scenario.persona.name)}\s*[:：]\s*", "", text)
        for left, right in ('""', "“”", "「」"):
            if len(text) > 1 and text[0] == left and text[-1] == right and left not in text[1:-1]:
                text = text[1:-1]
        return text.strip()

    def _unsaid(self, line: str, turns: Sequence[Turn]) -> str:
        """The sentences of a line that were not said before; the whole line if there is no such sentence."""
        if not any(alike(line, turn.user) for turn in turns):
            return line
        ends = [0, *(found.end() for found in _SENTENCE_END.finditer(line)), len(line)]
        parts = [line[a:b].strip() for a, b in pairwise(ends)]
        earlier = [turn.user for turn in turns]
        fresh = [p for p in parts if p and not any(p in said or alike(p, said) for said in earlier)]
        return " ".join(fresh) or line

    def _problem(self, line: str, turns: Sequence[Turn]) -> str:
        if not line:
            return "it was empty"
        if any(alike(line, turn.user) for turn in turns):
            return "you have said this before, almost in the same words"
        if _size(line, self.scenario.language) > 2 * self.limit:
            return "it was far too long"
        return ""


def alike(a: str, b: str) -> bool:
    """Do two lines say the same in nearly the same words? Case, spaces and punctuation do not count."""
    left, right = _grams(a), _grams(b)
    return len(left & right) >= ALIKE * len(left | right)


def _grams(text: str, size: int = 4) -> set[str]:
    plain = "".join(c for c in text.casefold() if c.isalnum())
    return {plain[i : i + size] for i in range(max(1, len(plain) - size + 1))}


def length_limit(scenario: Scenario) -> int:
    """How long a line of this person may be, in words or characters: half as long again as their longest."""
    least, most = (40, 120) if scenario.language in _UNSPACED else (20, 80)
    lines = [scenario.opening, *(line for beat in scenario.beats for line in beat.says)]
    longest = max(_size(line, scenario.language) for line in lines)
    return min(max(longest * 3 // 2, least), most)


def cut(text: str, limit: int, language: str) -> str:
    """Whole sentences of `text` up to `limit`; a first sentence that is longer is cut itself."""
    if _size(text, language) <= limit:
        return text
    kept = ""
    for end in [found.start() for found in _SENTENCE_END.finditer(text)]:
        if _size(text[:end], language) > limit:
            break
        kept = text[:end]
    if kept:
        return kept.strip()
    return text[:limit] if language in _UNSPACED else " ".join(text.split()[:limit])


def _size(text: str, language: str) -> int:
    return len(text) if language in _UNSPACED else len(text.split())
