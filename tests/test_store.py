"""Records survive: torn lines, kills at any byte, full disks, foreign and damaged files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mapo import Dialogue, RecordError, Reply, Rubric, StoreError, Turn
from mapo.records import _UPGRADES, decode_dialogue, encode_dialogue, parse
from mapo.store import (
    BadLine,
    JsonlWriter,
    RunDir,
    decode_lines,
    process_files,
    process_of,
    read_dialogues,
    read_jsonl,
    read_steps,
    split_lines,
    step_of,
    steps_of,
    write_atomic,
)
from support.builders import dialogue, marks

RUBRIC = Rubric.load("empathy")


def played(**kw) -> Dialogue:
    return dialogue(RUBRIC, [marks(RUBRIC, 1), None, marks(RUBRIC, 2, -1)], **kw)


def test_dialogues_come_back_equal(tmp_path):
    path = tmp_path / "d.jsonl"
    some = [played(id="a", tags={"category": "职业"}), played(id="b", step=3, seed=7, group="g")]
    with JsonlWriter(path) as out:
        for item in some:
            out.write_dialogue(item)
    assert list(read_dialogues(path)) == some
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["schema"] == "mapo.dialogue/1"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"])), ids=st.lists(st.integers(0, 2**31)))
def test_any_text_round_trips_in_one_line(text, ids):
    reply = Reply(text, "length", (1, 2), tuple(ids), tuple(-0.1 for _ in ids))
    item = played(turns=(Turn(text, reply, None, None, None, text),))
    line = encode_dialogue(item)
    assert b"\n" not in line
    assert decode_dialogue(line) == item


def test_truncation_at_every_byte_loses_at_most_the_last_record(tmp_path):
    lines = [encode_dialogue(played(id=str(i))) for i in range(3)]
    whole = b"".join(line + b"\n" for line in lines)
    first_two = len(lines[0]) + len(lines[1]) + 2
    path = tmp_path / "d.jsonl"
    for cut in range(first_two, len(whole) + 1):
        path.write_bytes(whole[:cut])
        got = list(read_dialogues(path))
        good = [d.id for d in got if isinstance(d, Dialogue)]
        bad = [b for b in got if isinstance(b, BadLine)]
        complete = cut >= len(whole) - 1
        assert good == ["0", "1", "2"][: 3 if complete else 2]
        assert [b.torn for b in bad] == ([] if complete or cut == first_two else [True])
        # the next writer leaves a clean file, and nothing whole is lost
        with JsonlWriter(path) as out:
            assert out.cut == (0 if complete else cut - first_two)
            out.write_dialogue(played(id="2"))
        assert all(isinstance(d, Dialogue) for d in read_dialogues(path))


def test_kill_while_writing(tmp_path):
    """kill -9 in the middle of a stream of appends: every acknowledged record is there."""
    path = tmp_path / "d.jsonl"
    code = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from mapo.store import JsonlWriter
        with JsonlWriter(Path({str(path)!r})) as out:
            for i in range(10**9):
                out.write({{"i": i, "pad": "x" * 4000}})
                sys.stdout.write(f"{{i}}\\n"); sys.stdout.flush()
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(50):
        process.stdout.readline()
    process.kill()
    rest = process.communicate()[0].split()
    acknowledged = int(rest[-1]) if rest else 49
    kept = [r["i"] for r in read_jsonl(path) if isinstance(r, dict)]
    assert kept == list(range(len(kept))) and len(kept) >= acknowledged + 1


def test_damage_in_the_middle_is_reported_with_its_place(tmp_path):
    path = tmp_path / "d.jsonl"
    good = encode_dialogue(played())
    wrong = json.dumps({"schema": "mapo.dialogue/9"}).encode()
    path.write_bytes(b"\n".join([good, b"{broken", b"[1]", wrong, b"\xff\xfe", b'{"a": NaN}', good]) + b"\n")
    got = list(read_dialogues(path))
    assert [type(x) for x in got] == [Dialogue] + [BadLine] * 5 + [Dialogue]
    told = [str(x) for x in got[1:6]]
    for number, (line, words) in enumerate(
        zip(told, ["not JSON", "not a JSON object", "mapo.dialogue/9", "not JSON", "NaN"], strict=True), 2
    ):
        assert f"{path}, line {number}: " in line and words in line
    assert not any(x.torn for x in got[1:6])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"turns": "none"}, "turns"),
        ({"start": [1, "x", 2]}, "start.1"),
        ({"unknown": 1}, "unknown"),
        ({"ending": {"reason": "bored"}}, "ending.reason"),
        ({"turns": [{"user": "u", "reply": {"text": "r"}, "reward": 1e999}]}, "not JSON (Infinity"),
        ({"start_levels": {"C.1": {"level": 1.5}}}, "start_levels.C.1.level"),
        ({"start_levels": {"C.1": {"level": "1"}}}, "start_levels.C.1.level"),
        ({"start_levels": {"C.1": {"level": True}}}, "start_levels.C.1.level"),
        ({"profile": None}, "profile"),
    ],
)
def test_wrong_records_name_the_key(change, words):
    record = {**json.loads(encode_dialogue(played())), **change}
    with pytest.raises(RecordError) as caught:
        decode_dialogue(json.dumps(record).encode())
    assert str(caught.value).startswith(words)


def test_numbers_that_are_not_finite_are_never_written(tmp_path):
    bad = played(turns=(Turn("u", Reply("r"), reward=float("nan")),))
    with pytest.raises(RecordError, match="dialogue d1: cannot be written"):
        encode_dialogue(bad)
    with JsonlWriter(tmp_path / "m.jsonl") as out, pytest.raises(RecordError):
        out.write({"loss": float("inf")})
    assert (tmp_path / "m.jsonl").read_bytes() == b""


def test_lone_surrogates_are_refused_not_written():
    with pytest.raises(RecordError, match="surrogates"):
        encode_dialogue(played(model="\ud800"))


def test_two_writers_exclude_each_other(tmp_path):
    with JsonlWriter(tmp_path / "d.jsonl"), pytest.raises(StoreError, match="another process is writing"):
        JsonlWriter(tmp_path / "d.jsonl")
    JsonlWriter(tmp_path / "d.jsonl").close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    with JsonlWriter(tmp_path / "full.jsonl") as out, open("/dev/full", "ab", buffering=0) as full:
        out.close()
        monkeypatch.setattr(out, "_file", full)
        with pytest.raises(StoreError, match="disk is full"):
            out.write({"a": 1})


def test_a_partial_write_is_undone(tmp_path, monkeypatch):
    path = tmp_path / "d.jsonl"
    with JsonlWriter(path) as out:
        out.write({"a": 1})
        monkeypatch.setattr(out, "_file", FullAfter(out._file, 3))
        with pytest.raises(StoreError, match="disk is full"):
            out.write({"b": 2})
        with pytest.raises(StoreError, match="closed"):
            out.write({"c": 3})
    assert list(read_jsonl(path)) == [{"a": 1}]


class FullAfter:
    """A file on a disk that takes a few bytes more and then no more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        done = self.file.write(data[: self.room])
        self.room = 0
        return done

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_write_in_pieces_is_still_one_line(tmp_path, monkeypatch):
    with JsonlWriter(tmp_path / "d.jsonl") as out:
        file = out._file
        pieces = mock.Mock(wraps=file, closed=False)
        pieces.write = lambda data: file.write(data[:5])
        monkeypatch.setattr(out, "_file", pieces)
        out.write({"a": "long enough for several pieces"})
        file.close()
    assert list(read_jsonl(tmp_path / "d.jsonl")) == [{"a": "long enough for several pieces"}]


def test_a_torn_line_longer_than_one_block_is_cut(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"a":1}\n' + b'{"b":"' + b"x" * 200_000)
    with JsonlWriter(path) as out:
        assert out.cut == 200_006
    assert path.read_bytes() == b'{"a":1}\n'


def test_deeply_nested_tails_are_cut_too(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"a":1}\n' + b"[" * 200_000)
    with JsonlWriter(path):
        pass
    assert list(read_jsonl(path)) == [{"a": 1}]


def test_what_json_cannot_hold_is_refused(tmp_path):
    with JsonlWriter(tmp_path / "m.jsonl") as out:
        for value in (np.float32(1), {1}, b"x"):
            with pytest.raises(RecordError, match="cannot be written"):
                out.write({"loss": value})
        out.close()
        out.close()
    with pytest.raises(RecordError, match="not a dialogue"):
        encode_dialogue(played(start=("x",)))


@pytest.mark.parametrize("schema", [["mapo.dialogue/1"], {"a": 1}, None, 7])
def test_a_schema_that_is_no_name_is_refused(schema):
    with pytest.raises(RecordError, match="schema is"):
        decode_dialogue(json.dumps({"schema": schema}).encode())


def test_older_schemas_are_upgraded(monkeypatch):
    def upgrade(record):
        return {**record, "schema": "mapo.dialogue/1", "model": record["policy"]} | {"policy": None}

    monkeypatch.setitem(
        _UPGRADES, "mapo.dialogue/0", lambda r: {k: v for k, v in upgrade(r).items() if v is not None}
    )
    old = json.loads(encode_dialogue(played()))
    old = {**old, "schema": "mapo.dialogue/0", "policy": old.pop("model")}
    del old["model"]
    assert decode_dialogue(json.dumps(old).encode()) == played()


def test_write_atomic_replaces_or_leaves(tmp_path, monkeypatch):
    path = tmp_path / "run" / "manifest.json"
    write_atomic(path, "one")
    write_atomic(path, b"two")
    assert path.read_text() == "two"

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreError, match="disk is full"):
        write_atomic(path, "three")
    assert path.read_text() == "two" and list(path.parent.iterdir()) == [path]
    with pytest.raises(RecordError, match="surrogates"):
        write_atomic(path, "\ud800")
    with pytest.raises(StoreError, match="cannot be written"):
        write_atomic(path / "below", "x")
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        JsonlWriter(tmp_path / "file" / "d.jsonl")
    with pytest.raises(RecordError, match="cannot be read"):
        list(read_jsonl(tmp_path / "missing.jsonl"))


def test_paths_of_a_run(tmp_path):
    run = RunDir(tmp_path / "r")
    assert run.dialogues_of(3) == tmp_path / "r" / "dialogues" / "step_00003.jsonl"
    assert run.checkpoint(10).name == "step_00010"
    names = (run.config, run.manifest, run.rubric, run.metrics, run.tensorboard, run.report)
    assert [p.name for p in names] == [
        "config.toml",
        "manifest.json",
        "rubric.toml",
        "metrics.jsonl",
        "tensorboard",
        "report.html",
    ]
    assert not run.root.exists()


def split(content, at=0, longest=None):
    return list(split_lines(io.BytesIO(content), at, longest=longest))


def test_lines_are_split_with_their_places():
    assert split(b"ab\n\nc") == [(0, 3, b"ab\n"), (3, 1, b"\n"), (4, 1, b"c")]
    assert split(b"ab\n\nc", at=3) == [(3, 1, b"\n"), (4, 1, b"c")]
    assert split(b"") == []


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_lines_that_are_too_long_are_skipped_whole(longest):
    assert split(b"abcdefg\nh", longest=longest) == [(0, 8, None), (8, 1, b"h")]


def test_a_line_of_just_the_longest_length_is_kept():
    assert split(b"abc\nd\n", longest=4) == [(0, 4, b"abc\n"), (4, 2, b"d\n")]


@pytest.mark.parametrize("content", [b"abcd", b"abcdefgh", b"abcdefghi"])
def test_the_beginning_stands_for_an_unfinished_line_that_is_too_long(content):
    assert split(content, longest=4) == [(0, len(content), b"abcd")]


def test_a_line_that_is_finished_while_it_is_read_stays_unfinished(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"a":1}\n{"b"')
    with open(file, "rb") as reading, open(file, "ab", buffering=0) as writing:
        lines = split_lines(reading)
        found = [next(lines), next(lines)]
        writing.write(b":2}\n")
        assert [*found, *lines] == [(0, 8, b'{"a":1}\n'), (8, 4, b'{"b"')]


def test_limits_of_a_file_that_anybody_may_have_written(tmp_path):
    file = io.BytesIO(b'{"a":1}\n{"a":22222}\n{"a":3}\n{"a":4}\n')
    found = list(decode_lines(file, tmp_path, parse, longest=8, most=30))
    assert [line if isinstance(line, dict) else (line.line, line.problem[:8]) for line in found] == [
        {"a": 1},
        (2, "too long"),
        {"a": 3},
        (4, "the rest"),
    ]


def test_a_complete_record_of_another_kind_is_not_torn(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"schema":"other/1"}')
    assert [line.torn for line in read_dialogues(file)] == [False]


def test_the_last_line_of_a_step_counts(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert read_steps(file) == []
    file.write_bytes(b'{"step":2,"x":1}\n{"step":1}\n{"step":true}\nno\n{"step":2,"x":3}\n{"ste')
    assert read_steps(file) == [{"step": 1}, {"step": 2, "x": 3}]
    steps, problems = steps_of(read_jsonl(file))
    assert steps == read_steps(file)
    assert [problem.partition(":")[0] for problem in problems] == [
        "a line without a step number",
        "line 4",
        "line 6",
    ]


def test_each_process_has_files_of_its_own(tmp_path):
    run = RunDir(tmp_path)
    assert [run.dialogues_of(3, rank).name for rank in (0, 2)] == ["step_00003.jsonl", "step_00003.2.jsonl"]
    assert [run.eval_dialogues("after", r).name for r in (0, 1)] == ["dialogues.jsonl", "dialogues.1.jsonl"]
    assert [run.cache_of(rank).name for rank in (0, 1)] == ["cache.sqlite", "cache.sqlite.1"]
    for rank in (10, 0, 2):
        for path in (run.dialogues_of(3, rank), run.ledger_of(rank)):
            path.parent.mkdir(exist_ok=True)
            path.write_text("")
    run.dialogues_of(4).write_text("")
    assert process_files(run.dialogues_of(3, 2)) == [run.dialogues_of(3, rank) for rank in (0, 2, 10)]
    assert run.ledgers() == sorted(run.ledger_of(rank) for rank in (0, 2, 10))


@pytest.mark.parametrize(("name", "rank"), [("step_00001.jsonl", 0), ("a.12.jsonl", 12), ("a.1a.jsonl", 0)])
def test_the_process_of_a_file(name, rank):
    assert process_of(Path(name)) == rank


@pytest.mark.parametrize(
    ("name", "step"),
    [("step_00001.jsonl", 1), ("step_00012.3.jsonl", 12), ("empa.jsonl", None), ("step_x.jsonl", None)],
)
def test_the_step_of_a_dialogue_file(name, step):
    assert step_of(name) == step


# ---- files from somebody else


def test_a_pipe_in_place_of_records_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "dialogues.jsonl")
    with pytest.raises(RecordError, match="not a regular file"):
        list(read_dialogues(tmp_path / "dialogues.jsonl"))


def test_records_are_not_appended_through_a_link(tmp_path):
    other = tmp_path / "of_the_user.txt"
    other.write_text("precious, without a newline")
    (tmp_path / "metrics.jsonl").symlink_to(other)
    with pytest.raises(StoreError, match="symbolic link"):
        JsonlWriter(tmp_path / "metrics.jsonl")
    assert other.read_text() == "precious, without a newline"


def test_a_huge_torn_line_is_cut_in_seconds(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n')
    os.truncate(path, 1 << 30)  # sparse
    with JsonlWriter(path) as writer:
        assert writer.cut == (1 << 30) - 11
    assert path.read_bytes() == b'{"step":1}\n'
