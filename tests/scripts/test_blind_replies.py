"""Counting a reader's verdicts in benchmarks/blind_replies.py."""

import json
import runpy
from argparse import Namespace
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "blind_replies.py"


@pytest.fixture(scope="module")
def count():
    return runpy.run_path(str(SCRIPT))["count"]


def counted(count, folder, pairs, replies="1 y y\n2 y n\n3 n n\n"):
    (folder / "key.json").write_text(json.dumps({"1": "A", "2": "B", "3": "="}))
    (folder / "replies.txt").write_text(replies)
    (folder / "pairs.txt").write_text(pairs)
    count(Namespace(out=folder, json=folder / "result.json"))
    return json.loads((folder / "result.json").read_text())


def test_verdicts_are_counted_by_the_key(count, tmp_path):
    result = counted(count, tmp_path, "1 A\n2 A\n3 B\n")  # the replies of the third pair are equal
    hits = {name: (part["hits"], part["n"]) for name, part in result.items()}
    assert hits == {"natural": (2, 3), "on_subject": (1, 3), "preferred": (1, 2)}


def test_only_ties(count, tmp_path):
    assert counted(count, tmp_path, "1 =\n2 =\n3 =\n")["preferred"] == {"hits": 0, "n": 0}


@pytest.mark.parametrize(
    "pairs", ["1 a\n2 A\n3 =\n", "1 AB\n2 A\n3 =\n", "1 A\n1 B\n2 A\n3 =\n", "1 A\n2 A\n"]
)
def test_verdicts_that_cannot_be_counted_are_refused(count, tmp_path, pairs):
    with pytest.raises(SystemExit, match="expected"):
        counted(count, tmp_path, pairs)
