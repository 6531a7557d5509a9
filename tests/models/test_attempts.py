"""Attempts that callers share. What the cache and the start forms make of them is tested there."""

from __future__ import annotations

import asyncio

import pytest

from mapo.models.attempts import SharedAttempts


def test_an_unexpected_failure_is_not_shared():
    attempts: SharedAttempts[int] = SharedAttempts()

    async def breaks() -> int:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def works() -> int:
        return 1

    async def main():
        return await asyncio.gather(
            *(attempts.get("key", attempt) for attempt in (breaks, works, works)), return_exceptions=True
        )

    failure, *results = asyncio.run(main())
    assert isinstance(failure, ZeroDivisionError)
    assert results == [(1, False), (1, False)]  # the third found nothing in progress


@pytest.mark.parametrize("keys", ["ab", "aa"])
def test_only_attempts_of_one_key_are_shared(keys):
    attempts: SharedAttempts[int] = SharedAttempts()
    made = []

    async def attempt() -> int:
        made.append(1)
        await asyncio.sleep(0)
        return len(made)

    async def main():
        return await asyncio.gather(*(attempts.get(key, attempt) for key in keys))

    results = asyncio.run(main())
    assert len(made) == len(set(keys))
    assert [shared for _, shared in results] == [False, keys == "aa"]
