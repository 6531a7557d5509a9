"""Retry policy for endpoints: which failures are retried, after how long, and how a user can fix them.

Timeouts, lost connections, HTTP 408, 409, 425, 429 and 5xx, and responses without an answer are retried; all
other failures are final. Pauses double, with jitter, and respect Retry-After.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from mapo.models.chat import Answer

FIRST_PAUSE, LONGEST_PAUSE, LONGEST_RETRY_AFTER = 0.5, 30.0, 120.0
RETRYABLE_STATUSES = (408, 409, 425, 429)
CHECK_URL = "Check the base URL; it usually ends in /v1"


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why an attempt gave no usable answer. `final`: a retry would not help. `empty_answer`: the answer, if
    there was one, without text. `only_thinking`: the token limit cut it off before its text began."""

    reason: str
    final: bool = False
    fix: str = ""
    status: int | None = None
    retry_after: float = 0.0
    empty_answer: Answer | None = None
    only_thinking: bool = False


def http_failure(status: int, message: str, *, code: str | None, retry_after: float, key: str) -> CallFailure:
    """Classify an HTTP error status. `key` describes where the endpoint's key comes
    from, empty if none is sent."""
    reason = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    if status == 402 or code == "insufficient_quota":
        return CallFailure(reason, True, "Add credit to the account", status)
    if status == 429:
        fix = "Lower the concurrency or the requests per minute"
        return CallFailure(reason, False, fix, status, retry_after)
    if status in RETRYABLE_STATUSES or status >= 500:
        return CallFailure(reason, False, "The endpoint has a problem; try again later", status, retry_after)
    if status in (401, 403):
        fix = (
            f"The key comes from {key}. Set it to one that this endpoint accepts"
            if key
            else "No key was sent. Name its variable with key_env, --key-env or --judge-key-env"
        )
        return CallFailure(reason, True, fix, status)
    if status in (404, 405):
        return CallFailure(reason, True, f"{CHECK_URL}. Check that the endpoint lists the model", status)
    return CallFailure(reason, True, "The endpoint does not accept this request", status)


def thinking_failure(answer: Answer, max_tokens: int, role: str) -> CallFailure:
    """Return the failure of an answer that consists of thinking only, cut off at `max_tokens`."""
    switch = "switch thinking off in its body fields (thinking=false)"
    limit = "Raise its max_tokens"
    if role == "policy":
        limit, switch = "Raise --max-tokens", "switch thinking off: --body thinking=false"
    elif role in ("user", "director", "judge"):
        limit = f"Raise --{role}-max-tokens (where the command has it; roles.{role}.max_tokens in a config)"
        switch = f"switch thinking off: --{role}-body thinking=false (--agents-body for all roles)"
    elif role == "maker":
        limit, switch = "", "Switch thinking off: --body thinking=false"
    fix = f"{', or '.join(filter(None, (limit, switch)))}. `mapo doctor` finds out what the model needs"
    reason = f"no text within max_tokens={max_tokens}: the model spent all of it on thinking"
    return CallFailure(reason, fix=fix, empty_answer=answer, only_thinking=True)


def error_message(body: object) -> str:
    """Return the endpoint's message from the body of an error response."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = (inner.get("message") if isinstance(inner, dict) else inner) or ""
    return "" if body is None else str(body).strip()


def pause(retried: int, at_least: float) -> float:
    """Return the seconds to wait before retry number `retried`, counted from 1."""
    longest = min(FIRST_PAUSE * 2.0 ** min(retried - 1, 16), LONGEST_PAUSE)
    return max(longest * random.uniform(0.5, 1.0), at_least)  # noqa: S311 (not a secret)


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """Return the seconds of a Retry-After header, given in seconds or as a date; 0 if there is no valid
    one."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return min(seconds, LONGEST_RETRY_AFTER) if seconds > 0 else 0.0
