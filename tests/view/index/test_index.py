"""The index follows the files: growing, replaced, damaged, gone."""

from __future__ import annotations

import fcntl
import json
import os

import pytest

from mapo import Rubric
from mapo.runs import files as reading
from mapo.view.index import facts, files, queries
from mapo.view.index import index as indexing
from mapo.view.index.index import Index
from support import view_runs

EMPATHY = Rubric.load("empathy")


def rows(index, where: str = "1"):
    with index.reading() as db:
        return db.execute(f"SELECT * FROM dialogues WHERE {where} ORDER BY n").fetchall()


def run_of(index, key: str = "first"):
    with index.reading() as db:
        return queries.run_named(db, key)


def problems(index, key: str = "first"):
    with index.reading() as db:
        return queries.problems_of(db, key)


def test_a_file_that_grew_is_read_on_from_where_it_was(index, root, monkeypatch):
    run = view_runs.training(root, steps=1)
    index.refresh()
    before = [row["n"] for row in rows(index)]
    assert len(before) == 15 and not index.refresh()
    read = []
    real = indexing.lines_from
    monkeypatch.setattr(indexing, "lines_from", lambda file, at: read.append(at) or real(file, at))
    size = (run / "dialogues" / "step_00001.jsonl").stat().st_size
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [view_runs.talk(EMPATHY, "new_1", step=1)])
    assert index.refresh() and read == [size]
    after = rows(index)
    assert (
        [row["n"] for row in after][:15] == before and after[-1]["id"] == "new_1" and after[-1]["line"] == 7
    )


def test_a_line_still_being_written_waits_and_is_said(index, root):
    run = view_runs.training(root, steps=1)
    file = run / "dialogues" / "step_00001.jsonl"
    whole = file.read_bytes()
    half = whole.splitlines(keepends=True)[0]
    file.write_bytes(whole + half[:500])
    index.refresh()
    assert len(rows(index, "part = 'train'")) == 6
    assert problems(index) == [
        {"file": "dialogues:step_00001.jsonl", "line": None, "problem": "incomplete last line (500 bytes)"}
    ]
    with open(file, "ab") as more:
        more.write(half[500:])
    index.refresh()
    assert len(rows(index, "part = 'train'")) == 7 and problems(index) == []


def test_a_replaced_or_cut_file_is_read_anew(index, root):
    run = view_runs.training(root, steps=1)
    file = run / "dialogues" / "step_00001.jsonl"
    index.refresh()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2]))
    index.refresh()
    assert len(rows(index, "part = 'train'")) == 2
    other = file.with_name("other")
    other.write_bytes(b"".join(reversed(lines)) + lines[0])
    os.replace(other, file)
    index.refresh()
    found = rows(index, "part = 'train'")
    assert len(found) == 7 and found[0]["id"] == "001_scenario-1_2"
    with index.reading() as db:  # words of rows that are gone find nothing
        assert queries.dialogues(db, queries.DialogueFilter(words="reply", part="train"))[1] == 7
    file.unlink()
    index.refresh()
    assert rows(index, "part = 'train'") == []


def test_the_same_bytes_grown_over_another_beginning_are_read_anew(index, root):
    file = view_runs.write_lines(root / "r" / "dialogues" / "a.jsonl", [view_runs.talk(EMPATHY, "a_1")])
    index.refresh()
    with open(file, "r+b") as same:
        same.write(b"x" * (file.stat().st_size + 100))
        same.write(b"\n")
    index.refresh()
    assert rows(index) == [] and len(problems(index, "r")) == 1


def test_damaged_lines_cost_themselves_alone(index, root, monkeypatch):
    monkeypatch.setattr(indexing, "PROBLEMS", 5)
    run = view_runs.training(root, steps=1)
    deep = b"[" * 200_000
    bad = [b"{half", b'{"schema": "mapo.dialogue/9"}', b"\xff\xfe\xff", b'"words"', deep, b"9" * 10_000, b""]
    with open(run / "dialogues" / "step_00001.jsonl", "ab") as file:
        file.write(b"\n".join(bad) + b"\n")
    view_runs.write_lines(run / "dialogues" / "step_00001.jsonl", [view_runs.talk(EMPATHY, "last_1", step=1)])
    index.refresh()
    assert rows(index)[-1]["id"] != "" and any(row["id"] == "last_1" for row in rows(index))
    assert [p["line"] for p in problems(index)] == [7, 8, 9, 10, 11]


def test_a_line_too_long_to_hold_is_passed_over(index, root, monkeypatch):
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 100_000)
    file = view_runs.write_lines(root / "r" / "dialogues" / "a.jsonl", [view_runs.talk(EMPATHY, "a_1")])
    with open(file, "ab") as more:
        more.write(b"x" * 350_000 + b"\n")
    view_runs.write_lines(file, [view_runs.talk(EMPATHY, "b_1")])
    with open(file, "ab") as more:
        more.write(b"x" * 250_000)
    index.refresh()
    assert [row["id"] for row in rows(index)] == ["a_1", "b_1"]
    told = problems(index, "r")
    assert told[0]["problem"] == "The line is too long to be read." and "250,000" in told[1]["problem"]


def test_a_run_that_is_gone_leaves_the_list(index, root):
    run = view_runs.training(root, steps=1)
    view_runs.benchmark(root)
    index.refresh()
    run.rename(root.parent / "elsewhere")
    assert index.refresh() and run_of(index) is None and {row["run"] for row in rows(index)} == {"bench"}


def test_an_index_is_found_again_and_reads_nothing_twice(root, tmp_path, monkeypatch):
    view_runs.training(root, steps=1)
    first = Index(root, tmp_path / "cache")
    first.refresh()
    kept = [row["n"] for row in rows(first)]
    first.close()
    monkeypatch.setattr(indexing, "entry_of", None)  # would raise if anything were read
    again = Index(root, tmp_path / "cache")
    again.refresh()
    assert [row["n"] for row in rows(again)] == kept
    again.close()


def test_a_damaged_or_older_index_is_made_anew(root, tmp_path):
    view_runs.training(root, steps=1)
    for spoil in (lambda path: path.write_bytes(b"no database" * 1000), _older):
        first = Index(root, tmp_path / "cache")
        first.close()
        spoil(first.path)
        again = Index(root, tmp_path / "cache")
        again.refresh()
        assert len(rows(again)) == 15
        again.close()


def _older(path):
    import sqlite3

    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")


def test_two_viewers_of_one_folder_do_not_share_an_index(root, tmp_path):
    view_runs.training(root, steps=1)
    first, second = Index(root, tmp_path / "cache"), Index(root, tmp_path / "cache")
    assert first.path != second.path
    second.refresh()
    assert len(rows(second)) == 15
    folder = second.path.parent
    second.close()
    first.close()
    assert not folder.exists()


def test_without_a_cache_folder_there_is_still_an_index(root, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    made = Index(root)
    assert made.path.exists() and tmp_path not in made.path.parents
    made.close()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    made = Index(root)
    assert made.path.parent == tmp_path / "own" / "mapo" / "view"
    made.close()


def test_the_root_may_be_a_run_and_runs_may_lie_deeper(tmp_path, root):
    run = view_runs.training(root / "a" / "b", steps=1)
    (root / "a" / "manifest.json").write_text(json.dumps({"schema": "mapo.ablate/1"}))
    (root / ".hidden").mkdir()
    view_runs.training(root / ".hidden", steps=1)
    outer, inner = Index(root, tmp_path / "c1"), Index(run, tmp_path / "c2")
    outer.refresh()
    inner.refresh()
    assert list(outer.runs) == ["a", "a:b:first"] and list(inner.runs) == ["~"]
    assert run_of(inner, "~")["name"] == "first"
    outer.close()
    inner.close()


def test_a_refresh_can_be_stopped(index, root):
    view_runs.training(root, steps=1)
    index.refresh(stop=lambda: True)
    assert run_of(index)["dialogues"] == 0
    index.refresh()
    assert run_of(index)["dialogues"] == 15


def test_large_files_are_committed_as_they_are_read(index, root, monkeypatch):
    monkeypatch.setattr(indexing, "BATCH", 2)
    view_runs.training(root, steps=1)
    index.refresh()
    assert len(rows(index)) == 15


# ---- how a run stands


def test_a_run_is_running_while_its_file_is_locked_or_fresh(index, root):
    run = view_runs.training(root, steps=1, done=False)
    index.refresh()
    assert run_of(index)["state"] == "running"
    view_runs.age(run)
    index.refresh()
    assert run_of(index)["state"] == "stopped"
    with open(run / "metrics.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        index.refresh()
        locked = run_of(index)["state"]
    assert locked == "running" or not facts.locked_inodes()
    (run / "verl").mkdir()
    with open(run / "verl" / "lock", "w") as file:
        view_runs.age(run)
        fcntl.flock(file, fcntl.LOCK_EX)
        index.refresh()
        locked = run_of(index)["state"]
    assert locked == "running" or not facts.locked_inodes()
    (run / "dialogues" / "cut_off").mkdir()
    index.refresh()
    assert run_of(index)["other"] == []
    (run / "stopped.txt").write_text("the judge is gone")
    index.refresh()
    assert run_of(index)["state"] == "failed" and run_of(index)["error"] == "the judge is gone"
    (run / "summary.json").write_text("{}")
    index.refresh()
    assert run_of(index)["state"] == "failed"
    (run / "summary.json").write_text('{"steps": 1}')
    index.refresh()
    assert run_of(index)["state"] == "finished"


def test_the_table_of_locks_is_read_as_it_is(tmp_path):
    table = tmp_path / "locks"
    table.write_text(
        "1: FLOCK  ADVISORY  WRITE 12 08:02:4711 0 EOF\n"
        "2: POSIX ADVISORY READ 1 00:01:9 0 EOF\n"
        "3: FLOCK ADVISORY WRITE 1 x 0 EOF\n"
    )
    assert facts.locked_inodes(str(table)) == {4711} and facts.locked_inodes(str(tmp_path / "none")) == set()


def test_a_benchmark_is_finished_when_all_is_played(index, root):
    run = view_runs.benchmark(root)
    view_runs.age(run)
    index.refresh()
    assert run_of(index, "bench")["state"] == "finished" and run_of(index, "bench")["score"] > 0
    (run / "manifest.json").write_text(
        json.dumps({"schema": "mapo.empa/1", "scenarios": {"a": 1}, "repeats": 9})
    )
    view_runs.age(run)
    index.refresh()
    assert run_of(index, "bench")["state"] == "stopped"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xff", b"[" * 100_000, b'{"step": 1e999}', b"null", b"9" * 9000]
)
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "summary.json",
        "result.json",
        "best.json",
        "metrics.jsonl",
        "config.toml",
        "ledger.json",
    ],
)
def test_any_small_file_may_be_damaged(index, root, client, name, content):
    run = view_runs.training(root, steps=1)
    (run / name).write_bytes(content)
    index.refresh()
    assert client.get("/").status_code == 200 and client.get("/benchmarks").status_code == 200
    answer = client.get("/run/first")
    assert answer.status_code == 200 and client.get("/api/figures?run=first").status_code == 200
    if content in (b"{", b"[1]") and name not in ("ledger.json", "metrics.jsonl"):
        assert "incomplete or damaged" in answer.text or name == "config.toml"


def test_values_of_the_wrong_kind_are_left_out(index, root, client):
    run = view_runs.training(root, steps=1)
    line = {
        **view_runs.metrics_line(2),
        "score": "high",
        "grad_norm": 10**400,
        "reward": True,
        "entropy": [1],
        "turns": None,
    }
    odd = [{"step": 10**400}, {"step": True}, {"step": "3"}, {"score": 1}]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(x) + "\n" for x in [view_runs.metrics_line(1), line, *odd])
    )
    summary = {
        "method": ["mapo"],
        "model": {"a": 1},
        "seed": 1.5,
        "before": {"epm_q": "x"},
        "after": {"epm_q": 3, "interval": 7},
    }
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "result.json").write_text(
        json.dumps({"scores": {"a": "x", "b": None}, "intervals": [], "notes": 3, "details": [1]})
    )
    (run / "ledger.json").write_text(json.dumps({"rows": [1, {"role": 1, "calls": "x", "cost": 10**400}]}))
    index.refresh()
    assert run_of(index)["after"]["epm_q"] == 3 and run_of(index)["before"] is None
    assert client.get("/run/first").status_code == 200
    assert client.get("/api/figures?run=first").json()["grad_norm"]["data"][0]["x"] == [1]


def test_foreign_files_are_named(index, root, client):
    run = view_runs.training(root, steps=1)
    (run / "notes.docx").write_bytes(b"PK")
    (run / "dialogues" / "readme.md").write_text("hello")
    (run / "eval" / "stray.jsonl").write_text("{}")
    index.refresh()
    page = client.get("/run/first").text
    assert "notes.docx" in page and "dialogues/readme.md" in page


def test_long_curves_are_thinned():
    from mapo.view.pages.charts import POINTS, _thinned

    assert _thinned(list(range(10))) == list(range(10))
    found = _thinned(list(range(10 * POINTS + 3)))
    assert len(found) <= POINTS + 1 and found[0] == 0 and found[-1] == 10 * POINTS + 2
    assert facts.thinned([float(i) for i in range(1000)], 48)[-1] == 999.0


def test_only_known_columns_are_asked_for(index):
    from mapo.view.index import sets

    with index.reading() as db:
        with pytest.raises(ValueError):
            queries.means_by_step(db, "r", "train", "id; DROP TABLE runs")
        with pytest.raises(ValueError):
            sets.by_group(db, "r|p", "id")


def test_the_score_of_a_set_is_that_of_mapo_score(index, root):
    from mapo.scoring.score import score

    run = view_runs.benchmark(root)
    index.refresh()
    mean = sum(row["epm_q"] for row in rows(index)) / 3
    assert mean == pytest.approx(score(run).models[0].score.composite.epm_q)
    assert run_of(index, "bench")["score"] == pytest.approx(mean)


def test_states_that_fit_no_rubric_have_no_score(index, root):
    from dataclasses import replace

    said = view_runs.talk(EMPATHY, "a_1")
    flat = replace(said.turns[0], state=replace(said.turns[0].state, position=(1.0,)))
    huge = replace(said.turns[0], state=replace(said.turns[0].state, position=(1e308,) * 3, energy=1e308))
    made = [replace(said, id=str(i), turns=(turn, *said.turns[1:])) for i, turn in enumerate((flat, huge))]
    made.append(replace(said, id="nothing", turns=(replace(said.turns[0], levels=None, reward=None),)))
    made.append(replace(said, id="above", start=(5.0, 5.0, 5.0)))
    view_runs.write_lines(root / "r" / "dialogues" / "step_00001.jsonl", made)
    index.refresh()
    one, other, *rest = [row["epm_q"] for row in rows(index)]
    assert one is None and rest == [None, None] and 0 <= other < 1000


def test_folders_and_files_that_cannot_be_read(index, root, client, monkeypatch):
    run = view_runs.training(root, steps=1)
    (root / "locked").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith(("locked", "after", "dialogues")):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(files.os, "scandir", scandir)
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 100)
    (run / "result.json").write_text(json.dumps({"scores": {"a": 1}, "pad": "x" * 200}))
    index.refresh()
    page = client.get("/run/first").text
    assert "dialogues cannot be read (Permission denied)" in page and "larger than" in page
    with pytest.raises(OSError, match="not a regular file"):
        reading.open_plain(root)


def test_a_rubric_of_its_own_is_used(index, root):
    from dataclasses import replace
    from importlib.resources import files as resources

    text = resources("mapo.domains.empathy").joinpath("rubric.toml").read_text(encoding="utf-8")
    mine = replace(view_runs.talk(EMPATHY, "a_1"), rubric="mine")
    view_runs.write_lines(root / "r" / "dialogues" / "a.jsonl", [mine])
    (root / "r" / "rubric.toml").write_text(text.replace('name = "empathy"', 'name = "mine"', 1))
    index.refresh()
    assert rows(index)[0]["epm_q"] is not None


def test_a_reply_without_log_probs_and_without_a_tokenizer_library(root, index, monkeypatch):
    import sys

    from mapo import Reply
    from mapo.types import Turn
    from mapo.view.pages import transcript

    run = view_runs.training(root, steps=1)
    (run / "checkpoints" / "step_00001").mkdir(parents=True)
    (run / "checkpoints" / "step_00001" / "tokenizer.json").write_text("{}")
    index.refresh()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    told = transcript.tokens_of(Turn("u", Reply("r", token_ids=(2**40,))), index.runs["first"])
    assert told == {"tokens": [{"ids": [2**40], "text": f"#{2**40}", "logprob": None}], "next": None}


def test_one_bad_rubric_costs_no_other_run(index, root):
    bad = view_runs.training(root, "bad", steps=1)
    (bad / "rubric.toml").write_text("x = " + "[" * 5000)
    view_runs.training(root, "good", steps=1)
    index.refresh()
    assert len(rows(index, "run = 'bad'")) == len(rows(index, "run = 'good'")) == 15


def test_a_run_that_cannot_be_made_sense_of_costs_no_other(index, root, monkeypatch):
    view_runs.training(root, "bad", steps=1)
    view_runs.training(root, "good", steps=1)
    real_take, real_facts = indexing.Index._add, indexing.facts_of

    def take(self, number, run, *rest):
        if run.key == "bad":
            raise RecursionError("too deep")
        real_take(self, number, run, *rest)

    monkeypatch.setattr(indexing.Index, "_add", take)
    monkeypatch.setattr(indexing, "facts_of", lambda run: 1 / 0 if run.key == "worse" else real_facts(run))
    view_runs.training(root, "worse", steps=1)
    index.refresh()
    assert len(rows(index, "run = 'good'")) == 15
    assert ["dialogues", "reading stopped (RecursionError: too deep)"] in run_of(index, "bad")["problems"]
    assert run_of(index, "worse")["problems"] == [["the run", "ZeroDivisionError: division by zero"]]


def test_a_passing_read_error_does_not_stick(index, root, monkeypatch):
    run = view_runs.training(root, steps=1)
    real, closed = reading.open_plain, ["step_00001.jsonl", "summary.json"]

    def no(path):
        if path.name in closed:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(reading, "open_plain", no)
    monkeypatch.setattr(indexing, "open_plain", no)
    index.refresh()
    assert ["summary.json", "cannot be read (Permission denied)"] in run_of(index)["problems"]
    assert [p["problem"] for p in problems(index)] == ["cannot be read (Permission denied)"]
    assert not index.refresh()  # no news, though it is tried again
    closed.clear()
    assert index.refresh() and run_of(index)["problems"] == [] and problems(index) == []
    assert len(rows(index, "part = 'train'")) == 6 and run_of(index)["score"] == 35.5
    closed.append("step_00001.jsonl")
    view_runs.write_lines(run / "dialogues" / closed[0], [view_runs.talk(EMPATHY, "new_1", step=1)])
    index.refresh()
    assert len(problems(index)) == 1 and len(rows(index, "part = 'train'")) == 6
    closed.clear()
    index.refresh()
    assert problems(index) == [] and len(rows(index, "part = 'train'")) == 7
