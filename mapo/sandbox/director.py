"""The director, played by a model: decides what happens before each line of the person.

It acts through functions, as tool calls where the endpoint gives them and as a small JSON form where it
does not. What is allowed is decided here, not by the model: stages in order and each once, a memory once,
one turning point, no end before the dialogue's `min_turns`. A director who fails is no reason to lose a
dialogue: the person goes on, and the direction says why. Whether a dialogue is won or lost is no business
of the director's (`potential.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mapo.errors import AnswerError, EndpointError, InputError
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.chat import OWN_WAY, Answer, Chat, Request, Sampling, Tool, ToolCall
from mapo.models.structured import ask, read_json
from mapo.sandbox.prompting import fill, language_of, table, whole_person
from mapo.sandbox.transcript import mark_of, quoted_turn
from mapo.scenarios.scenario import Scenario
from mapo.types import Direction, Message, Turn

ACTS = ("reveal_stage", "release_memory", "shift_focus", "turning_point", "go_on", "wait", "end")
LONGEST = 300
"""Characters of a reason that are kept."""
ITEMS = {"reveal_stage": "stage", "release_memory": "memory", "shift_focus": "axis"}
"""The acts that are about something, and the argument that names it."""
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "act": {"type": "string", "enum": list(ACTS)},
        "item": {"type": "string"},
        "reason": {"type": "string"},
    },
    "required": ["act", "item", "reason"],
    "additionalProperties": False,
}


class ModelDirector:
    """A Director for one dialogue, with its own record of what has been released."""

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
        self.session = f"{session or f'{scenario.id}/{seed}'}/director"
        self.stages_told = 0
        self.memories_told: list[int] = []
        self.turned = False
        self._calls_tools = True
        # The tools never change: servers put them at the head of the prompt.
        self._tools = tuple(_tool(act, rubric) for act in ACTS)
        self._system = fill(
            "director",
            scenario.domain,
            acts="\n".join(f"- {act}: {table('director_acts')[act]}" for act in ACTS),
            axes="\n".join(f"- {axis.key}: {axis.title}. {axis.asks}" for axis in rubric.axes),
            person=whole_person(scenario, rubric),
            language=language_of(scenario),
        )

    async def direct(self, turns: Sequence[Turn], path: Trajectory) -> Direction:
        """What happens next. Never raises for what the model did or failed to do."""
        try:
            direction = await self._decide(
                self._request(turns, path), lambda data: self.allowed(data, len(turns), path.min_turns)
            )
        except (AnswerError, EndpointError) as error:
            # A conversation can do without a director, so its failure is noted and does not spread.
            return Direction("go_on", reason=f"the director failed: {error}"[:LONGEST])
        if direction.act == "reveal_stage":
            self.stages_told += 1
        elif direction.act == "release_memory":
            self.memories_told.append(int(direction.item))
        elif direction.act == "turning_point":
            self.turned = True
        return direction

    async def _decide(self, request: Request, parse: Callable[[object], Direction]) -> Direction:
        if self._calls_tools:
            try:
                answer = await self.chat.reply(replace(request, tools=self._tools))
            except EndpointError:
                # Servers without tools refuse such a request; a server that is down refuses the next one too.
                self._calls_tools = False
            else:
                try:
                    return _first_allowed(answer, parse)
                except InputError as refusal:
                    self._calls_tools = bool(answer.tool_calls)
                    request = _with_note(request, f"Your last choice was refused: {refusal}")
        return await ask(self.chat, replace(request, schema=FORM), parse)

    def allowed(self, data: object, played: int, min_turns: int) -> Direction:
        """The decision, if it is one of ours and may be taken now; otherwise an InputError that says why."""
        if not isinstance(data, dict) or not isinstance(act := data.get("act"), str) or act not in ACTS:
            raise InputError("no known act", where="act", fix=f"Choose one of: {', '.join(ACTS)}")
        if unknown := [str(key)[:40] for key in data if key not in FORM["properties"]]:
            raise InputError(f"unknown {', '.join(unknown[:5])}", fix="Give act, item and reason alone")
        item, reason = data.get("item", ""), data.get("reason", "")
        if type(item) is int:
            item = str(item)
        if not isinstance(item, str) or not isinstance(reason, str):
            raise InputError("item and reason must be texts", fix="An act without an item has the item ''")
        if act == "end" and played < min_turns:
            raise InputError(
                f"too early to end, turn {played} of at least {min_turns}", fix="Choose another act"
            )
        if act == "turning_point" and self.turned:
            raise InputError("the turning point has been", fix="Choose another act")
        return Direction(act, self._item(act, item.strip()), reason.strip()[:LONGEST])

    def _item(self, act: str, item: str) -> str:
        """The stage, memory or axis meant; acts without an item get none, whatever the model wrote there."""
        open_items = {
            "reveal_stage": [str(self.stages_told)] * (self.stages_told < len(self.scenario.stages)),
            "release_memory": [str(i) for i in self._memories_left()],
            "shift_focus": list(self.rubric.keys),
        }.get(act)
        if open_items is None:
            return ""
        if act == "reveal_stage" and open_items and not item:
            return open_items[0]  # no other could be meant
        if item not in open_items:
            fix = f"Open now: {', '.join(open_items)}" if open_items else "None is left; choose another act"
            raise InputError(f"{item[:40]!r} is not open to {act}", where="item", fix=fix)
        return item

    def _memories_left(self) -> list[int]:
        return [i for i in range(len(self.scenario.memories)) if i not in self.memories_told]

    def _request(self, turns: Sequence[Turn], path: Trajectory) -> Request:
        told = [
            quoted_turn(number, turn, self.mark, _before(turn), self._after(turn))
            for number, turn in enumerate(turns, 1)
        ]
        stages = range(len(self.scenario.stages))
        asked = fill(
            "director_ask",
            turns=len(turns),
            min_turns=path.min_turns,
            max_turns=path.max_turns,
            stages_told=_listed(stages[: self.stages_told]),
            next_stage=_listed(stages[self.stages_told : self.stages_told + 1]),
            memories_told=_listed(self.memories_told),
            memories_left=_listed(self._memories_left()),
            turning="has been" if self.turned else "not yet",
        )
        messages = (
            Message("system", self._system),
            Message("user", "\n\n".join([fill("transcript", mark=self.mark), *told, asked])),
        )
        return self.sampling.of(Request(messages, temperature=0.0, session=self.session, nonce=self.session))

    def _after(self, turn: Turn) -> str:
        if turn.state is None or turn.levels is None:
            return "state after it: unknown, the reply could not be judged"
        places = zip(self.rubric.keys, turn.state.position, strict=True)
        return f"state after it: {', '.join(f'{key} {place:g}' for key, place in places)}"


def _before(turn: Turn) -> str:
    act = turn.direction
    return f"your act before it: {act.act} {act.item}".rstrip() if act else ""


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _with_note(request: Request, note: str) -> Request:
    *earlier, last = request.messages
    return replace(request, messages=(*earlier, replace(last, content=f"{last.content}\n{note}")))


def _first_allowed(answer: Answer, parse: Callable[[object], Direction]) -> Direction:
    """The first tool call that is allowed, or else the text read as the form. Raises the first refusal."""
    refusals = []
    for call in answer.tool_calls:
        try:
            given = _arguments(call)
            about = ITEMS.get(call.name, "")
            return parse({"act": call.name, "item": given.get(about, ""), "reason": given.get("reason", "")})
        except InputError as refusal:
            refusals.append(refusal)
    try:
        return parse(read_json(answer.text))
    except InputError as refusal:
        raise (*refusals, refusal)[0] from None


def _arguments(call: ToolCall) -> dict[str, Any]:
    data = read_json(call.arguments or "{}")
    if not isinstance(data, dict):
        raise InputError("the arguments are no object", where=call.name[:40], fix="Give them by name")
    return data


def _tool(act: str, rubric: Rubric) -> Tool:
    """An act as a function: its item, where it has one, and a reason."""
    kinds: dict[str, dict[str, Any]] = {
        "stage": {"type": "integer"},
        "memory": {"type": "integer"},
        "axis": {"type": "string", "enum": list(rubric.keys)},
    }
    about = {ITEMS[act]: kinds[ITEMS[act]]} if act in ITEMS else {}
    properties = {**about, "reason": {"type": "string"}}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return Tool(act, table("director_acts")[act], parameters)
