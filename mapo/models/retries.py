"""What an endpoint's failure means: whether to try again, how long to wait, what a person could do.

Time-outs, lost connections, 408, 409, 425, 429, 5xx and responses without an answer are worth another
attempt; everything else is final at once. Pauses double, with jitter, and respect Retry-After.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from mapo.models.chat import Answer

FIRST_PAUSE, LONGEST_PAUSE, LONGEST_RETRY_AFTER = 0.5, 30.0, 120.0
WORTH_A_RETRY = (408, 409, 425, 429)
CHECK_URL = "Check the base URL; it usually ends in /v1"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an attempt gave no answer. `final`: another one would not either. `said`: a reply without text."""

    reason: str
    final: bool = False
    fix: str = ""
    status: int | None = None
    retry_after: float = 0.0
    said: Answer | None = None


def refusal(status: int, message: str, *, code: str | None, retry_after: float, key: str) -> Trouble:
    """An HTTP status other than 200. `key` says in words where the endpoint's key comes from."""
    reason = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    if status == 402 or code == "insufficient_quota":
        return Trouble(reason, True, "Add credit to the account", status)
    if status == 429:
        busy = "Lower the concurrency or the requests a minute"
        return Trouble(reason, False, busy, status, retry_after)
    if status in WORTH_A_RETRY or status >= 500:
        return Trouble(reason, False, "The endpoint is in trouble itself; try later", status, retry_after)
    if status in (401, 403):
        return Trouble(reason, True, f"The key comes from {key}: set it to one this endpoint accepts", status)
    if status in (404, 405):
        return Trouble(reason, True, f"{CHECK_URL}; is the model listed there?", status)
    return Trouble(reason, True, "The endpoint does not take this request as it is", status)


def said_by(body: object) -> str:
    """The endpoint's own words in the body of a refusal."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = (inner.get("message") if isinstance(inner, dict) else inner) or ""
    return "" if body is None else str(body).strip()


def pause(retried: int, at_least: float) -> float:
    """Seconds before the next attempt, `retried` counting from 1."""
    longest = min(FIRST_PAUSE * 2.0 ** min(retried - 1, 16), LONGEST_PAUSE)
    return max(longest * random.uniform(0.5, 1.0), at_least)  # noqa: S311 (no secret)


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds to wait by a Retry-After header, in seconds or as a date; 0 where there is none to use."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return min(seconds, LONGEST_RETRY_AFTER) if seconds > 0 else 0.0
