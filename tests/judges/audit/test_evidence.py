"""Evidence is a quotation, or it is not."""

from __future__ import annotations

import pytest

from mapo.judges.audit.evidence import count_quotes, quoted
from mapo.types import AxisMarks, Mark

REPLY = "You waited at the gate, didn't you? That's a long evening — 一个人等了很久。"


@pytest.mark.parametrize(
    ("evidence", "there"),
    [
        ("waited at the gate", True),
        ("“You waited at the GATE”", True),
        ("didn\u2019t you", True),
        ("you waited ... a long evening", True),
        ("a long evening … you waited", False),  # not in this order
        ("一个人 等了很久", True),
        ("ｗａｉｔｅｄ", True),
        ("you felt alone at the gate", False),
        ("", False),
        ("...", False),
        ("0", False),
    ],
)
def test_quotations(evidence, there):
    assert quoted(evidence, REPLY) is there


def test_only_marks_that_say_something_count():
    def form(up, down):
        return {"C": AxisMarks(up, down)}

    found = count_quotes(
        [
            (form(Mark(1, "waited at the gate"), Mark(0, "made up")), REPLY),
            (form(Mark(2, "made up"), Mark(-1, "")), REPLY),
        ]
    )
    assert (found.marks, found.given, found.quoted) == (3, 2, 1) and found.share == pytest.approx(1 / 3)
    assert found.interval[0] < 1 / 3 < found.interval[1]
    nothing = count_quotes([(form(Mark(0), Mark(0)), REPLY)])
    assert nothing.share is None and nothing.interval is None and nothing.as_json()["marks"] == 0
