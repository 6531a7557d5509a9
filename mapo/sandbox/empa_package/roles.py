"""User, director, judge and policy whose requests are written by EMPA's package.

Deviations from the package, all in what happens to answers: a judgement that does not fit the form after
three attempts is missing data (the package counts it as no movement, and a missing level as 0); so is a start
form, which then breaks the dialogue (the package asks once and takes a missing level as 1); an empty message
of the user breaks the dialogue (the package sends it); text up to `</think>` is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mapo.body_fields import merge_bodies
from mapo.errors import AnswerError, EndpointError, InputError
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.chat import Answer, Chat, DialogueChat, Request, Sampling
from mapo.models.structured import ask
from mapo.models.wire import storable
from mapo.sandbox.cast import Job, answer_seed
from mapo.sandbox.empa_package.cards import EmpaCard
from mapo.sandbox.empa_package.package import EmpaPackage
from mapo.scenarios.empa_cards import AXES
from mapo.text import without_thinking
from mapo.types import AxisMarks, Direction, Levels, Mark, StartLevels, Turn

ATTEMPTS = 3
"""Times that the judge is asked for one form, as in the package."""
LONGEST = 2000
"""Maximum number of characters kept of an evidence or reason."""
ACTS = {
    "select_and_reveal_fragment": ("reveal_stage", "stage_index"),
    "reveal_memory": ("release_memory", "memory_period"),
    "adjust_empathy_strategy": ("shift_focus", "focus_aspect"),
    "introduce_turning_point": ("turning_point", ""),
    "continue_without_new_info": ("go_on", ""),
}
"""Functions of EMPA's director that give the user guidance: our act, and the argument that is its item."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def history_of(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Return the dialogue in the package's form."""
    pairs = ((("actor", turn.user), ("test_model", turn.reply.text)) for turn in turns)
    return [{"role": role, "content": text} for pair in pairs for role, text in pair]


class EmpaUser:
    """EMPA's actor as User. It also writes the first message."""

    def __init__(
        self, package: EmpaPackage, card: EmpaCard, chat: Chat, job: Job, sampling: Sampling
    ) -> None:
        self.chat, self.sampling = chat, sampling
        self.session = f"{job.session}/user"
        self._link = package.link(chat.name)
        self._actor = package.actor(self._link.client)
        self._actor.set_system_prompt(card.text)

    async def open(self) -> str:
        return await self._say([], None, 1)

    async def speak(self, turns: Sequence[Turn], direction: Direction) -> str:
        """Return the next message. The direction's reason is the director's guidance, unless it waits."""
        guidance = None if direction.act == "wait" else direction.reason
        return await self._say(history_of(turns), guidance, len(turns) + 1)

    async def _say(self, history: list[dict[str, str]], guidance: str | None, turn: int) -> str:
        def call() -> Any:
            return self._actor.generate_reply(history, director_guidance=guidance)

        request = self._link.request(call, session=self.session, nonce=self.session, turn=turn)
        request = replace(request, seed=answer_seed(self.session, turn))
        answer = await self.chat.reply(self.sampling.of(request))
        message = without_thinking(storable(str(self._link.finish(call, answer))))
        if not message.strip():
            raise AnswerError(
                f"the user's model '{self.chat.name}' returned an empty message",
                fix="Use another model for the user",
            )
        return message


class EmpaDirector:
    """EMPA's director as Director. What it sees of the state is computed by the package's orchestrator from
    the judge's levels."""

    def __init__(
        self, package: EmpaPackage, card: EmpaCard, chat: Chat, job: Job, sampling: Sampling
    ) -> None:
        self.package, self.job, self.chat, self.sampling = package, job, chat, sampling
        self.session = f"{job.session}/director"
        self._link = package.link(chat.name)
        self._director = package.director(self._link.client, scenario=card.story, actor_prompt=card.text)
        self._forms = _KnownForms()
        self._state: Any = None
        self._packet: Any = None
        self._judged = 0

    async def direct(self, turns: Sequence[Turn], trajectory: Trajectory) -> Direction:
        """Decide what happens next. Errors of the model are handled by the package."""
        self._update_state(turns, trajectory)
        state = self.package.state_for_director(self._state, len(turns), self._packet)
        history = history_of(turns)

        def call() -> Any:
            return self._director.evaluate_continuation(history=history, epj_state=state)

        request = self._link.request(call, session=self.session, nonce=self.session, turn=len(turns))
        decisions = len(self._director.revealed_info)
        answer: Answer | EndpointError
        try:
            answer = await self.chat.reply(self.sampling.of(request))
        except EndpointError as error:
            _log.warning("the director failed: %s", error)
            answer = error
        outcome = self._link.finish(call, answer)
        made = self._director.revealed_info[decisions:]
        return _direction(outcome, made[-1] if made else {})

    def _update_state(self, turns: Sequence[Turn], trajectory: Trajectory) -> None:
        """Bring the package's state up to date with the judge's levels. An unscored turn moves nothing."""
        if self._state is None:
            goal = self.job.goal
            known = goal and {
                "v_star_0": list(goal.direction),
                "epsilon_distance": goal.distance,
                "epsilon_direction": goal.crossing,
                "epsilon_energy": goal.energy,
            }
            self._state = self.package.orchestrator(
                self._forms, self.package.rubric, K=1, max_turns=trajectory.max_turns
            )
            # Deficits are whole numbers, and the director's prompt shows them as such.
            start = tuple(int(x) if x == int(x) else x for x in trajectory.start)
            self._state.initialize_with_precomputed_iedr({}, start, epm_precomputed=known)
        for number in range(self._judged + 1, len(turns) + 1):
            self._forms.levels = turns[number - 1].levels
            self._packet = self._state.evaluate_at_turn_K(recent_turns=[], current_turn=number)
        self._judged = len(turns)


class _KnownForms:
    """Takes the place of the package's judge in its orchestrator: returns levels that are known already."""

    levels: Levels | None = None

    def fill_progress_form(self, *_: object, **__: object) -> dict[str, int]:
        return {
            f"{key}.{kind}": mark.level
            for key, marks in (self.levels or {}).items()
            for kind, mark in (("Prog", marks.progress), ("Neg", marks.regression))
        }


def _direction(outcome: Mapping[str, Any], decision: Mapping[str, Any]) -> Direction:
    """Return what the package made of an answer as one of our acts; the reason is the guidance for the user.

    An act without guidance is "wait", with what the director observed as the reason.
    """
    guidance = storable(str(outcome.get("guidance") or ""))
    if outcome.get("should_continue") is False:
        return Direction("end", reason=guidance)
    arguments = decision.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    if not guidance or outcome.get("no_intervention"):
        noted = [arguments.get(key) for key in ("observation", "wait_reason", "reason")]
        return Direction("wait", reason=storable(" ".join(x for x in noted if isinstance(x, str)))[:LONGEST])
    act, argument = ACTS.get(str(decision.get("function")), ("go_on", ""))
    item = storable(str(arguments.get(argument, "")))[:40] if argument else ""
    if act == "shift_focus":
        item = next((axis for word, axis in AXES.items() if word in item), item)
    return Direction(act, item, guidance)


class EmpaJudge:
    """EMPA's judge as Judge. Known start levels are not asked for."""

    def __init__(
        self,
        package: EmpaPackage,
        card: EmpaCard,
        chat: Chat,
        job: Job,
        rubric: Rubric,
        sampling: Sampling,
        member: str = "",
    ) -> None:
        self.chat, self.card, self.rubric, self.sampling = chat, card, rubric, sampling
        self.session = f"{job.session}/{member}/judge" if member else f"{job.session}/judge"
        # Siblings share the start form, but not with other members of a panel or after a broken dialogue.
        self._start_nonce = "/".join([f"attempt {job.attempt}"] * bool(job.attempt) + [member] * bool(member))
        self._link = package.link(chat.name)
        self._judger = package.judger(self._link.client)
        self._content = {
            "actor_prompt": card.text,
            "judger_context": package.judge_context(card.text),
            "scenario": card.story,
        }

    async def start(self) -> StartLevels:
        if self.card.start is not None:
            return dict(self.card.start)
        request = self._link.request(
            lambda: self._judger.fill_initial_assessment(self._content),
            session=self.session,
            nonce=self._start_nonce,
            turn=0,
        )
        return await self._ask(request, lambda data: parse_start(data, self.rubric))

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        if not turns:
            raise InputError("there is no turn to judge", fix="Pass at least one turn")
        last = {"turn": len(turns), "actor": turns[-1].user, "test_model": turns[-1].reply.text}
        request = self._link.request(
            lambda: self._judger.fill_progress_form(
                [last], script_context=self._content, full_history=history_of(turns)
            ),
            session=self.session,
            nonce=self.session,
            turn=len(turns),
        )
        return await self._ask(request, lambda data: parse_turn(data, self.rubric))

    async def _ask(self, request: Request, parse: Callable[[Any], _T]) -> _T:
        """Send the same request until the answer fits, as the package does."""
        request = self.sampling.of(request)
        for attempt in range(ATTEMPTS):
            again = f"{request.nonce}/again {attempt}" if attempt else request.nonce
            try:
                return await ask(self.chat, replace(request, nonce=again), parse, repairs=0)
            except AnswerError as error:
                problem = error.problem.partition("the last: ")[2]
        raise AnswerError(
            f"no usable form in {ATTEMPTS} attempts; the last: {problem}",
            where=self.chat.name,
            fix="Use another model for the judge, or raise its max_tokens if answers are cut off",
        )


def parse_turn(data: object, rubric: Rubric) -> Levels:
    """Parse EMPA's turn form. Raises InputError with the key of the problem."""
    return {
        axis.key: AxisMarks(
            _mark(data, f"{axis.key}_Prog", range(len(axis.progress))),
            _mark(data, f"{axis.key}_Neg", range(0, -len(axis.regression), -1)),
        )
        for axis in rubric.axes
    }


def parse_start(data: object, rubric: Rubric) -> StartLevels:
    """Parse EMPA's start form. Raises InputError with the key of the problem."""
    return {item.key: _mark(data, item.key, range(len(item.deficit))) for item in rubric.indicators}


def _mark(data: object, key: str, levels: range) -> Mark:
    if not isinstance(data, dict):
        raise InputError("not an object", fix="Answer with a JSON object")
    level = data.get(f"{key}_level")
    if type(level) is not int or level not in levels:
        raise InputError(
            f"{str(level)[:40]!r} is not a valid level",
            where=f"{key}_level",
            fix=f"Use one of the integers {', '.join(map(str, levels))}",
        )
    return Mark(level, _text(data.get(f"{key}_evidence")), _text(data.get(f"{key}_reasoning")))


def _text(value: object) -> str:
    """Return a text of a form, "" if it is missing: the package reads levels only."""
    text = value.strip() if isinstance(value, str) else ""
    return "" if text == "0" else text[:LONGEST]


class EmpaPolicy:
    """A policy whose requests are written by EMPA's test model: the system prompt, and one message with the
    conversation so far. Sampling parameters are those of the request."""

    def __init__(self, package: EmpaPackage, chat: Chat) -> None:
        self.package, self.chat = package, chat

    @property
    def name(self) -> str:
        return self.chat.name

    async def reply(self, request: Request) -> Answer:
        system = next((m.content for m in request.messages if m.role == "system"), None)
        names = {"user": "actor", "assistant": "test_model"}
        history = [{"role": names[m.role], "content": m.content} for m in request.messages if m.role in names]
        link = self.package.link(self.chat.name)
        model = self.package.test_model(link.client, system_prompt=system)
        written = link.request(lambda: model.generate_reply(history), session="", nonce="", turn=0)
        body = merge_bodies(written.body, request.body)
        return await self.chat.reply(replace(request, messages=written.messages, body=body))

    def end_dialogue(self) -> None:
        if isinstance(self.chat, DialogueChat):
            self.chat.end_dialogue()
