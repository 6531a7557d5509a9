"""A served sandbox on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

from mapo import Rubric, Rules
from mapo.connections import ConnectionLimits
from mapo.engines.openenv.environment import ServedSandbox
from mapo.engines.openenv.server import make_app, server_of
from mapo.listening import listening
from mapo.sandbox.domain import scripted_cast
from mapo.sandbox.model_cast import policy_system
from mapo.scenarios.sets import load_scenarios

RULES = Rules(Rubric.load("empathy"), max_turns=14, system=policy_system)
SCENARIOS = load_scenarios("builtin:train")[:4]
CASTING = scripted_cast("empathy")
LIMITS = ConnectionLimits(200)


def sandbox(casting=CASTING, rules=RULES, **options):
    return ServedSandbox(SCENARIOS, casting, rules, **options)


@contextmanager
def served(sandbox, *, sessions=8, idle=60.0, limits=LIMITS, **options):
    """Serve until the block is left; yields the address. The server must stop by itself within a minute."""
    listener = listening("127.0.0.1", 0)
    server = server_of(make_app(sandbox, sessions=sessions, idle=idle, **options), limits)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()
