"""Are rollouts concurrent? Real HTTP to a loopback server that plays all roles, 200 ms a call.

    .venv/bin/python benchmarks/rollout.py

1. 30 dialogues of 15 turns, 4 calls a turn: against playing them one after another (timed on two of them),
   and against the critical path of one dialogue.
2. 32, 128 and 512 dialogues at once: processor time of our own process per turn, and peak memory. The
   server runs in a process of its own, so its work is not counted.
3. Our own code alone: the same dialogues with fakes in place of HTTP.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import time

from mapo import Rubric
from mapo.models.chat import Answer
from mapo.models.endpoint import Endpoint
from mapo.models.rate_limit import Limiter, Limits
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.testing.fakes import FakeChat
from mapo.testing.server import LoopbackServer
from mapo.testing.world import ROLES, world
from mapo.types import Reply

LATENCY, TURNS, DIALOGUES = 0.2, 15, 30
RUBRIC = Rubric.load("empathy")
SCENARIOS = load_scenarios("builtin:all")


def serve(pipe, latency: float) -> None:
    with LoopbackServer(world(), latency=latency, models=ROLES) as server:
        pipe.send(server.base_url)
        pipe.recv()


def jobs(n: int) -> list[Job]:
    return [Job(SCENARIOS[i % len(SCENARIOS)], f"d{i}", seed=i) for i in range(n)]


def play_over_http(url: str, n: int, turns: int, concurrency: int) -> tuple[float, float, int]:
    """(wall seconds, our processor seconds, turns played)."""

    async def go() -> int:
        limiter = Limiter(Limits(concurrency=4096))
        chats = {role: Endpoint(role, url, limits=limiter, role=role) for role in ROLES}
        casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
        rules = Rules(RUBRIC, max_turns=turns, min_turns=turns, system=policy_system)
        done = await play_all(jobs(n), lambda *_: chats["policy"], casting, rules, concurrency=concurrency)
        for chat in chats.values():
            await chat.aclose()
        assert all(d.error is None for d in done), next(d.error for d in done if d.error)
        assert all(len(d.turns) == turns for d in done)
        return sum(len(d.turns) for d in done)

    wall, cpu = time.perf_counter(), time.process_time()
    played = asyncio.run(go())
    return time.perf_counter() - wall, time.process_time() - cpu, played


def play_with_fakes(n: int, turns: int) -> float:
    """Seconds of our own code per turn, with nothing behind it."""
    answer = world()

    def said(role):
        def reply(request):
            schema = {"json_schema": {"schema": request.schema}} if request.schema else None
            body = {"model": role, "response_format": schema}
            text = answer(body)
            return Answer(Reply(text))

        return reply

    chats = {role: FakeChat(said(role)) for role in ROLES}
    casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
    rules = Rules(RUBRIC, max_turns=turns, min_turns=turns, system=policy_system)
    began = time.process_time()
    done = asyncio.run(play_all(jobs(n), lambda *_: chats["policy"], casting, rules))
    return (time.process_time() - began) / sum(len(d.turns) for d in done)


def main() -> None:
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, LATENCY), daemon=True)
    server.start()
    url = here.recv()
    play_over_http(url, 4, 2, 4)  # warm up
    path = (4 * TURNS - 2) * LATENCY  # nothing is directed or said after the last turn
    alone, _, _ = play_over_http(url, 2, TURNS, 1)
    together, _, _ = play_over_http(url, DIALOGUES, TURNS, DIALOGUES)
    serial = alone / 2 * DIALOGUES
    print(f"{DIALOGUES} dialogues of {TURNS} turns, 4 calls a turn, {1000 * LATENCY:.0f} ms a call")
    print(f"  one after another  {serial:7.1f} s   ({alone:.1f} s for two of them)")
    print(f"  at once            {together:7.1f} s   {serial / together:5.1f} times as fast")
    print(f"  critical path      {path:7.1f} s   {together / path:5.2f} of it")
    print("\ndialogues at once, 5 turns each")
    for n in (32, 128, 512):
        wall, cpu, turns = play_over_http(url, n, 5, n)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        shown = f"{1000 * cpu / turns:6.2f} ms processor time a turn, peak memory {peak:5.0f} MB"
        print(f"  {n:4d}  {shown}, {wall:5.1f} s")
    print(f"\nour own code with fakes for models: {1000 * play_with_fakes(30, TURNS):.2f} ms a turn")
    here.send("done")
    server.join(5)


if __name__ == "__main__":
    main()
