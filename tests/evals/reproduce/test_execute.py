"""Running stages: real commands in processes of their own, resumable."""

from __future__ import annotations

import asyncio
import json

import pytest

from mapo.errors import InputError
from mapo.evals.reproduce.execute import StageFiles, StageRunner
from mapo.evals.reproduce.stages import Stage


def stage(tmp_path, name, *arguments, after=(), identity=("x",)):
    return Stage(name, "export", tmp_path / name, arguments, identity, after)


def run(tmp_path, stages):
    runner = StageRunner(tmp_path, stages)
    asyncio.run(runner.run())
    return runner


def test_a_finished_stage_is_not_run_again(tmp_path):
    stages = [stage(tmp_path, "one", "--version"), stage(tmp_path, "two", "--version", after=("one",))]
    assert not run(tmp_path, stages).failed
    log = tmp_path / "logs" / "one.log"
    written = log.read_bytes()
    assert written.strip()
    again = run(tmp_path, stages)
    assert not again.todo
    assert again.done == 2
    assert log.read_bytes() == written


def test_a_failed_stage_stops_only_the_stages_that_need_it(tmp_path):
    missing = str(tmp_path / "nothing")
    stages = [
        stage(tmp_path, "bad", "score", missing),
        stage(tmp_path, "needs", "--version", after=("bad",)),
        stage(tmp_path, "other", "--version"),
    ]
    runner = run(tmp_path, stages)
    assert set(runner.failed) == {"bad", "needs"}
    assert "nothing" in runner.failed["bad"]
    assert runner.failed["needs"] == "needs bad, which failed"
    files = StageFiles(tmp_path)
    assert [files.finished(each) for each in stages] == [False, False, True]


def test_a_stage_with_other_settings_is_refused(tmp_path):
    run(tmp_path, [stage(tmp_path, "one", "--version")])
    with pytest.raises(InputError, match="other settings"):
        StageRunner(tmp_path, [stage(tmp_path, "one", "--version", identity=("y",))])


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "mapo.stage/1"}', "[" * 100_000])
def test_a_damaged_record_is_one_clear_error(tmp_path, text):
    record = tmp_path / "stages" / "one.json"
    record.parent.mkdir()
    record.write_text(text)
    with pytest.raises(InputError, match="cannot be read"):
        StageRunner(tmp_path, [stage(tmp_path, "one", "--version")])


def test_a_stopped_stage_is_not_finished_and_counts_its_time(tmp_path):
    sleeping = [stage(tmp_path, "slow", "view", str(tmp_path), "--port", "0")]

    async def stop() -> None:
        runner = StageRunner(tmp_path, sleeping)
        task = asyncio.create_task(runner.run())
        record = StageFiles(tmp_path).path(sleeping[0])
        while not record.exists():
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop())
    record = json.loads(StageFiles(tmp_path).path(sleeping[0]).read_text())
    assert record["finished"] is False
    assert record["seconds"] > 0.9


def test_an_export_that_was_killed_after_it_appeared_is_finished(tmp_path):
    exported = stage(tmp_path, "model", "export", str(tmp_path / "nothing"), "--out", str(tmp_path / "model"))
    exported.folder.mkdir()
    assert not run(tmp_path, [exported]).failed
    assert StageFiles(tmp_path).finished(exported)
