"""The task in which a sampler computes: how it starts, fails and stops."""

from __future__ import annotations

import asyncio

import pytest

from mapo.errors import InputError, TrainError
from mapo.sampling.loop import SamplingLoop


async def forever() -> None:
    await asyncio.Event().wait()


async def breaks() -> None:
    raise ZeroDivisionError("by zero")


def test_calls_that_wait_when_it_stops_fail():
    failures: list[Exception] = []

    async def main():
        loop = SamplingLoop(forever, failures.append)
        loop.start()
        loop.check()
        await loop.stop()
        return loop

    loop = asyncio.run(main())
    assert [str(failure) for failure in failures] == ["the sampler was closed"]
    assert loop.failed is None
    with pytest.raises(InputError, match="not running"):
        loop.check()


def test_it_cannot_be_started_twice_at_a_time():
    async def main():
        loop = SamplingLoop(forever, lambda _: None)
        loop.start()
        with pytest.raises(InputError, match="already running"):
            loop.start()
        await loop.stop()
        loop.start()
        await loop.stop()

    asyncio.run(main())


def test_a_failure_reaches_the_calls_that_wait_and_later_ones():
    failures: list[Exception] = []

    async def main():
        loop = SamplingLoop(breaks, failures.append)
        loop.start()
        await asyncio.sleep(0)
        with pytest.raises(TrainError, match="sampling failed: ZeroDivisionError"):
            loop.check()
        await loop.stop()
        return loop

    loop = asyncio.run(main())
    assert "sampling failed" in str(failures[0])
    assert isinstance(loop.failed, ZeroDivisionError)


def test_a_new_start_forgets_the_failure():
    async def main():
        loop = SamplingLoop(breaks, lambda _: None)
        loop.start()
        await asyncio.sleep(0)
        await loop.stop()
        loop.start()
        loop.check()
        await loop.stop()

    asyncio.run(main())
