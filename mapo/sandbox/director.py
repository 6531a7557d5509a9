"""The director played by a model: decides what happens before each user message.

The model acts through tool calls where the endpoint supports them, and through a small JSON form otherwise.
This module, not the model, enforces the rules: stages in order and each once, each memory once, one turning
point, no end before `min_turns`. A failing director does not break the dialogue: the user continues, and the
direction records the error. The director does not decide about success or failure (`potential.py` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mapo.errors import AnswerError, ContextError, EndpointError, InputError
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Answer, Chat, Request, Sampling, Tool, ToolCall
from mapo.models.structured import ask, read_json
from mapo.sandbox.cast import MAX_TOKENS, RECORDED_MAX_TOKENS
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts, full_persona, language_of
from mapo.sandbox.transcript import delimiter_of, quoted_turn
from mapo.scenarios.scenario import Scenario
from mapo.types import Dialogue, Direction, Message, Turn

ACTS = ("reveal_stage", "release_memory", "shift_focus", "turning_point", "go_on", "wait", "end")
MAX_REASON = 300
"""Maximum number of characters kept of a reason."""
DIRECTOR_FAILED = "the director failed: "
"""Beginning of the reason of a direction that stands for a failed one."""
ITEMS = {"reveal_stage": "stage", "release_memory": "memory", "shift_focus": "axis"}
"""Acts that refer to an item, and the name of that argument."""
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


class NoDirector:
    """A Director that never intervenes, for users who take no directions."""

    async def direct(self, _: Sequence[Turn], __: Trajectory) -> Direction:
        return Direction("go_on")


class ModelDirector:
    """A Director for one dialogue. It keeps track of what has been revealed."""

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
        self.session = f"{session or f'{scenario.id}/{seed}'}/director"
        self.stages_revealed = 0
        self.memories_released: list[int] = []
        self.turning_point_used = False
        self._uses_tools = bool(getattr(chat, "supports_tools", True))
        # Constant, because servers put tools at the start of the prompt and cache that prefix.
        acts = prompts.table("director_acts")
        self._tools = tuple(_tool(act, acts[act], rubric) for act in ACTS)
        self._system = prompts.fill(
            "director",
            scenario.domain,
            acts="\n".join(f"- {act}: {acts[act]}" for act in ACTS),
            axes="\n".join(f"- {axis.key}: {axis.title}. {axis.asks}" for axis in rubric.axes),
            person=full_persona(scenario, rubric),
            language=language_of(scenario),
        )

    async def direct(self, turns: Sequence[Turn], trajectory: Trajectory) -> Direction:
        """Decide what happens next. Errors of the model are recorded in the direction, not raised."""
        try:
            direction = await self._decide(
                self._request(turns, trajectory),
                lambda data: self.allowed(data, len(turns), trajectory.min_turns),
            )
        except (AnswerError, ContextError, EndpointError) as error:
            # A conversation can continue without a director, so the error is only recorded.
            return failed_direction(error)
        self.note(direction)
        return direction

    def note(self, direction: Direction) -> None:
        """Keep track of what a decision reveals."""
        if direction.act == "reveal_stage":
            self.stages_revealed += 1
        elif direction.act == "release_memory":
            self.memories_released.append(int(direction.item))
        elif direction.act == "turning_point":
            self.turning_point_used = True

    async def _decide(self, request: Request, parse: Callable[[object], Direction]) -> Direction:
        if self._uses_tools:
            try:
                answer = await self.chat.reply(replace(request, tools=self._tools))
            except EndpointError:
                # The server may not support tools; if it is down instead, the next request fails as well.
                self._uses_tools = False
            else:
                try:
                    return _first_allowed(answer, parse)
                except InputError as refusal:
                    self._uses_tools = bool(answer.tool_calls)
                    request = _with_note(request, f"Your last choice was refused: {refusal}")
        return await ask(self.chat, replace(request, schema=FORM), parse)

    def allowed(self, data: object, turns_played: int, min_turns: int) -> Direction:
        """Return the decision if it is known and allowed now; otherwise raise an InputError that says why
        not.
        """
        if not isinstance(data, dict) or not isinstance(act := data.get("act"), str) or act not in ACTS:
            raise InputError("unknown act", where="act", fix=f"Choose one of: {', '.join(ACTS)}")
        if unknown := [str(key)[:40] for key in data if key not in FORM["properties"]]:
            raise InputError(f"unknown {', '.join(unknown[:5])}", fix="Use only act, item and reason")
        item, reason = data.get("item", ""), data.get("reason", "")
        if type(item) is int:
            item = str(item)
        if not isinstance(item, str) or not isinstance(reason, str):
            raise InputError(
                "item and reason must be strings", fix="Use '' as the item of an act without one"
            )
        if act == "end" and turns_played < min_turns:
            raise InputError(
                f"too early to end: {turns_played} of at least {min_turns} turns played",
                fix="Choose another act",
            )
        if act == "turning_point" and self.turning_point_used:
            raise InputError("the turning point was already used", fix="Choose another act")
        return Direction(act, self._item(act, item.strip()), reason.strip()[:MAX_REASON])

    def _item(self, act: str, item: str) -> str:
        """Return the stage, memory or axis of the act, checked; empty for acts without an item."""
        available = {
            "reveal_stage": [str(self.stages_revealed)] * (self.stages_revealed < len(self.scenario.stages)),
            "release_memory": [str(i) for i in self._memories_left()],
            "shift_focus": list(self.rubric.keys),
        }.get(act)
        if available is None:
            return ""
        if act == "reveal_stage" and available and not item:
            return available[0]  # there is only one possibility
        if item not in available:
            fix = f"Available: {', '.join(available)}" if available else "None is left; choose another act"
            raise InputError(f"{item[:40]!r} is not available for {act}", where="item", fix=fix)
        return item

    def _memories_left(self) -> list[int]:
        return [i for i in range(len(self.scenario.memories)) if i not in self.memories_released]

    def _request(self, turns: Sequence[Turn], trajectory: Trajectory) -> Request:
        transcript = [
            quoted_turn(number, turn, self.mark, _act_before(turn), describe_position(turn, self.rubric))
            for number, turn in enumerate(turns, 1)
        ]
        stages = range(len(self.scenario.stages))
        question = self.prompts.fill(
            "director_ask",
            turns=len(turns),
            min_turns=trajectory.min_turns,
            max_turns=trajectory.max_turns,
            stages_told=_join(stages[: self.stages_revealed]),
            next_stage=_join(stages[self.stages_revealed : self.stages_revealed + 1]),
            memories_told=_join(self.memories_released),
            memories_left=_join(self._memories_left()),
            turning="has been" if self.turning_point_used else "not yet",
        )
        messages = (
            Message("system", self._system),
            Message(
                "user", "\n\n".join([self.prompts.fill("transcript", mark=self.mark), *transcript, question])
            ),
        )
        return self.sampling.of(
            Request(
                messages,
                temperature=0.0,
                max_tokens=MAX_TOKENS,
                session=self.session,
                nonce=self.session,
                turn=len(turns),
                limit_in_key=RECORDED_MAX_TOKENS,
            )
        )


def failed_direction(error: Exception) -> Direction:
    """Return the direction that records an error of the director: the person goes on."""
    return Direction("go_on", reason=f"{DIRECTOR_FAILED}{error}"[:MAX_REASON])


def describe_position(turn: Turn, rubric: Rubric) -> str:
    """Return the position on each axis after a turn, for the director."""
    if turn.state is None or turn.levels is None:
        return "state after it: unknown, the reply could not be judged"
    values = zip(rubric.keys, turn.state.position, strict=True)
    return f"state after it: {', '.join(f'{key} {value:g}' for key, value in values)}"


def director_failures(dialogues: Sequence[Dialogue]) -> list[str]:
    """Return a warning with the first error if the director failed in dialogues, which then went on without
    its direction."""
    reasons = [turn.direction.reason for d in dialogues for turn in d.turns if turn.direction]
    failed = [
        reason.removeprefix(DIRECTOR_FAILED) for reason in reasons if reason.startswith(DIRECTOR_FAILED)
    ]
    return [f"the director failed on {len(failed)} of {len(reasons)} turns: {failed[0]}"] if failed else []


def _act_before(turn: Turn) -> str:
    act = turn.direction
    return f"your act before it: {act.act} {act.item}".rstrip() if act else ""


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _with_note(request: Request, note: str) -> Request:
    *earlier, last = request.messages
    return replace(request, messages=(*earlier, replace(last, content=f"{last.content}\n{note}")))


def _first_allowed(answer: Answer, parse: Callable[[object], Direction]) -> Direction:
    """Return the first allowed tool call, or else the text parsed as a form. Raises the first refusal."""
    refusals = []
    for call in answer.tool_calls:
        try:
            arguments = _arguments(call)
            item = arguments.get(ITEMS.get(call.name, ""), "")
            return parse({"act": call.name, "item": item, "reason": arguments.get("reason", "")})
        except InputError as refusal:
            refusals.append(refusal)
    try:
        return parse(read_json(answer.text))
    except InputError as refusal:
        raise (*refusals, refusal)[0] from None


def _arguments(call: ToolCall) -> dict[str, Any]:
    data = read_json(call.arguments or "{}")
    if not isinstance(data, dict):
        raise InputError("the arguments are not an object", where=call.name[:40], fix="Pass them by name")
    return data


def _tool(act: str, description: str, rubric: Rubric) -> Tool:
    """Return an act as a tool with its item, if it has one, and a reason."""
    kinds: dict[str, dict[str, Any]] = {
        "stage": {"type": "integer"},
        "memory": {"type": "integer"},
        "axis": {"type": "string", "enum": list(rubric.keys)},
    }
    item = {ITEMS[act]: kinds[ITEMS[act]]} if act in ITEMS else {}
    properties = {**item, "reason": {"type": "string"}}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return Tool(act, description, parameters)
