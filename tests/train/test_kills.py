"""Fifty kills at random instants of a training, each resumed: the end is that of an undisturbed run.

The killed processes are forks of this one, so that what is killed is training and not the start of Python.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback

import pytest

import small

KILLS = 50
STEPS = 12


def train_in_a_fork(model, out) -> int:
    """The process id of a child that trains, or goes on training, and then exits with 0."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        small.trained(
            model, out, f"optim.steps={STEPS}", resume=(out / "manifest.json").exists() or out.exists()
        )
        status = 0
    except BaseException:  # noqa: BLE001 (a fork must never return into pytest)
        traceback.print_exc()
    finally:
        os._exit(status)


def finished(child: int, within: float) -> int | None:
    """The exit status, or None if it is still running after `within` seconds."""
    ended: list[int] = []
    waiter = threading.Thread(target=lambda: ended.append(os.waitpid(child, 0)[1]))
    waiter.start()
    waiter.join(within)
    if waiter.is_alive():
        os.kill(child, signal.SIGKILL)
        waiter.join()
        return None
    return os.waitstatus_to_exitcode(ended[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fifty_kills(tmp_path):
    model = small.model_folder(tmp_path / "model")
    began = time.monotonic()
    assert finished(train_in_a_fork(model, tmp_path / "whole"), 600) == 0
    undisturbed = time.monotonic() - began
    rng, kills, out = random.Random(0), 0, tmp_path / "killed"
    while kills < KILLS:
        status = finished(train_in_a_fork(model, out), rng.uniform(0.0, 0.6 * undisturbed))
        assert status in (0, None), "a resumed run failed"
        kills += status is None
        if status == 0:  # it got to its end between two kills: the rest of them go to another run
            assert small.weights(out, STEPS) == small.weights(tmp_path / "whole", STEPS)
            out = tmp_path / f"killed{kills}"
    if out.exists():
        assert finished(train_in_a_fork(model, out), 600) == 0
        assert small.weights(out, STEPS) == small.weights(tmp_path / "whole", STEPS)
