"""What the benchmarks share: items at once, each on disk before it counts, failed ones again, the result."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from mapo.errors import AnswerError, ContextError, EndpointError, InputError, RecordError, StoreError
from mapo.evals.items import PreviousItems, conversation, prepare, run_items, seed_of
from mapo.evals.summary import Scored, summarise, write_result
from mapo.models.ledger import Ledger
from mapo.runs.claim import claim
from mapo.store import RunDir
from mapo.testing.fakes import FakeChat


@dataclass(frozen=True)
class Thing:
    id: str


def things(n: int) -> list[Thing]:
    return [Thing(f"t{i}") for i in range(n)]


def go(out, items, solve, **kw):
    return asyncio.run(run_items(out, items, solve, **kw))


def lines_of(out) -> list[dict]:
    return [json.loads(line) for line in RunDir(out).items.read_text().splitlines()]


async def doubled(item: Thing, attempt: int) -> dict:
    await asyncio.sleep(0)
    return {"said": item.id * 2, "again": attempt}


# ---- items


def test_every_item_is_on_disk_before_it_counts(tmp_path):
    seen = []

    def done(line):
        assert line in lines_of(tmp_path)
        seen.append(line["id"])

    found = go(tmp_path, things(7), doubled, on_done=done, concurrency=3)
    assert sorted(seen) == sorted(found) == [f"t{i}" for i in range(7)]
    line = found["t3"]
    assert line == {
        "schema": "mapo.item/1",
        "id": "t3",
        "attempt": 0,
        "error": None,
        "said": "t3t3",
        "again": 0,
    }


def test_no_more_at_once_than_allowed(tmp_path):
    now, peak = 0, 0

    async def solve(item, attempt):
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.001)
        now -= 1
        return {}

    go(tmp_path, things(20), solve, concurrency=4)
    assert peak == 4


@pytest.mark.parametrize("kind", [EndpointError, AnswerError, ContextError])
def test_a_failed_item_is_recorded_and_tried_again(tmp_path, kind):
    broken = {"t1"}
    attempts = []

    async def solve(item, attempt):
        attempts.append((item.id, attempt))
        if item.id in broken:
            raise kind("the line is dead", where="endpoint", fix="Wait")
        return {}

    prepare(tmp_path, {"a": 1}, resume=False)
    claim(tmp_path, {"a": 1})
    first = go(tmp_path, things(3), solve)
    assert sorted(first) == ["t0", "t2"]
    failed = [line for line in lines_of(tmp_path) if line["error"]]
    assert [line["id"] for line in failed] == ["t1"] and "the line is dead. Wait" in failed[0]["error"]
    kept = prepare(tmp_path, {"a": 1}, resume=True)
    assert sorted(kept.finished) == ["t0", "t2"] and kept.failed == Counter({"t1": 1})
    broken.clear()
    assert sorted(go(tmp_path, things(3), solve, previous=kept)) == ["t0", "t1", "t2"]
    assert attempts[3:] == [("t1", 1)]
    assert prepare(tmp_path, {"a": 1}, resume=True).finished["t1"]["attempt"] == 1


def test_an_error_that_is_no_items_fault_stops_the_run_and_loses_nothing(tmp_path):
    cancelled = []

    async def solve(item, attempt):
        if item.id == "t2":
            raise StoreError("the disk is full")
        if item.id > "t2":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(item.id)
                raise
        return {}

    with pytest.raises(StoreError, match="the disk is full"):
        go(tmp_path, things(9), solve, concurrency=4)
    assert [line["id"] for line in lines_of(tmp_path)] == ["t0", "t1"]
    assert cancelled  # the others were stopped, not left behind
    assert len(go(tmp_path, things(2), doubled)) == 2  # the file is free again


def test_a_run_in_which_most_items_fail_stops_early(tmp_path):
    async def solve(item, attempt):
        raise EndpointError("no connection", fix="Is a server running?")

    with pytest.raises(
        EndpointError, match="40 of 40 items failed, the last one with: no connection.*--resume"
    ):
        go(tmp_path, things(500), solve)
    assert 40 <= len(lines_of(tmp_path)) <= 40 + 32  # those in flight may still have ended


def test_a_run_that_is_nearly_over_is_not_stopped(tmp_path):
    async def solve(item, attempt):
        raise EndpointError("no connection")

    assert go(tmp_path, things(9), solve) == {} and len(lines_of(tmp_path)) == 9


@pytest.mark.parametrize(("items", "seen"), [(45, 9), (171, 34), (800, 40), (10, 5)])
def test_a_small_benchmark_stops_after_a_fifth(tmp_path, items, seen):
    async def solve(item, attempt):
        raise EndpointError("no connection", fix="Is a server running at http://x/v1?")

    message = rf"{seen} of {seen} items failed, the last one with: no connection. Is a server"
    with pytest.raises(EndpointError, match=message):
        go(tmp_path, things(items), solve, concurrency=1)
    assert len(lines_of(tmp_path)) == seen


def test_answers_that_cannot_be_used_are_a_finding_and_no_reason_to_stop(tmp_path):
    async def solve(item, attempt):
        raise AnswerError("no marks in it")

    assert go(tmp_path, things(45), solve, concurrency=1) == {} and len(lines_of(tmp_path)) == 45


def test_half_of_the_items_may_fail(tmp_path):
    async def solve(item, attempt):
        if int(item.id[1:]) % 2:
            raise EndpointError("now and then")
        return {}

    assert len(go(tmp_path, things(200), solve, concurrency=1)) == 100


def test_two_items_of_one_id_are_refused_before_anything_is_asked(tmp_path):
    with pytest.raises(InputError, match="the same id"):
        go(tmp_path, [Thing("a"), Thing("a")], doubled)
    assert not RunDir(tmp_path).items.exists()


def test_two_runs_cannot_write_into_one_folder(tmp_path):
    async def solve(item, attempt):
        with pytest.raises(StoreError, match="another process is writing"):
            await run_items(tmp_path, things(1), doubled)
        return {}

    assert go(tmp_path, things(1), solve)


def test_damaged_lines_are_reported_and_run_again(tmp_path):
    claim(tmp_path, {})
    go(tmp_path, things(3), doubled)
    file = RunDir(tmp_path).items
    whole = file.read_text().splitlines()
    file.write_text("\n".join([whole[0], '{"schema": "other/1"}', '{"torn', whole[1], whole[2][:20]]))
    kept = prepare(tmp_path, {}, resume=True)
    assert sorted(kept.finished) == ["t0", "t1"] and len(kept.bad) == 3
    assert (
        "not a record of schema 'mapo.item/1'" in kept.bad[0]
        and "line 3" in kept.bad[1]
        and "torn" in kept.bad[2]
    )
    assert len(go(tmp_path, things(3), doubled, previous=kept)) == 3


def test_a_run_is_not_resumed_as_another(tmp_path):
    prepare(tmp_path, {"model": "a"}, resume=False)
    assert not list(tmp_path.iterdir())  # nothing is written before the run can start
    claim(tmp_path, {"model": "a"})
    claim(tmp_path, {"model": "b"})  # it is claimed once
    with pytest.raises(InputError, match="holds a run already"):
        prepare(tmp_path, {"model": "a"}, resume=False)
    with pytest.raises(InputError, match="model: 'a' there, 'b' here"):
        prepare(tmp_path, {"model": "b"}, resume=True)
    assert prepare(tmp_path, {"model": "a"}, resume=True) == PreviousItems({}, Counter(), [], {})


def test_a_conversation_is_closed_whatever_happens():
    class Seat(FakeChat):
        ended = 0

        def end_dialogue(self):
            self.ended += 1

    seat = Seat(["hello"])
    with pytest.raises(EndpointError), conversation(lambda name: seat, "t0"):
        raise EndpointError("gone")
    assert seat.ended == 1
    plain = FakeChat(["hello"])
    with conversation(lambda name: plain, "t0") as chat:  # an endpoint holds nothing
        assert chat is plain


def test_seeds_follow_from_their_parts():
    assert seed_of(0, "a", 1) == seed_of(0, "a", 1) != seed_of(0, "a", 2)
    assert seed_of("ab", "c") != seed_of("a", "bc")


# ---- the result


def test_means_and_means_of_means():
    """Overall = (EA + EU) / 2, whatever the number of items of each."""
    items = [Scored("a", {"EA": 1.0}), Scored("b", {"EA": 0.0}), Scored("c", {"EU": 1.0})]
    items += [Scored("d", {"EA": 1.0})]
    scores, intervals = summarise(items, {"Overall": ("EA", "EU"), "All": ("EA", "missing")})
    assert scores == {"EA": pytest.approx(2 / 3), "EU": 1.0, "Overall": pytest.approx(5 / 6)}
    assert set(intervals) == set(scores)


def test_intervals_are_of_the_bootstrap_over_items():
    """95 % of the mean of n coins: about p +- 1.96 sqrt(p (1 - p) / n)."""
    items = [Scored(f"i{i}", {"x": float(i % 4 == 0)}) for i in range(400)]
    low, high = summarise(items)[1]["x"]
    half = 1.96 * np.sqrt(0.25 * 0.75 / 400)
    assert (low, high) == pytest.approx((0.25 - half, 0.25 + half), abs=0.006)


def test_items_of_one_group_are_resampled_together():
    """Two copies of each item say no more than one: the interval stays as wide."""
    once = [Scored(f"{i}", {"x": float(i % 2)}, f"g{i}") for i in range(100)]
    twice = [*once, *(Scored(f"{s.id}-zh", s.scores, s.group) for s in once)]
    assert summarise(twice) == summarise(once)
    apart = [Scored(s.id, s.scores) for s in twice]
    widths = [np.diff(summarise(part)[1]["x"])[0] for part in (twice, apart)]
    assert widths[0] / widths[1] == pytest.approx(np.sqrt(2), rel=0.1)


def test_every_resample_holds_as_many_of_each_kind():
    """EA and EU are drawn apart, so Overall varies as the mean of two independent means."""
    items = [Scored(f"{kind}{i}", {kind: float(i % 2)}, stratum=kind) for kind in "xy" for i in range(100)]
    scores, intervals = summarise(items, {"both": ("x", "y")})
    assert scores == {"x": 0.5, "y": 0.5, "both": 0.5}
    widths = {name: high - low for name, (low, high) in intervals.items()}
    assert widths["both"] == pytest.approx(widths["x"] / np.sqrt(2), rel=0.1)
    # few enough that a kind would be missing now and then, were they drawn from one pot
    few = [Scored(f"{kind}{i}", {kind: float(i)}, stratum=kind) for kind in "xy" for i in range(6)]
    assert None not in summarise(few, {"both": ("x", "y")})[1].values()
    found = summarise(few[:7], {"both": ("x", "y")})[1]
    assert found["x"] is not None and (found["y"], found["both"]) == (None, None)


def test_too_few_items_have_no_interval():
    assert summarise([]) == ({}, {})
    alike = summarise([Scored(str(i), {"x": 1.0, "y": i % 2}) for i in range(50)])[1]
    assert alike["x"] is None and alike["y"] is not None
    assert summarise([Scored(str(i), {"y": i % 2}) for i in range(5)])[1] == {"y": None}
    assert summarise([Scored("a", {"x": 1.0})]) == ({"x": 1.0}, {"x": None})
    # with one item of y among two, some resamples hold none of it
    scores, intervals = summarise([Scored("a", {"x": 1.0}), Scored("b", {"y": 1.0})])
    assert scores == {"x": 1.0, "y": 1.0} and intervals == {"x": None, "y": None}


def test_the_result_says_what_is_missing(tmp_path):
    known = {"benchmark": "b", "model": "m", "settings": {"seed": 0}, "scores": {"x": 0.5}}
    items = [Scored("a", {"x": 0.5})]
    told = write_result(tmp_path, items=items, of=3, intervals={"x": None}, notes=["cut"], **known)
    assert told == json.loads((tmp_path / "result.json").read_text())
    assert told["schema"] == "mapo.result/1" and told["judge"] is None
    assert (told["n"], told["of"], told["complete"]) == (1, 3, False)
    assert told["notes"] == ["incomplete: 2 of 3 items have no score; reasons: items.jsonl", "cut"]
    assert told["items"] == [{"id": "a", "scores": {"x": 0.5}}]
    assert told["parts"] == {} and told["limit"] is None
    whole = write_result(tmp_path, items=items, of=1, intervals={"x": (0.4, 0.6)}, judge="j", **known)
    assert whole["complete"] and not whole["notes"] and whole["judge"] == "j"
    assert [f.name for f in tmp_path.iterdir()] == ["result.json"]


def test_each_score_says_how_many_items_it_is_of(tmp_path):
    known = {"benchmark": "b", "model": "m", "settings": {}, "scores": {"x": 0.5}, "intervals": {}}
    items = [Scored("a", {"x": 0.5}), Scored("b", {"y": 0.5}), Scored("c", {"y": 0.5})]
    told = write_result(tmp_path, items=items, of=7, parts={"x": 4, "y": 2, "z": 1}, **known)
    assert told["parts"] == {"x": {"n": 1, "of": 4}, "y": {"n": 2, "of": 2}, "z": {"n": 0, "of": 1}}


def test_a_part_of_the_items_has_no_score(tmp_path):
    known = {"benchmark": "b", "model": "m", "settings": {}, "scores": {"x": 0.5}}
    items = [Scored("a", {"x": 0.5})]
    ends = {"x": (0.4, 0.6)}
    part = write_result(tmp_path, items=items, of=3, intervals=ends, limit=1, **known)
    assert (part["scores"], part["intervals"], part["complete"], part["limit"]) == ({}, {}, False, 1)
    assert part["notes"] == ["partial: only the first 1 of 3 items were run, so there is no score"]
    lacks = write_result(tmp_path, items=items, of=3, intervals=ends, limit=2, **known)
    assert lacks["notes"][0] == "incomplete: 1 of 2 items have no score; reasons: items.jsonl"
    whole = write_result(tmp_path, items=items, of=1, intervals=ends, limit=5, **known)
    assert whole["complete"] and whole["limit"] is None and whole["scores"] == {"x": 0.5}


def test_a_number_that_is_none_is_not_written(tmp_path):
    known = {"benchmark": "b", "model": "m", "settings": {}, "of": 0, "items": [], "intervals": {}}
    with pytest.raises(ValueError, match="JSON"):
        write_result(tmp_path, scores={"x": np.nan}, **known)
    assert not (tmp_path / "result.json").exists()


def test_what_a_kill_leaves_behind_does_not_block_the_folder(tmp_path):
    cache = ("cache.sqlite", "cache.sqlite-wal", "cache.sqlite-shm")
    for name in (*cache, ".manifest.json.77.tmp", "ledger.json", "ledger.json-journal"):
        (tmp_path / name).write_text("{")
    prepare(tmp_path, {"model": "a"}, resume=False)
    other = tmp_path / "other"
    other.mkdir()
    (other / ".notes.tmp").write_text("mine")
    with pytest.raises(InputError, match="is not empty and is not a run"):
        prepare(other, {"model": "a"}, resume=False)


@pytest.mark.parametrize("name", ["manifest.json", "items.jsonl", "ledger.json", "ledger.json-journal"])
@pytest.mark.parametrize("kind", ["pipe", "device", "nested"])
def test_odd_files_in_a_folder_to_resume_are_refused_at_once(tmp_path, name, kind):
    """A downloaded folder, say. Reading a pipe would wait forever; a device may fill the memory."""
    run, settings = RunDir(tmp_path), {"schema": "mapo.test/1"}
    if name != "manifest.json":
        claim(tmp_path, settings)
    file = tmp_path / name
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/null")
    else:
        file.write_bytes(b"[" * 100_000 + b"\n")
    if name == "items.jsonl" and kind == "nested":
        assert len(prepare(tmp_path, settings, resume=True).bad) == 1
        return
    with pytest.raises((InputError, RecordError)):  # noqa: PT012 (which of the two depends on the file)
        prepare(tmp_path, settings, resume=True)
        Ledger.load(run.ledger_of(), journal=True)
