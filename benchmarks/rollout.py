"""Measure the concurrency of rollouts over real HTTP, against a loopback server with 200 ms per call.

    .venv/bin/python benchmarks/rollout.py

1. 30 dialogues of 15 turns with 4 calls per turn, compared with playing them sequentially (extrapolated from
   two of them) and with the critical path of one dialogue.
2. 32, 128 and 512 concurrent dialogues: CPU time of this process per turn, and peak memory. The server runs
   in another process and is not counted.
3. The same dialogues with fake models instead of HTTP, which leaves only mapo's own code.
"""

from __future__ import annotations

import argparse
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
    """Return (wall seconds, CPU seconds of this process, turns played)."""

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
    """Return the CPU seconds per turn with fake models."""
    answer = world()

    def reply_as(role):
        def reply(request):
            schema = {"json_schema": {"schema": request.schema}} if request.schema else None
            body = {"model": role, "response_format": schema}
            text = answer(body)
            return Answer(Reply(text))

        return reply

    chats = {role: FakeChat(reply_as(role)) for role in ROLES}
    casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
    rules = Rules(RUBRIC, max_turns=turns, min_turns=turns, system=policy_system)
    began = time.process_time()
    done = asyncio.run(play_all(jobs(n), lambda *_: chats["policy"], casting, rules))
    return (time.process_time() - began) / sum(len(d.turns) for d in done)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    connection, server_connection = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(server_connection, LATENCY), daemon=True
    )
    server.start()
    url = connection.recv()
    play_over_http(url, 4, 2, 4)  # warm up
    path = (4 * TURNS - 2) * LATENCY  # no director and no user call after the last turn
    two, _, _ = play_over_http(url, 2, TURNS, 1)
    concurrent, _, _ = play_over_http(url, DIALOGUES, TURNS, DIALOGUES)
    sequential = two / 2 * DIALOGUES
    print(f"{DIALOGUES} dialogues of {TURNS} turns, 4 calls per turn, {1000 * LATENCY:.0f} ms per call")
    print(f"  sequential     {sequential:7.1f} s   ({two:.1f} s for two of them)")
    print(f"  concurrent     {concurrent:7.1f} s   {sequential / concurrent:5.1f} times as fast")
    print(f"  critical path  {path:7.1f} s   concurrent / critical path: {concurrent / path:5.2f}")
    print("\nconcurrent dialogues of 5 turns")
    for n in (32, 128, 512):
        wall, cpu, turns = play_over_http(url, n, 5, n)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"  {n:4d}  {1000 * cpu / turns:6.2f} ms CPU time per turn, "
            f"peak memory {peak:5.0f} MB, {wall:5.1f} s"
        )
    print(f"\nwith fake models: {1000 * play_with_fakes(30, TURNS):.2f} ms CPU time per turn")
    connection.send("done")
    server.join(5)


if __name__ == "__main__":
    main()
