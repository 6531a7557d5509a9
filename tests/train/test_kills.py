"""Fifty kills at random instants of a training, each resumed: the end is that of an undisturbed run.

The killed processes are forks of one that has loaded the libraries and done nothing with them, so that what
is killed is training and not the start of Python. (A fork of pytest's own process would inherit locks held by
threads that it does not have.)
"""

from __future__ import annotations

import multiprocessing
import random
import time

import pytest

from support import small_run as small

KILLS = 50
STEPS = 12
FORKS = multiprocessing.get_context("forkserver")
LOADED = ["mapo.train.run", "mapo.domains.empathy", "transformers.models.llama.modeling_llama"]


def train(model, out) -> None:
    """Train, or go on training, in a process of its own."""
    small.trained(model, out, f"optim.steps={STEPS}", resume=out.exists())


def ended(within: float, *args) -> int | None:
    """The exit status of `train`, or None if it had to be killed after `within` seconds."""
    process = FORKS.Process(target=train, args=args) if args else FORKS.Process()
    process.start()
    process.join(within)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


@pytest.mark.slow
def test_fifty_kills(tmp_path):
    FORKS.set_forkserver_preload(LOADED)
    model, whole = small.model_folder(tmp_path / "model"), tmp_path / "whole"
    assert ended(600) == 0  # the libraries are loaded
    began = time.monotonic()
    assert ended(600, model, whole) == 0
    undisturbed = time.monotonic() - began
    rng, kills, out = random.Random(0), 0, tmp_path / "killed"
    while kills < KILLS:
        status = ended(rng.uniform(0.0, 0.6 * undisturbed), model, out)
        assert status in (0, None), "a resumed run failed"
        kills += status is None
        if status == 0:  # it got to its end between two kills: the rest of them go to another run
            assert small.weights(out, STEPS) == small.weights(whole, STEPS)
            out = tmp_path / f"killed{kills}"
    if out.exists():
        assert ended(600, model, out) == 0
        assert small.weights(out, STEPS) == small.weights(whole, STEPS)
