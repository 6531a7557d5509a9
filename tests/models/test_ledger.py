"""The ledger: counts, cost, snapshots."""

from __future__ import annotations

import json
import os
import threading

import pytest

from mapo.errors import InputError, RecordError, StoreError
from mapo.models.chat import Usage
from mapo.models.ledger import Ledger


def test_rows_add_up_per_role_and_model():
    ledger = Ledger()
    ledger.add("user", "m", calls=1, usage=Usage(100, 40, 10), seconds=0.5)
    ledger.add("judge", "m", calls=1, retries=2, usage=Usage(5, 0, 1))
    ledger.add("user", "m", calls=1, failures=1, seconds=0.25)
    ledger.add("user", "m", hits=3)
    judge, user = ledger.as_rows()
    assert judge["role"] == "judge" and judge["retries"] == 2
    known = {"role": "user", "model": "m", "calls": 2, "hits": 3, "retries": 0, "failures": 1}
    assert user == known | {"prompt": 100, "cached": 40, "completion": 10, "seconds": 0.75, "cost": None}


def test_cost_is_fresh_prompt_plus_cached_prompt_plus_completion():
    # (600 * 2 + 400 * 0.5 + 100 * 8) / 1e6
    ledger = Ledger({"m": (2.0, 0.5, 8.0)})
    ledger.add("judge", "m", calls=1, usage=Usage(prompt=1000, cached=400, completion=100))
    assert ledger.as_rows()[0]["cost"] == pytest.approx(0.0022)
    assert ledger.total_cost == pytest.approx(0.0022)


def test_without_a_price_the_cost_is_unknown_not_zero():
    ledger = Ledger({"m": (2.0, 0.5, 8.0)})
    assert ledger.total_cost == 0.0
    ledger.add("user", "local", hits=5)
    assert ledger.total_cost == 0.0  # nothing was paid for
    ledger.add("user", "local", calls=1, usage=Usage(1, 0, 1))
    assert ledger.total_cost is None


@pytest.mark.parametrize("price", [(1.0, 2.0), (1.0, -1.0, 2.0), (1.0, float("nan"), 2.0)])
def test_bad_prices_are_refused(price):
    with pytest.raises(InputError, match="prices, m"):
        Ledger({"m": price})


def test_threads_lose_no_counts():
    ledger = Ledger()

    def work():
        for _ in range(2000):
            ledger.add("user", "m", calls=1, usage=Usage(1, 1, 1))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [row] = ledger.as_rows()
    assert row["calls"] == row["prompt"] == row["completion"] == 16000


def test_a_snapshot_is_gone_on_from(tmp_path):
    path = tmp_path / "run" / "ledger.json"
    ledger = Ledger({"m": (1.0, 1.0, 1.0)})
    ledger.add("judge", "m", calls=2, usage=Usage(10, 0, 5), seconds=1.5)
    ledger.flush(path)
    ledger.flush(path)
    assert json.loads(path.read_text())["rows"] == ledger.as_rows()
    later = Ledger.load(path, {"m": (1.0, 1.0, 1.0)})
    assert later.as_rows() == ledger.as_rows()
    later.add("judge", "m", calls=1)
    assert later.as_rows()[0]["calls"] == 3
    assert [p.name for p in path.parent.iterdir()] == ["ledger.json"]


def test_no_snapshot_is_an_empty_ledger(tmp_path):
    assert Ledger.load(tmp_path / "none.json").as_rows() == []


ROW = {"role": "r", "model": "m", "calls": 1, "hits": 0, "retries": 0, "failures": 0}
ROW |= {"prompt": 1, "cached": 0, "completion": 1, "seconds": 0.1}


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            "[]",
            "{",
            '{"schema": "mapo.ledger/9", "rows": []}',
            '{"schema": "mapo.ledger/1", "rows": [{}]}',
        ],
        json.dumps({"schema": "mapo.ledger/1", "rows": [{**ROW, "calls": "many"}]}),
        json.dumps({"schema": "mapo.ledger/1", "rows": [{**ROW, "prompt": -1}]}),
    ],
)
def test_a_damaged_snapshot_is_reported(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(RecordError, match="not a ledger"):
        Ledger.load(path)


# ---- the journal


def journal_of(path):
    return path.with_name("ledger.json-journal")


def test_what_came_after_the_snapshot_is_in_the_journal(tmp_path):
    path = tmp_path / "run" / "ledger.json"
    ledger = Ledger.load(path, journal=True)
    ledger.add("judge", "m", calls=1, usage=Usage(10, 0, 5))
    assert Ledger.load(path).as_rows() == ledger.as_rows()  # as a kill would leave it
    ledger.flush(path)
    assert not journal_of(path).exists()
    ledger.add("judge", "m", calls=1, retries=2, seconds=0.5)
    ledger.add("user", "m", hits=1)
    with open(journal_of(path), "ab") as file:
        file.write(b'[9, "judge", "m", {"ca')  # torn
    later = Ledger.load(path, journal=True)
    assert later.as_rows() == ledger.as_rows() and not journal_of(path).exists()
    later.add("user", "m", hits=1)
    assert Ledger.load(path).as_rows() == later.as_rows() != ledger.as_rows()


def test_a_kill_between_snapshot_and_journal_counts_nothing_twice(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger.load(path, journal=True)
    ledger.add("judge", "m", calls=1)
    before = journal_of(path).read_bytes()
    ledger.flush(path)
    journal_of(path).write_bytes(before)  # the snapshot was replaced, the journal not yet
    assert Ledger.load(path).as_rows() == ledger.as_rows()
    elsewhere = tmp_path / "other.json"
    ledger.add("judge", "m", calls=1)
    ledger.flush(elsewhere)  # a copy leaves the journal alone
    assert Ledger.load(path).as_rows() == ledger.as_rows()


@pytest.mark.parametrize("line", ["{", "[1, 2]", '[1, "r", "m", {"calls": -1}]', '[1, "r", "m", {"no": 1}]'])
def test_a_damaged_journal_is_reported(tmp_path, line):
    journal_of(tmp_path / "ledger.json").write_text(f"{line}\n")
    with pytest.raises(RecordError, match="not a ledger"):
        Ledger.load(tmp_path / "ledger.json")


def test_a_journal_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    ledger = Ledger.load(tmp_path / "file" / "ledger.json", journal=True)
    with pytest.raises(StoreError, match="cannot be written"):
        ledger.add("judge", "m", calls=1)


def test_an_absurd_number_in_a_ledger_is_refused_when_it_is_read(tmp_path):
    row = {
        "role": "judge",
        "model": "m",
        "calls": 1,
        "hits": 0,
        "retries": 0,
        "failures": 0,
        "prompt": 10**400,
    }
    row |= {"cached": 0, "completion": 0, "seconds": 0.0}
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps({"schema": "mapo.ledger/1", "entries": 1, "rows": [row]}))
    with pytest.raises(RecordError, match="not a ledger"):
        Ledger.load(path, {"m": (1.0, 1.0, 1.0)})


@pytest.mark.parametrize("name", ["ledger.json", "ledger.json-journal"])
def test_a_ledger_that_is_a_pipe_or_nested_deeply_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(RecordError, match="not a regular file"):
        Ledger.load(tmp_path / "ledger.json")
    (tmp_path / name).unlink()
    (tmp_path / name).write_text("[" * 100_000 + "\n")
    with pytest.raises(RecordError, match="nested too deeply"):
        Ledger.load(tmp_path / "ledger.json")


def test_entries_are_not_appended_through_a_link(tmp_path):
    ledger = Ledger.load(tmp_path / "ledger.json", journal=True)
    (tmp_path / "ledger.json-journal").symlink_to(tmp_path / "of_the_user.txt")
    with pytest.raises(StoreError, match="symbolic link"):
        ledger.add("user", "m", calls=1)
    assert not (tmp_path / "of_the_user.txt").exists()
