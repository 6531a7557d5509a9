"""The limiter, on a clock of its own."""

from __future__ import annotations

import asyncio
import time

import pytest

from mapo.errors import InputError
from mapo.models.rate_limit import WINDOW, Limiter, Limits


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def limiter(clock: Clock, **limits) -> Limiter:
    return Limiter(Limits(**limits), clock=clock, sleep=clock.sleep)


def starts(gate: Limiter, clock: Clock, costs: list[int], actual: int | None = None) -> list[float]:
    """When calls of these estimates start, all asking at once."""
    began: list[float] = []

    async def one(cost: int) -> None:
        async with gate.reserve(cost) as reservation:
            began.append(clock())
        if actual is not None:
            gate.settle(reservation, actual)

    async def main() -> None:
        await asyncio.gather(*(one(cost) for cost in costs))

    asyncio.run(main())
    return began


def densest(times: list[float]) -> int:
    """The most calls that started in one window of 60 s."""
    return max(sum(t <= u < t + WINDOW for u in times) for t in times)


def test_without_limits_nobody_waits():
    clock = Clock()
    assert starts(limiter(clock), clock, [10**9] * 50) == [1000.0] * 50


def test_requests_a_minute_hold_in_every_window():
    clock = Clock()
    began = starts(limiter(clock, requests_per_minute=5), clock, [1] * 23)
    assert densest(began) == 5
    assert began[-1] - began[0] == pytest.approx(4 * WINDOW, abs=1e-6)


def test_tokens_a_minute_hold_in_every_window():
    clock = Clock()
    began = starts(limiter(clock, tokens_per_minute=100), clock, [40] * 6)
    assert densest(began) == 2
    assert began[-1] - began[0] == pytest.approx(2 * WINDOW, abs=1e-6)


def test_what_a_call_really_cost_counts_once_it_is_known():
    clock = Clock()
    cheap = starts(limiter(clock, tokens_per_minute=100), clock, [60] * 6, actual=10)
    assert cheap[4] - cheap[0] < WINDOW / 10  # 4 * 10 + 60 fit, estimates alone would let in one
    assert cheap[5] - cheap[0] == pytest.approx(WINDOW, abs=1e-6)  # 5 * 10 + 60 do not
    clock = Clock()
    dear = starts(limiter(clock, tokens_per_minute=100), clock, [10] * 4, actual=100)
    assert dear[-1] - dear[0] > WINDOW


def test_a_late_settlement_of_a_forgotten_call_changes_nothing():
    async def main() -> float:
        async with gate.reserve(90) as slow:
            clock.now += 2 * WINDOW
        async with gate.reserve(10):
            pass
        gate.settle(slow, 1000)
        async with gate.reserve(80):
            return clock.now

    clock = Clock()
    gate = limiter(clock, tokens_per_minute=100)
    assert asyncio.run(main()) == 1000.0 + 2 * WINDOW


def test_a_call_larger_than_the_budget_goes_alone():
    clock = Clock()
    began = starts(limiter(clock, tokens_per_minute=100), clock, [500, 500])
    assert began[1] - began[0] == pytest.approx(WINDOW, abs=1e-6)


def test_first_come_first_served_even_if_a_later_one_would_fit():
    order: list[str] = []

    async def one(name: str, cost: int) -> None:
        async with gate.reserve(cost):
            order.append(name)

    async def main() -> None:
        await asyncio.gather(one("first", 90), one("large", 90), one("small", 1))

    clock = Clock()
    gate = limiter(clock, tokens_per_minute=100)
    asyncio.run(main())
    assert order == ["first", "large", "small"]


def test_no_more_at_once_than_allowed_and_in_order():
    inside, most, order = 0, 0, []

    async def one(number: int, gate: Limiter) -> None:
        nonlocal inside, most
        async with gate.reserve(1):
            inside += 1
            most = max(most, inside)
            order.append(number)
            await asyncio.sleep(0)
            inside -= 1

    async def main() -> None:
        gate = Limiter(Limits(concurrency=4))
        await asyncio.gather(*(one(n, gate) for n in range(40)))

    asyncio.run(main())
    assert most == 4 and order == list(range(40))


def test_places_survive_errors_and_cancellation():
    async def main() -> str:
        gate = Limiter(Limits(concurrency=1))

        async def wait_inside(entered: asyncio.Event) -> None:
            async with gate.reserve(1):
                entered.set()
                await asyncio.Event().wait()

        with pytest.raises(ZeroDivisionError):
            async with gate.reserve(1):
                1 / 0  # noqa: B018
        entered = asyncio.Event()
        holder = asyncio.create_task(wait_inside(entered))
        await entered.wait()
        in_line = [asyncio.create_task(wait_inside(asyncio.Event())) for _ in range(3)]
        await asyncio.sleep(0)
        for task in [*in_line, holder]:
            task.cancel()
        await asyncio.gather(holder, *in_line, return_exceptions=True)
        async with asyncio.timeout(1), gate.reserve(1):
            return "free"

    assert asyncio.run(main()) == "free"


def test_cancelled_while_waiting_for_the_window():
    async def main() -> bool:
        stuck = asyncio.Event()

        async def never(_: float) -> None:
            stuck.set()
            await asyncio.Event().wait()

        gate = Limiter(Limits(concurrency=1, requests_per_minute=1), sleep=never)
        async with gate.reserve(1):
            pass
        waiting = asyncio.create_task(gate.reserve(1).__aenter__())
        await stuck.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return gate._slots.locked() or gate._queue.locked()

    assert asyncio.run(main()) is False


def test_a_limiter_outlives_event_loops():
    gate = Limiter(Limits(concurrency=1))

    async def contended() -> int:
        async def one() -> int:
            async with gate.reserve(1):
                await asyncio.sleep(0)
                return 1

        return sum(await asyncio.gather(*(one() for _ in range(5))))

    assert [asyncio.run(contended()) for _ in range(2)] == [5, 5]


@pytest.mark.parametrize("bad", [{"concurrency": 0}, {"requests_per_minute": 0}, {"tokens_per_minute": -1}])
def test_limits_that_allow_nothing_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Limits(**bad)


def test_a_hold_delays_all_callers_but_retries():
    async def play():
        limiter = Limiter(Limits())
        limiter.hold(0.3)
        began, times = time.monotonic(), {}

        async def call(name, retry):
            async with limiter.reserve(1, retry=retry):
                times[name] = time.monotonic() - began

        await asyncio.gather(call("a", False), call("b", False), call("retry", True))
        return times

    times = asyncio.run(play())
    assert times["retry"] < 0.3 <= min(times["a"], times["b"])
