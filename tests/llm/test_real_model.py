"""A real language model behind a real server in all four roles: however poor the talk, it ends and parses.

SmolLM2-135M-Instruct on llama.cpp: `make test-llm` fetches both and runs this.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mapo import Job, Rubric, Rules, StopReason, play_all
from mapo.models.chat import Sampling
from mapo.models.endpoint import Endpoint
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.scenarios.sets import load_scenarios
from support.command import mapo

pytestmark = pytest.mark.llm
RUBRIC = Rubric.load("empathy")


def test_doctor_sees_what_the_server_can_do(url):
    done = mapo("doctor", "--model", "smollm2", "--base-url", url)
    assert done.returncode == 0, done.stdout
    assert "answers follow the schema" in done.stdout


def test_a_whole_dialogue_ends_and_its_forms_parse(url):
    """Start form, replies, turn forms, directions and the person's lines, all by the same small model."""
    scenario = load_scenarios("builtin:test")[0]
    short = replace(scenario, memories=(), stages=scenario.stages[:2], start_levels={})

    async def go():
        roles = ("policy", "user", "director", "judge")
        chats = {role: Endpoint("smollm2", url, role=role, timeout=900) for role in roles}
        # This model often does not stop by itself.
        short_answers = {"user": Sampling(max_tokens=128), "director": Sampling(max_tokens=128)}
        casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC, short_answers)
        rules = Rules(RUBRIC, min_turns=2, max_turns=2, system=policy_system, max_tokens=60)
        try:
            return await play_all([Job(short, "d", seed=1)], lambda _: chats["policy"], casting, rules)
        finally:
            for chat in chats.values():
                await chat.aclose()

    [dialogue] = asyncio.run(go())
    assert dialogue.error is None, dialogue.error
    assert dialogue.ending is not None and dialogue.ending.reason is not StopReason.BROKEN
    assert len(dialogue.turns) == 2 and all(t.reply.text.strip() and t.user.strip() for t in dialogue.turns)
    # the server enforces the schema, so the forms of a model however small are in shape, unless it never ends
    for turn in dialogue.turns:
        assert turn.levels is not None or "it was cut off after" in turn.unscored, turn.unscored
    assert set(dialogue.start_levels) == {i.key for i in RUBRIC.indicators}
    assert dialogue.turns[1].direction is not None
