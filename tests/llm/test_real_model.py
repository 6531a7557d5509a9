"""A real language model behind a real server in all four roles: however poor the talk, it ends and parses.

SmolLM2-135M-Instruct on llama.cpp: `make test-llm` fetches both and runs this.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from command import mapo
from mapo import Job, Rubric, Rules, StopReason, play_all
from mapo.sandbox.endpoint import Endpoint
from mapo.sandbox.models import model_cast, policy_system
from mapo.sandbox.scenarios import load_scenarios

pytestmark = pytest.mark.llm
RUBRIC = Rubric.load("empathy")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    pytest.importorskip("xllamacpp")
    gguf = os.environ.get("MAPO_GGUF")
    if not gguf:
        pytest.skip("MAPO_GGUF names no model (run: make test-llm)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("llm") / "server.log"
    command = [sys.executable, str(Path(__file__).parent / "serve.py"), gguf, str(port)]
    with open(log, "wb") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        for line in server.stdout:
            if line.startswith("address "):
                break
        else:
            pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")
        yield line.split()[1] + "/v1"
        server.kill()
        server.communicate()


def test_doctor_sees_what_the_server_can_do(url):
    done = mapo("doctor", "--model", "smollm2", "--base-url", url)
    assert done.returncode == 0, done.stdout
    assert "forms come back in shape (asked for as: schema)" in done.stdout


def test_a_whole_dialogue_ends_and_its_forms_parse(url):
    """Start form, replies, turn forms, directions and the person's lines, all by the same small model."""
    scenario = load_scenarios("builtin:test")[0]
    short = replace(scenario, memories=(), stages=scenario.stages[:2], start_levels={})

    async def go():
        roles = ("policy", "user", "director", "judge")
        chats = {role: Endpoint("smollm2", url, role=role, timeout=900) for role in roles}
        casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
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
