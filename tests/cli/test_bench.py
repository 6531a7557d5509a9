"""mapo eval emobench and eqbench as a person uses them: tried on a few items, stopped, started badly."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time

import pytest
import typer

from mapo.cli.common import options
from mapo.cli.common.stop import resume_command, until_stopped
from mapo.evals.emobench.data import load
from mapo.evals.eqbench import data as eqbench_data
from mapo.evals.items import read_previous
from mapo.scenarios.sets import load_scenarios
from mapo.testing.server import LoopbackServer
from support import small_run as small
from support.command import mapo
from support.emobench_files import Student
from support.emobench_files import write as write_emobench
from support.eqbench_files import Script, child, made_up, shared, write  # noqa: F401
from support.eqbench_files import question as question_of


def result_of(out):
    return json.loads((out / "result.json").read_text())


def calls_in(out) -> int:
    return sum(row["calls"] for row in json.loads((out / "ledger.json").read_text())["rows"])


def emobench(data, out, url, *more):
    known = ("--model=m", f"--data={data}", f"--base-url={url}", "--allow-changed-data", f"--out={out}")
    return ("eval", "emobench", *known, *more)


def eqbench(data, out, url, *more):
    known = (f"--data={data}", "--model=policy", f"--base-url={url}", "--judge-model=judge", f"--out={out}")
    return ("eval", "eqbench", *known, "--concurrency=3", *more)


# ---- stopped by hand


def until(script: Script, many: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while len(script.held) < many and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    assert len(script.held) >= many, process.communicate()


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_hand_it_says_what_is_kept_and_how_to_go_on(made_up, tmp_path, sign, status):  # noqa: F811
    out, script = tmp_path / "a run", Script(hold=9)
    with LoopbackServer(script) as server:
        args = eqbench(made_up, out, server.base_url, "--concurrency=1")
        process = child(*args)
        until(script, 1, process)
        process.send_signal(sign)
        script.hold = None
        _, told = process.communicate(timeout=60)
        assert process.returncode == status and "Traceback" not in told
        kept = len(read_previous(out).finished)
        assert kept and f"stopped; {kept} of 5 items are finished; resume with: mapo eval eqbench" in told
        line = told.splitlines()[-1]
        assert line.endswith("--resume") and f"'--out={out}'" in line  # as it can be pasted
        assert "items: 0/5" in told  # plain lines where there is no terminal
        done = mapo(*args, "--resume")
        assert done.returncode == 0 and result_of(out)["complete"]
        again = mapo(*args, "--resume")
        assert again.returncode == 0


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_status_tells_which_signal_it_was(tmp_path, capsys, sign, status):
    async def work():
        signal.raise_signal(sign)
        await asyncio.sleep(30)

    with pytest.raises(typer.Exit) as stop:
        until_stopped(work(), tmp_path, lambda: "nothing is kept")
    assert stop.value.exit_code == status
    assert "stopped; nothing is kept; resume with: mapo" in capsys.readouterr().err


def test_a_stop_is_answered_at_once_and_another_signal_after_it_changes_nothing(tmp_path, capfd):
    async def work():
        signal.raise_signal(signal.SIGTERM)
        assert "Stopping cleanly; send SIGTERM again" in capfd.readouterr().err
        signal.raise_signal(signal.SIGINT)  # as from those who send one after the other
        assert "Stopping" not in capfd.readouterr().err
        await asyncio.sleep(30)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as stop:
        until_stopped(work(), tmp_path, lambda: "nothing is kept")
    assert stop.value.exit_code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


BUSY = """
import asyncio, time, sys
from pathlib import Path
from mapo.cli.common.stop import until_stopped

def compute():
    print("begun", flush=True)
    time.sleep(60)

async def work():  # as the sampler does: a thread that computes, waited for when all is over
    await asyncio.get_running_loop().run_in_executor(None, compute)

until_stopped(work(), Path("."), lambda: "nothing is kept", "again")
"""


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_same_signal_again_does_not_wait_for_threads(tmp_path, sign, status):
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(sign)
    how = "press Ctrl-C" if sign == signal.SIGINT else "send SIGTERM"
    lines = process.stderr.readline() + process.stderr.readline()
    assert lines == f"\nStopping cleanly; {how} again to force quit.\n"
    process.send_signal(sign)
    _, told = process.communicate(timeout=30)
    assert process.returncode == status and "Traceback" not in told


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    async def work():
        signal.raise_signal(signal.SIGINT)
        return "done"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert until_stopped(work(), tmp_path, lambda: "") == "done"
    finally:
        signal.signal(signal.SIGINT, before)


def test_stopped_before_it_began_there_is_nothing_to_resume(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["mapo", "eval", "emobench", "--out=x", "--resume"])
    assert resume_command(tmp_path) == "mapo eval emobench --out=x"
    (tmp_path / "manifest.json").write_text("{}")
    assert resume_command(tmp_path) == "mapo eval emobench --out=x --resume"


def test_empa_stopped_by_hand(tmp_path):
    with LoopbackServer(lambda _: "I see.", latency=30.0) as server:
        args = ["eval", "empa", "--model=m", f"--base-url={server.base_url}", f"--out={tmp_path / 'run'}"]
        process = child(*args)
        deadline = time.monotonic() + 60
        while server.in_flight == 0 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert (
        process.returncode == 143
        and "stopped; 0 of 12 dialogues are finished; resume with: mapo eval" in told
    )


def test_the_ledger_knows_every_call_after_a_kill(made_up, tmp_path):  # noqa: F811
    out, script = tmp_path / "run", Script(hold=7)
    with LoopbackServer(script) as server:
        process = child(*eqbench(made_up, out, server.base_url))
        until(script, 3, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        script.hold = None
        assert mapo(*eqbench(made_up, out, server.base_url, "--resume")).returncode == 0
    assert calls_in(out) == script.answered.total() > 7
    assert not (out / "ledger.json-journal").exists()


# ---- a few items


def test_emobench_on_the_first_few_has_no_score_and_can_be_gone_on_with(tmp_path):
    data, out = write_emobench(tmp_path / "emobench"), tmp_path / "run"
    student = Student(load(data, allow_changed=True))
    with LoopbackServer(student) as server:
        done = mapo(*emobench(data, out, server.base_url, "--limit=7"))
        assert done.returncode == 0, done.stderr
        assert "7 of 24 items, partial: no score" in done.stdout and "EA" in done.stdout
        assert "note: partial: only the first 7 of 24 items were run" in done.stderr
        result = result_of(out)
        assert (result["scores"], result["complete"], result["n"], result["limit"]) == ({}, False, 7, 7)
        assert result["parts"] == {"EA": {"n": 7, "of": 12}, "EU": {"n": 0, "of": 12}}
        assert 0 <= result["details"]["partial"]["EA"] <= 1
        shown = mapo("compare", out)
        assert shown.returncode == 1 and "no score (7/12)" in shown.stdout and "(0/12)" in shown.stdout
        assert mapo(*emobench(data, out, server.base_url, "--resume")).returncode == 0
        assert sorted(student.asked) == sorted(set(student.asked)) and len(student.asked) == 24
        assert result_of(out)["complete"] and result_of(out)["limit"] is None
        again = mapo(*emobench(data, out, server.base_url, "--resume", "--limit=2"))
        assert again.returncode == 0 and result_of(out)["n"] == 2 and len(student.asked) == 24


def test_eqbench_on_the_first_few(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(Script()) as server:
        out = tmp_path / "three"
        done = mapo(*eqbench(made_up, out, server.base_url, "--limit=2"))
        assert done.returncode == 0 and "no score, 2/5 scenarios" in done.stdout
        assert "partial: only the first 2 of 5" in done.stderr
        whole = mapo(*eqbench(made_up, out, server.base_url, "--resume"))
        assert whole.returncode == 0 and result_of(out)["scores"]
    questions = json.loads((made_up / "eq_bench_v2_questions_171.json").read_text())
    assert questions["1"] == question_of(1)
    with LoopbackServer(lambda body: "no ratings") as server:
        args = [f"--data={made_up}", "--model=m", f"--base-url={server.base_url}", "--v2"]
        done = mapo("eval", "eqbench", *args, f"--out={tmp_path / 'two'}", "--limit=3")
        assert done.returncode == 0 and "no score, 3/6 questions" in done.stdout
        done = mapo("eval", "eqbench", *args, f"--out={tmp_path / 'two'}", "--resume")
        assert (
            done.returncode == 1 and "--resume changes nothing; use a new --out to ask again" in done.stderr
        )


# ---- bad starts


def test_a_start_that_fails_leaves_the_folder_free(made_up, tmp_path):  # noqa: F811
    data, out = write_emobench(tmp_path / "emobench"), tmp_path / "run"
    empty = tmp_path / "no model"
    empty.mkdir()
    bad = f"--model=local:{empty}"
    some = [f"--data={data}", "--allow-changed-data", f"--out={out}"]
    for args in (
        ["eval", "emobench", *some, bad],
        ["eval", "eqbench", "--v2", f"--data={made_up}", f"--out={out}", bad],
        ["eval", "empa", f"--out={out}", bad],
    ):
        done = mapo(*args)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert not (out / "manifest.json").exists()
    with LoopbackServer(Student(load(data, allow_changed=True))) as server:
        assert mapo(*emobench(data, out, server.base_url)).returncode == 0


def test_a_training_run_is_no_model_but_holds_some(tmp_path):
    model = small.model_folder(tmp_path / "model")
    run = tmp_path / "run"
    given = [*small.SMALL, f"model.source={model}", "optim.steps=1", "eval.test_repeats=0"]
    assert mapo("train", "pocket", *given, "--out", run).returncode == 0
    done = mapo("eval", "empa", f"--model=local:{run}", f"--out={tmp_path / 'eval'}")
    assert done.returncode == 2 and "is a training run, not a model" in done.stderr
    assert f"mapo export {run} --out DIR and use local:DIR" in done.stderr
    checkpoint = done.stderr.split("or use its last checkpoint: ")[1].strip()
    args = [f"--out={tmp_path / 'eval'}", "--max-turns=1", "--max-tokens=4"]
    assert mapo("eval", "empa", f"--model=local:{checkpoint}", *args).returncode == 0


def test_a_default_address_is_printed(made_up, tmp_path, monkeypatch):  # noqa: F811
    with LoopbackServer(Script()) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        given = [f"--data={made_up}", "--model=policy", "--judge-model=judge"]
        done = mapo("eval", "eqbench", *given, f"--out={tmp_path / 'env'}")
        told = f"judge is called at {server.base_url} (from OPENAI_BASE_URL)"
        assert done.returncode == 0 and told in done.stderr
        plain = mapo(*eqbench(made_up, tmp_path / "given", server.base_url))
        assert "is called at" not in plain.stderr
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setattr("mapo.models.endpoint.DEFAULT_URL", "http://127.0.0.1:9/v1")
    done = mapo("eval", "eqbench", *given, f"--out={tmp_path / 'none'}", "--retries=0")
    assert "policy is called at http://127.0.0.1:9/v1 (no base URL was given)" in done.stderr
    assert "?." not in done.stderr


@pytest.mark.parametrize("dead", ["policy", "judge"])
def test_a_dead_endpoint_stops_eqbench_too(tmp_path, dead):
    script = Script()
    fault = lambda _, body: "500" if body["model"] == dead else None  # noqa: E731
    with LoopbackServer(script, fault=fault) as server:
        done = mapo(*eqbench(shared("eqbench"), tmp_path / "run", server.base_url, "--retries=0"))
    assert done.returncode == 2 and "9 of 9 items failed, the last one with: " in done.stderr
    assert "run again with --resume" in done.stderr and server.calls < 80  # of 163


def test_no_table_of_categories_where_nothing_came_back(tmp_path):
    data = write_emobench(tmp_path / "emobench", 1)
    with LoopbackServer(fault=lambda *_: "500") as server:
        done = mapo(*emobench(data, tmp_path / "run", server.base_url, "--retries=0"))
    assert done.returncode == 1 and "0 of 4 items, incomplete" in done.stdout
    assert "by category" not in done.stdout


def test_a_failed_scenario_is_named_once(made_up, tmp_path):  # noqa: F811
    with LoopbackServer(Script(policy=lambda _: "Hm.")) as server:
        done = mapo(*eqbench(made_up, tmp_path / "run", server.base_url))
    assert re.search(r"failed: \d items \(\d+, .*no reply is long enough to be judged", done.stderr)


def test_the_other_eqbench_is_recognised(tmp_path):
    two, three = tmp_path / "v2", tmp_path / "three"
    write(two / "data", dict.fromkeys(eqbench_data.V2_FILES, "{}"))
    write(three / "data", dict.fromkeys(eqbench_data.V3_FILES, "x"))
    done = mapo("eval", "eqbench", f"--data={two}", "--model=m", f"--out={tmp_path / 'run'}")
    assert done.returncode == 2 and "the folder holds EQ-Bench v2. Add --v2" in done.stderr
    done = mapo("eval", "eqbench", f"--data={three}", "--model=m", "--v2", f"--out={tmp_path / 'run'}")
    assert done.returncode == 2 and "the folder holds EQ-Bench 3. Leave out --v2" in done.stderr


def test_allowed_changed_data_is_noted(tmp_path):
    data = write_emobench(tmp_path / "emobench")
    done = mapo("eval", "emobench", "--model=m", f"--data={data}", f"--out={tmp_path / 'run'}")
    assert done.returncode == 2 and "--allow-changed-data" in done.stderr


def test_every_benchmark_has_the_same_options():
    shared_names = {f"--{name.replace('_', '-')}" for name in options.RunOptions.__dataclass_fields__}
    for name in ("empa", "emobench", "eqbench"):
        shown = mapo("eval", name, "--help").stdout
        missing = {option for option in shared_names if option not in shown}
        assert missing == ({"--role-context"} if name == "emobench" else set())  # EmoBench has no roles


def test_repeats_are_no_cases_and_the_text_says_so(tmp_path):
    args = ["eval", "empa", "--model=scripted:honest", "--max-turns=12", "--repeats=2"]
    done = mapo(*args, f"--out={tmp_path / 'all'}")
    assert "95 % bootstrap interval over scenarios" in done.stdout
    one = load_scenarios("builtin:test")[0].id
    done = mapo(*args[:-1], "--repeats=6", f"--cases={one}", f"--out={tmp_path / 'one'}")
    assert "95 % bootstrap interval over the dialogues of a scenario" in done.stdout
