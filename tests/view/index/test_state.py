"""The state of a run: finished, running, failed or stopped, and whether its score is incomplete."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.measure.rubric import Rubric
from mapo.types import Ending, StopReason
from mapo.view.index import facts
from support import view_runs

BIG = {"role": "policy", "model": "big", "calls": 2419, "hits": 0, "retries": 0, "failures": 0}


def run_of(index, key: str) -> dict:
    with index.reading() as db:
        row = db.execute("SELECT state, facts FROM runs WHERE key = ?", (key,)).fetchone()
    return {**json.loads(row["facts"]), "state": row["state"]}


def interrupted(root: Path, planned: int = 12, played: int = 4) -> Path:
    run = view_runs.benchmark(root, n=played)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["scenarios"] = {f"case-{i}": "x" for i in range(planned)}
    (run / "manifest.json").write_text(json.dumps(manifest))
    return run


def broken(root: Path, n: int = 3) -> Path:
    run, rubric = view_runs.benchmark(root), Rubric.load("empathy")
    dialogues = [
        replace(view_runs.talk(rubric, f"case-{i}"), ending=Ending(StopReason.BROKEN), error="no connection")
        for i in range(n)
    ]
    (run / "dialogues" / "empa.jsonl").unlink()
    view_runs.write_lines(run / "dialogues" / "empa.jsonl", dialogues)
    return run


def made_scenarios(root: Path, **changes) -> Path:
    run = root / "made"
    (run / "scenarios").mkdir(parents=True)
    (run / "1-local").mkdir()
    (run / "0-raw").mkdir()
    (run / "scenarios" / "made-1.toml").write_text('id = "made-1"\ntopic = "A flat tyre"\naxis = "A"\n')
    (run / "manifest.json").write_text('{"schema": "mapo.realsim/1"}')
    report = {
        "files": 1, "asked": 2, "made": 1, "failed": [], "failures": [], "found": {"name": 3, "email": 1},
        "refused": [{"id": "made-2", "reason": "private", "fix": "Shorten it."}], "forms": 3,
        "agreement": {"C.1": {"same": 0.5}}, "tags": {"axis": {"A": 1}}, "private_calls": "removed",
    }  # fmt: skip
    (run / "report.json").write_text(json.dumps({**report, **changes}))
    return run


def screening(root: Path, n: int) -> Path:
    run = root / "screened"
    inner = view_runs.benchmark(run, "strong")
    (inner / "ledger.json").write_text(json.dumps({"schema": "mapo.ledger/1", "rows": [BIG]}))
    (run / "manifest.json").write_text('{"schema": "mapo.screen/1", "policies": {"strong": "big"}}')
    row = {"id": "made-1", "verdict": "undecided", "plays": {"strong": {"n": n, "passes": 0}}}
    screen = {"schema": "mapo.screen/1", "policies": {"strong": "big"}, "scenarios": [row]}
    (run / "screen.json").write_text(json.dumps(screen))
    return run


@pytest.fixture
def visible_locks(index):
    index._grace = facts.STARTING


def test_an_interrupted_run_stops_at_once_where_locks_are_visible(index, root, visible_locks):
    view_runs.age(interrupted(root), facts.STARTING + 1)
    index.refresh()
    assert run_of(index, "bench")["state"] == "stopped"


def test_a_run_counts_as_running_for_minutes_where_locks_may_be_hidden(index, root):
    index._grace = facts.RECENT
    view_runs.age(interrupted(root), facts.STARTING + 1)
    index.refresh()
    assert run_of(index, "bench")["state"] == "running"


def test_an_evaluation_has_ended_once_it_wrote_its_health(index, root):
    index._grace = facts.RECENT
    run = interrupted(root)
    view_runs.age(run, 1)
    (run / "health.json").write_text("{}")
    index.refresh()
    assert run_of(index, "bench")["state"] == "stopped"


def test_an_evaluation_in_which_every_dialogue_broke_has_failed(index, root, visible_locks):
    view_runs.age(broken(root), facts.STARTING + 1)
    index.refresh()
    assert run_of(index, "bench")["state"] == "failed"


def test_a_screening_without_a_finished_dialogue_has_failed(index, root):
    screening(root, n=0)
    index.refresh()
    assert run_of(index, "screened")["state"] == "failed"


def test_a_screening_with_dialogues_is_finished_and_counts_its_calls(index, root, client):
    screening(root, n=4)
    index.refresh()
    assert run_of(index, "screened")["state"] == "finished"
    assert "2,419" in client.get("/run/screened").text


def test_made_scenarios_are_finished_and_shown(index, root, client):
    made_scenarios(root)
    index.refresh()
    assert run_of(index, "made")["state"] == "finished" and run_of(index, "made")["other"] == []
    page = client.get("/run/made").text
    assert "2 conversations from 1 file: 1 scenario made, 1 refused, 0 failed." in page
    assert "A flat tyre" in page
    assert "name 3, email 1" in page
    assert "scenario making" in page


def test_made_scenarios_with_failures_are_not_finished(index, root, visible_locks):
    run = made_scenarios(root, failed=["made-3"])
    view_runs.age(run, facts.STARTING + 1)
    index.refresh()
    assert run_of(index, "made")["state"] == "stopped"


@pytest.mark.parametrize("page", ["/", "/benchmarks", "/run/bench"])
def test_the_score_of_part_of_an_evaluation_is_marked(index, root, client, page):
    interrupted(root)
    index.refresh()
    assert "4 of 12 dialogues, incomplete" in client.get(page).text


def test_a_complete_evaluation_is_not_marked(index, root, client):
    view_runs.benchmark(root)
    index.refresh()
    assert "incomplete" not in re.sub(r"<style.*?</style>", "", client.get("/").text)


def test_an_unfinished_question_benchmark_is_marked(index, root, client):
    run = view_runs.questions(root)
    result = json.loads((run / "result.json").read_text()) | {"complete": False, "n": 1}
    (run / "result.json").write_text(json.dumps(result))
    index.refresh()
    assert "1 of 2 items, incomplete" in client.get("/").text


@pytest.mark.parametrize(
    ("kind", "namespace", "visible"),
    [
        ("ext4", facts._FIRST_PID_NAMESPACE, True),
        ("nfs4", facts._FIRST_PID_NAMESPACE, False),
        ("overlay", "pid:[1]", True),
        ("ext4", "pid:[1]", False),
    ],
)
def test_locks_are_visible_on_a_local_file_system_outside_containers(tmp_path, kind, namespace, visible):
    mounts, link = tmp_path / "mountinfo", tmp_path / "pid"
    mounts.write_text(
        f"1 0 8:1 / / rw - xfs /dev/sda rw\n2 1 8:2 / {tmp_path} rw - {kind} /dev/sdb rw\nbroken line\n"
    )
    link.symlink_to(namespace)
    grace = facts.grace_of(tmp_path / "runs", str(mounts), str(link))
    assert grace == (facts.STARTING if visible else facts.RECENT)


def test_without_proc_locks_are_not_visible(tmp_path):
    assert facts.grace_of(tmp_path, str(tmp_path / "none")) == facts.RECENT
