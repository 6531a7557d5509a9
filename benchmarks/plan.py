"""Compare the estimates of `mapo plan` with dialogues played over HTTP against a server of known delays.

    .venv/bin/python benchmarks/plan.py

Each shape is played through `play_all` as a training step would be. The server has its own process, limits
the concurrent calls per role and answers each call after a log-normal delay. Printed next to the measured
seconds: the lower bound from those delays, and the one from the run itself (as `mapo plan --from` has it,
from dialogues and ledger alone).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import random
import tempfile
import time
from pathlib import Path

from mapo import Rubric
from mapo.config import Config, read_config
from mapo.models.chat import Request
from mapo.models.endpoint import Endpoint
from mapo.models.ledger import Ledger
from mapo.models.rate_limit import Limits
from mapo.planning.demand import shape_of
from mapo.planning.measured import measure
from mapo.planning.plan import Plan, make_plan
from mapo.planning.rates import merged, read_rates
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.store import JsonlWriter
from mapo.testing.server import LoopbackServer
from mapo.testing.world import ROLES, world
from mapo.types import Message

RUBRIC = Rubric.load("empathy")
SCENARIOS = load_scenarios("builtin:all")
FREE = 1000

# name: scenarios, siblings, turns, at once, spread, {role: (seconds, calls at once)}
SHAPES = {
    "latency-bound": (4, 4, 8, 16, 0.0, {"policy": (0.3, FREE), "judge": (0.3, FREE), "user": (0.1, FREE)}),
    "judge-bound": (4, 4, 6, 16, 0.0, {"policy": (0.1, FREE), "judge": (0.3, 3), "user": (0.1, FREE)}),
    "judge-bound, spread": (
        4,
        4,
        6,
        16,
        0.5,
        {"policy": (0.1, FREE), "judge": (0.3, 3), "user": (0.1, FREE)},
    ),
    "user-bound": (4, 4, 6, 16, 0.3, {"policy": (0.1, FREE), "judge": (0.1, FREE), "user": (0.25, 2)}),
    "policy-bound": (4, 4, 6, 16, 0.3, {"policy": (0.3, 3), "judge": (0.1, FREE), "user": (0.1, FREE)}),
    "two alike": (4, 4, 6, 16, 0.5, {"policy": (0.2, 3), "judge": (0.2, 3), "user": (0.1, FREE)}),
    "few places": (6, 4, 4, 6, 0.3, {"policy": (0.2, FREE), "judge": (0.2, FREE), "user": (0.1, FREE)}),
}
DIRECTOR = (0.05, FREE)


def serve(pipe) -> None:
    """Serve one shape after another, as named through the pipe."""
    answer = world()
    while name := pipe.recv():
        *_, spread, role_speeds = SHAPES[name]
        speeds = {"director": DIRECTOR, **role_speeds}
        semaphores = {role: asyncio.Semaphore(slots) for role, (_, slots) in speeds.items()}
        sigma = math.sqrt(math.log1p(spread**2))
        rng = random.Random(name)

        async def slowly(body, speeds=speeds, semaphores=semaphores, sigma=sigma, rng=rng):
            async with semaphores[body["model"]]:
                factor = math.exp(rng.gauss(-(sigma**2) / 2, sigma))
                await asyncio.sleep(speeds[body["model"]][0] * factor)
            return answer(body)

        with LoopbackServer(slowly, models=ROLES) as server:
            pipe.send(server.base_url)
            pipe.recv()


def play(url: str, name: str, run: Path) -> float:
    """Play a shape and return the seconds; write dialogues and ledger to `run`."""
    scenarios, siblings, turns, at_once, _, _ = SHAPES[name]
    jobs = [Job(s, f"{s.id}_{k}", group=s.id) for s in SCENARIOS[:scenarios] for k in range(siblings)]

    async def go() -> float:
        ledger, limits = Ledger(), Limits(concurrency=FREE)
        chats = {role: Endpoint(role, url, limits=limits, ledger=ledger, role=role) for role in ROLES}
        warm = Endpoint("policy", url)
        await warm.reply(Request((Message("user", "warm up"),)))
        casting = model_cast(chats["user"], chats["director"], chats["judge"], RUBRIC)
        rules = Rules(RUBRIC, max_turns=turns, min_turns=turns, system=policy_system)
        began = time.perf_counter()
        done = await play_all(jobs, lambda _: chats["policy"], casting, rules, concurrency=at_once)
        took = time.perf_counter() - began
        for chat in (warm, *chats.values()):
            await chat.aclose()
        assert all(d.error is None and len(d.turns) == turns for d in done)
        ledger.flush(run / "ledger.json")
        with JsonlWriter(run / "dialogues" / "step_00001.jsonl") as writer:
            for dialogue in done:
                writer.write_dialogue(dialogue)
        return took

    return asyncio.run(go())


def config_of(name: str) -> Config:
    scenarios, siblings, turns, at_once, _, _ = SHAPES[name]
    roles = {"agents": "llm", "everyone": {"model": "m"}, "requests": FREE}
    sizes = {"scenarios": scenarios, "siblings": siblings, "max_turns": turns, "at_once": at_once}
    return read_config({"roles": roles, "rollout": sizes}, name)


def planned(name: str) -> Plan:
    """Return the plan computed from the delays of the server."""
    speeds = {"director": DIRECTOR, **SHAPES[name][-1]}
    rates = {
        "servers": {role: {"streams": slots} for role, (_, slots) in speeds.items()},
        "calls": {role: {"output": 1, "seconds": s} for role, (s, _) in speeds.items()},
        "update": {"seconds": 0.0},
    }
    return make_plan(shape_of(config_of(name)), read_rates(rates, name))


def planned_from(name: str, run: Path) -> Plan:
    """Return the plan computed from the run's records, which include waiting inside the server."""
    rates = merged(measure(run, config_of(name)).rates, {"update": {"seconds": 0.0}})
    return make_plan(shape_of(config_of(name)), read_rates(rates, name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    connection, server_connection = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(server_connection,), daemon=True
    )
    server.start()
    print(f"{'':22}{'measured':>9}{'bound':>9}{'ratio':>7}{'from run':>10}{'ratio':>7}  bottleneck")
    for name in SHAPES:
        connection.send(name)
        with tempfile.TemporaryDirectory() as folder:
            seconds = play(connection.recv(), name, Path(folder))
            from_run = planned_from(name, Path(folder)).rollout_s
        connection.send("done")
        plan = planned(name)
        from_rates = f"{name:22}{seconds:8.2f}s{plan.rollout_s:8.2f}s{seconds / plan.rollout_s:7.2f}"
        print(f"{from_rates}{from_run:9.2f}s{seconds / from_run:7.2f}  {plan.bottleneck}")
    connection.send("")
    server.join(5)


if __name__ == "__main__":
    main()
