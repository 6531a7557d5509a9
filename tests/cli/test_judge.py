"""mapo judge audit, as a person runs it."""

from __future__ import annotations

import json
import re

import pytest

from mapo.scenarios.sets import load_scenarios
from mapo.testing.judges import JudgeErrors, faulty_judges
from mapo.testing.server import LoopbackServer
from support.command import mapo

CASES = ",".join(sorted(s.id for s in load_scenarios("builtin:test"))[:2])
SMALL = ("--turns", 6, "--dialogues", 2, "--repeats", 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "honest"
    done = mapo(
        *("eval", "empa", "--model", "scripted:honest", "--out", out, "--cases", CASES),
        *("--repeats", 2, "--max-turns", 4),
    )
    assert done.returncode == 0, done.stderr
    return out


def test_two_judges_and_their_panel_over_http(run, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"good": [1, 0.1, 2], "noisy": [1, 0.1, 2]}))
    out = tmp_path / "audit"
    with LoopbackServer(
        faulty_judges({"good": JudgeErrors(), "noisy": JudgeErrors(noise=0.4)}), models=("good", "noisy")
    ) as server:
        asked = ("judge", "audit", run, "--judge", "good", "--judge", f"noisy@{server.base_url}", "--panel")
        where = ("--base-url", server.base_url, "--out", out, "--prices", prices, *SMALL)
        done = mapo(*asked, *where)
        assert done.returncode == 0, done.stderr
        calls = server.calls
        assert mapo(*asked, *where).returncode == 2  # the folder holds an audit already
        resumed = mapo(*asked, *where, "--resume")
        assert resumed.returncode == 0 and server.calls == calls
        assert "another one" in mapo(*asked, *where, "--resume", "--seed", 9).stderr
    data = json.loads((out / "audit.json").read_text())
    assert [judge["judge"] for judge in data["judges"]] == ["good", "noisy", "panel of good, noisy"]
    good, noisy, both = data["judges"]
    assert good["noise"]["noise"] == 0 < noisy["noise"]["noise"]
    assert good["cost"]["calls"] > 0 and good["cost"]["cost"] > 0 and good["cost"]["seconds"] > 0
    assert good["effects"] and good["siblings"]
    # a panel's answers are its members': it is asked nothing, and says nothing of how far it agrees with them
    assert both["cost"] is None and both["asked"] == good["asked"] == good["cost"]["calls"]
    assert calls == good["cost"]["calls"] + noisy["cost"]["calls"]
    assert both["judge"] not in {pair["b"] for pair in data["agreement"]}
    assert data["terms"]["gamma"] == 0.85 and "no run has advantage settings" in data["terms"]["assumed"][0]
    assert "note: assumed gamma 0.85" in done.stderr
    assert (
        "warning: probe effects are measured on 3 dialogues; an interval needs at least 6 (add runs or"
        in done.stderr
    )
    calls_table = done.stdout.partition("from cache")[2]
    assert re.search(r"judge +good ", calls_table) and not re.search(r"good +good", calls_table)
    assert {judge["verdict"]["training"] for judge in data["judges"]} <= {"unknown", "not fit"}
    assert "Verdict" in done.stdout and "seconds per call" in done.stdout
    assert "note: 'recorded' is the judge of the records: scripted" in done.stderr
    assert (out / "audit.png").exists() and "## Noise" in (out / "audit.md").read_text()
    manifest = json.loads((out / "manifest.json").read_text())
    assert set(manifest["addresses"]) == {"good", "noisy"} and manifest["schema"] == "mapo.audit/1"


def test_an_endpoint_that_refuses_a_parameter_is_told_of(run, tmp_path):
    with LoopbackServer(
        faulty_judges({"it": JudgeErrors()}), models=("it",), refuses=("temperature",)
    ) as server:
        where = ("--judge", "it", "--base-url", server.base_url)
        done = mapo("judge", "audit", run, *where, "--out", tmp_path / "a", *SMALL)
        assert done.returncode == 0, done.stderr
        swapped = mapo("judge", "swap", run, *where, "--out", tmp_path / "s")
        assert swapped.returncode == 0, swapped.stderr
    told = "was sampled without temperature: its endpoint refuses it"
    assert f"note: it {told}" in done.stderr and f"note: the judge {told}" in swapped.stderr
    notes = json.loads((tmp_path / "a" / "audit.json").read_text())["notes"]
    assert f"it {told}" in notes


def test_the_scripted_judge_needs_no_endpoint(run, tmp_path):
    done = mapo("judge", "audit", f"mine={run}", "--judge", "scripted", "--out", tmp_path / "a", *SMALL)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert data["runs"] == ["mine"] and data["judges"][0]["noise"]["noise"] == 0


def test_the_domain_is_that_of_the_run(tmp_path):
    run, cases = tmp_path / "tutor", sorted(s.id for s in load_scenarios("builtin:test", "tutoring"))[:2]
    played = mapo(
        *("eval", "empa", "--model", "scripted:honest", "--domain", "tutoring", "--out", run),
        *("--cases", ",".join(cases), "--max-turns", 3),
    )
    assert played.returncode == 0, played.stderr
    for verb, more in (("audit", SMALL), ("swap", ())):
        done = mapo("judge", verb, run, "--judge", "scripted", "--out", tmp_path / verb, *more)
        assert done.returncode == 0, done.stderr
    wrong = mapo("judge", "audit", run, "--judge", "scripted", "--out", tmp_path / "x", "--domain", "empathy")
    assert (
        wrong.returncode == 2 and "its domain folder with --domain (the domain is tutoring)" in wrong.stderr
    )


def test_a_folder_that_does_not_exist_is_told_so(tmp_path):
    for more in ((), ("--judge", "scripted", "--out", tmp_path / "x")):
        done = mapo("judge", "audit", tmp_path / "nonexist", *more)
        assert done.returncode == 2 and "nonexist: no such folder" in done.stderr


def test_a_judge_is_named_once_where_it_fails(run, tmp_path):
    gone = ("--judge", "gone@http://127.0.0.1:9/v1", "--retries", 0, "--dialogues", 0, "--turns", 1)
    done = mapo("judge", "audit", run, *gone, "--out", tmp_path / "x")
    assert done.returncode == 2 and "gone at http://127.0.0.1:9/v1: no connection" in done.stderr


def test_a_panel_is_not_asked_what_its_members_cannot_answer(run, tmp_path):
    two = ("--judge", "scripted", "--judge", "scripted", "--panel")
    done = mapo("judge", "audit", run, *two, "--out", tmp_path / "a", *SMALL)
    assert done.returncode == 0, done.stderr
    one, _, both = json.loads((tmp_path / "a" / "audit.json").read_text())["judges"]
    assert both["judge"] == "panel of scripted, scripted #2"
    assert (both["asked"], both["unscored"]) == (one["asked"], 0)
    assert [e["reward"] for e in both["effects"]] == [e["reward"] for e in one["effects"]]


def test_a_failing_endpoint_leaves_questions_open(run, tmp_path):
    def fault(number, body):
        del body
        return "400" if number % 7 == 0 else None

    with LoopbackServer(faulty_judges({"it": JudgeErrors()}), models=("it",), fault=fault) as server:
        where = ("--base-url", server.base_url, "--out", tmp_path / "a", *SMALL)
        done = mapo("judge", "audit", run, "--judge", "it", *where)
        assert done.returncode == 1 and "use --resume to retry" in done.stderr
        server.fault = lambda _number, _body: None
        assert mapo("judge", "audit", run, "--judge", "it", *where, "--resume").returncode == 0


def test_without_a_judge_the_records_speak(run):
    done = mapo("judge", "audit", run)
    assert (
        done.returncode == 0 and "As recorded" in done.stdout and "Levels along the dialogue" in done.stdout
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--judge", "m"], "--judge needs --out"),
        (["--judge", "m", "--out", "x", "--scenarios", "builtin:train"], "can be judged again"),
        (["--judge", "m", "--out", "x", "--key-env", "A", "--key-env", "B"], "2 key variables for 1"),
    ],
)
def test_audits_that_cannot_be_meant_are_refused(run, given, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = mapo("judge", "audit", run, *given)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not (tmp_path / "x").exists()
