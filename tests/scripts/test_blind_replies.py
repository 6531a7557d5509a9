"""Drawing replies and counting a reader's verdicts in benchmarks/blind_replies.py."""

import json
import random
import re
import runpy
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.records import encode_dialogue
from support.recordings import recordings

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "blind_replies.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def count(script):
    return script["count"]


def counted(count, folder, pairs, replies="1 y y\n2 y n\n3 n n\n"):
    (folder / "key.json").write_text(json.dumps({"replies": 3, "pairs": {"1": "A", "2": "B", "3": "="}}))
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


def dialogues(count):
    return [replace(r.dialogue, id=f"{r.dialogue.id}-{n}") for n in range(count) for r in recordings(1, 1)]


def test_pairs_are_of_dialogues_that_no_other_block_shows(script):
    replies, pairs = script["drawn_places"](dialogues(15), 10, random.Random(0))
    assert len(replies) == len(pairs) == 10
    of_pairs = [dialogue.id for dialogue, _ in pairs]
    assert len(set(of_pairs)) == 10
    assert set(of_pairs).isdisjoint(dialogue.id for dialogue, _ in replies)


def test_too_few_dialogues_are_refused(script):
    with pytest.raises(SystemExit, match="10 pairs need about 15 dialogues with replies; there are 14"):
        script["drawn_places"](dialogues(14), 10, random.Random(0))


def test_what_is_drawn_can_be_counted(script, tmp_path, monkeypatch):
    async def untrained(model, prompts, temperature, tokens):
        return [f"Untrained reply {n}." for n in range(len(prompts))]

    monkeypatch.setitem(script["draw"].__globals__, "answers", untrained)
    (tmp_path / "a.jsonl").write_bytes(b"".join(encode_dialogue(d) + b"\n" for d in dialogues(9)))
    out = tmp_path / "blind"
    options = Namespace(run=tmp_path, seed=0, count=6, untrained="", temperature=0, max_tokens=9, out=out)
    script["draw"](options)
    blocks = re.split(r"^## \d+$", (out / "pairs.md").read_text(), flags=re.MULTILINE)[1:]
    trained = ["B" if "**A:** Untrained" in block else "A" for block in blocks]
    (out / "pairs.txt").write_text("".join(f"{n} {side}\n" for n, side in enumerate(trained, 1)))
    (out / "replies.txt").write_text("".join(f"{n} y n\n" for n in range(1, 7)))
    script["count"](Namespace(out=out, json=out / "result.json"))
    result = json.loads((out / "result.json").read_text())
    assert {name: part["hits"] for name, part in result.items()} == {
        "natural": 6,
        "on_subject": 0,
        "preferred": 6,
    }


@pytest.mark.parametrize(
    "pairs", ["1 a\n2 A\n3 =\n", "1 AB\n2 A\n3 =\n", "1 A\n1 B\n2 A\n3 =\n", "1 A\n2 A\n"]
)
def test_verdicts_that_cannot_be_counted_are_refused(count, tmp_path, pairs):
    with pytest.raises(SystemExit, match="expected"):
        counted(count, tmp_path, pairs)


EMPTY = encode_dialogue(replace(recordings(1, 1)[0].dialogue, turns=())) + b"\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no .jsonl files"),
        ({"a.jsonl": b""}, "its .jsonl files are empty"),
        (
            {"a.jsonl": b"{\n" * 3},
            "none of the 3 lines in its .jsonl files can be read, the first: {a}, line 1: ",
        ),
        ({"a.jsonl": EMPTY * 2}, "none of its 2 dialogues has a reply"),
        ({"a.jsonl": b"{\n" + EMPTY}, "a reply; unreadable lines: 1, the first: {a}, line 1: "),
    ],
)
def test_why_there_is_nothing_to_draw(script, tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    expected = message.format(a=tmp_path / "a.jsonl")
    with pytest.raises(SystemExit, match=re.escape(expected)):
        script["draw"](Namespace(run=tmp_path, seed=0))


def test_a_folder_to_draw_from_that_does_not_exist(script, tmp_path):
    with pytest.raises(SystemExit, match="is not a folder"):
        script["draw"](Namespace(run=tmp_path / "missing", seed=0))


def test_a_file_that_cannot_be_opened_is_a_plain_error(script, tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(SystemExit, match=r"a\.jsonl: cannot be read"):
        script["draw"](Namespace(run=tmp_path, seed=0))


def test_readable_dialogues_are_drawn_though_a_line_is_unreadable(script, tmp_path):
    dialogue = recordings(1, 1)[0].dialogue
    (tmp_path / "a.jsonl").write_bytes(b"{\n" + EMPTY + encode_dialogue(dialogue) + b"\n")
    assert [found.id for found in script["replied_dialogues"](tmp_path)] == [dialogue.id]
