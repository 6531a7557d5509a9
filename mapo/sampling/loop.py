"""The task in which a sampler computes while it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mapo.errors import InputError, TrainError
from mapo.sampling.calls import sampling_error


class SamplingLoop:
    """Runs `work` from `start` to `stop`. If it fails, or when it is stopped, `fail` is given the error for
    the calls that wait.

    failed: what `work` raised since it was last started.
    """

    def __init__(self, work: Callable[[], Awaitable[None]], fail: Callable[[Exception], None]) -> None:
        self._work, self._fail = work, fail
        self._task: asyncio.Task[None] | None = None
        self.failed: Exception | None = None

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        if self.running:
            raise InputError("this sampler is already running")
        self.failed = None
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._fail(TrainError("the sampler was closed"))

    def check(self) -> None:
        """Raise an error if no call can be served."""
        if self.failed:
            raise sampling_error(self.failed)
        if not self.running:
            raise InputError("the sampler is not running", fix="Use it inside `async with sampler:`")

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception as problem:  # noqa: BLE001 (whatever failed, no call may wait forever)
            self.failed = problem
            self._fail(sampling_error(problem))
