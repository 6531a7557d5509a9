"""Endpoints of models that think before they answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo.errors import EndpointError
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.cache import key_of
from mapo.models.chat import Answer, Request, Sampling
from mapo.models.endpoint import Endpoint
from mapo.models.thinking import probe_thinking
from mapo.models.wire import dump_answer, load_answer
from mapo.sandbox.cast import Job
from mapo.sandbox.director import ModelDirector
from mapo.sandbox.model_cast import model_cast
from mapo.sandbox.rollout import Rules, play
from mapo.sandbox.user import ModelUser
from mapo.testing.server import LoopbackServer
from mapo.testing.thinking import Thinking
from mapo.testing.world import world
from mapo.types import Direction, Reply
from support.calling import HELLO, Sleeps, ask
from support.roles import Told, boat_shed, turns_of

SHOWN = ["reasoning_content", "reasoning", "text", "usage"]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
RUBRIC, SCENARIO = Rubric.load("empathy"), boat_shed()


def limited(tokens: int) -> Request:
    return replace(HELLO, max_tokens=tokens)


@pytest.mark.parametrize("shown", SHOWN)
def test_an_answer_after_thinking_and_how_long_it_took(shown):
    with LoopbackServer(thinking=Thinking(300, shown)) as server:
        answer = ask(server, limited(1000))
    assert answer.text.endswith("I see.")
    assert 300 <= answer.thinking <= 310
    assert answer.usage.completion >= 300


def test_a_plain_answer_has_no_thinking():
    with LoopbackServer() as server:
        assert ask(server).thinking == 0


def test_thinking_is_not_stored_in_the_cache():
    with LoopbackServer(thinking=Thinking(300)) as server:
        answer = ask(server, limited(1000))
    assert "thinking" not in dump_answer(answer)
    assert load_answer(dump_answer(answer)) == answer


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize(
    ("role", "advice"),
    [
        ("user", r"Raise --user-max-tokens \(.*roles.user.max_tokens .*--user-body thinking=false"),
        ("director", r"Raise --director-max-tokens .*--director-body thinking=false"),
        ("judge", r"Raise --judge-max-tokens .*--judge-body thinking=false"),
        ("policy", r"Raise --max-tokens, or switch thinking off: --body thinking=false"),
        ("maker", r"Switch thinking off: --body thinking=false"),
        ("a judge of an audit", r"Raise its max_tokens"),
    ],
)
def test_thinking_that_is_cut_off_says_what_to_set(role, advice, shown):
    with (
        LoopbackServer(thinking=Thinking(300, shown)) as server,
        pytest.raises(EndpointError, match=f"no text within max_tokens=200: the model spent .*{advice}"),
    ):
        ask(server, limited(200), role=role)
    assert server.calls == 2  # once more, because the next thoughts may be shorter, but not five times


@pytest.mark.parametrize(
    ("switch", "body"), [("enable_thinking", OFF), ("reasoning_effort", {"reasoning_effort": "none"})]
)
def test_body_fields_of_an_endpoint_switch_thinking_off(switch, body):
    with LoopbackServer(thinking=Thinking(300, switch=switch)) as server:
        assert ask(server, limited(200), body=body).text == "I see."


def test_body_fields_of_a_request_win_over_those_of_its_endpoint():
    on = {"chat_template_kwargs": {"enable_thinking": True}}
    with LoopbackServer(record=True) as server:
        ask(server, replace(HELLO, body=on), body={**OFF, "top_k": 5})
    assert server.bodies[0]["chat_template_kwargs"] == on["chat_template_kwargs"]
    assert server.bodies[0]["top_k"] == 5


def test_a_policy_that_answers_is_judged_by_a_reply_that_was_cut_off():
    """Its limit is not too low in general, so an occasional empty reply is its own."""

    async def main(url):
        async with Endpoint("m", url, role="policy", sleep=Sleeps()) as chat:
            return [(await chat.reply(limited(tokens))).text for tokens in (1000, 200)]

    with LoopbackServer(thinking=Thinking(300)) as server:
        assert asyncio.run(main(server.base_url)) == ["I see.", ""]


def test_a_user_that_thinks_1500_tokens_speaks_without_any_setting():
    turns = turns_of((SCENARIO.opening, "Tell me."))

    async def speak(url):
        async with Endpoint("m", url, role="user") as chat:
            return await ModelUser(chat, SCENARIO, RUBRIC).speak(turns, Direction("go_on"))

    with LoopbackServer(lambda _: "It is the boat shed again.", thinking=Thinking(1500)) as server:
        assert asyncio.run(speak(server.base_url)) == "It is the boat shed again."


def test_a_cast_that_thinks_1500_tokens_plays_without_any_setting():
    async def main(url):
        chats = [Endpoint(role, url, role=role) for role in ("user", "director", "judge")]
        job = Job(SCENARIO, "d")
        cast = model_cast(*chats, RUBRIC)(job)
        return await play(job, Told("Mm."), cast, Rules(RUBRIC, min_turns=3, max_turns=3))

    with LoopbackServer(world(), thinking=Thinking(1500, "text"), record=True) as server:
        dialogue = asyncio.run(main(server.base_url))
    assert dialogue.error is None
    assert [turn.unscored for turn in dialogue.turns] == [None] * 3
    assert [turn.direction.reason for turn in dialogue.turns[1:]] == ["as before"] * 2


@pytest.mark.parametrize("role", ["user", "director"])
def test_the_raised_limit_keeps_the_keys_of_recorded_runs(role):
    """Earlier versions asked user and director with max_tokens=1024."""
    chat = Told('{"act": "go_on"}' if role == "director" else "It is the boat shed again.")
    turns = turns_of((SCENARIO.opening, "Tell me."))
    if role == "user":
        asyncio.run(ModelUser(chat, SCENARIO, RUBRIC).speak(turns, Direction("go_on")))
    else:
        asyncio.run(
            ModelDirector(chat, SCENARIO, RUBRIC).direct(
                turns, Trajectory(RUBRIC, RUBRIC.start(SCENARIO.start_levels))
            )
        )
    request = chat.requests[0]
    assert request.max_tokens == 4096
    assert key_of("m", request) == key_of("m", replace(request, max_tokens=1024, limit_in_key=None))
    assert key_of("m", Sampling(max_tokens=4096).of(request)) != key_of("m", request)


# ---- probes


class Hidden:
    """A model whose server neither shows nor counts thinking: at a low limit it just has no text."""

    name = "hidden"

    def __init__(self, thinking: int, off: str = "") -> None:
        self.thinking, self.off = thinking, off

    async def reply(self, request: Request) -> Answer:
        on = self.off not in request.body
        if on and request.max_tokens <= self.thinking:
            raise EndpointError(f"no text within max_tokens={request.max_tokens}")
        return Answer(Reply("Hello."))


@pytest.mark.parametrize(
    ("off", "switch"),
    [("reasoning_effort", "reasoning_effort=none"), ("chat_template_kwargs", "thinking=false")],
)
def test_thinking_that_is_not_shown_is_found_by_what_is_missing(off, switch):
    probe = asyncio.run(probe_thinking(Hidden(300, off)))
    assert (probe.thinking, probe.finishes, probe.switch) == (16, True, switch)


def test_a_wordy_model_does_not_think():
    probe = asyncio.run(
        probe_thinking(Told(Answer(Reply("Hello to you and to all of", "length")), "Hello to all."))
    )
    assert (probe.thinking, probe.switch) == (0, "")


def test_an_effort_that_only_shortens_thinking_is_found():
    """A server such as OpenAI's, with an effort from minimal to high."""

    class Effort(LoopbackServer):
        async def _respond(self, number, request):
            effort = json.loads(await request.body()).get("reasoning_effort")
            self.thinking = Thinking(100 if effort in ("minimal", "low") else 800, "usage", None)
            return await super()._respond(number, request)

    async def main(url):
        async with Endpoint("m", url, retries=1, sleep=Sleeps()) as chat:
            return await probe_thinking(chat)

    with Effort() as server:
        probe = asyncio.run(main(server.base_url))
    assert (probe.thinking, probe.switch, probe.thinking_left) == (800, "reasoning_effort=minimal", 100)
    assert probe.needed == 2048


def test_other_failures_of_a_probe_are_raised():
    with pytest.raises(EndpointError, match="no connection"):
        asyncio.run(probe_thinking(Told(EndpointError("no connection"))))
