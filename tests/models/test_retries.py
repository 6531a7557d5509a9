"""When to try again, and after how long."""

from __future__ import annotations

import pytest

from mapo.models.retries import LONGEST_RETRY_AFTER, error_message, http_failure, pause, retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *[("0", 0.0), ("2.5", 2.5), ("-3", 0.0), ("nan", 0.0), ("soon", 0.0), ("", 0.0)],
        *[("1e9", LONGEST_RETRY_AFTER), ("inf", LONGEST_RETRY_AFTER)],
        ("Mon, 01 Jan 1990 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_bounded_and_never_fatal(value, seconds):
    assert retry_after({"retry-after": value}, now=1e9) == seconds


def test_pauses_double_up_to_a_cap_with_jitter():
    for retried, longest in [(1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (5000, 30.0)]:
        drawn = [pause(retried, 0.0) for _ in range(50)]
        assert all(longest / 2 <= p <= longest for p in drawn) and len(set(drawn)) > 1
    assert pause(1, 3.0) == 3.0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": " no "}}, "no"),
        ({"error": "plain"}, "plain"),
        ({"message": "flat"}, "flat"),
        ({"message": None}, ""),
        *[("<html>", "<html>"), (None, ""), ([1], "[1]")],
    ],
)
def test_the_words_of_a_refusal(body, text):
    assert error_message(body) == text


def test_a_refusal_without_words():
    trouble = http_failure(503, "", code=None, retry_after=4.0, key="K")
    assert (trouble.reason, trouble.final, trouble.retry_after) == ("HTTP 503", False, 4.0)
