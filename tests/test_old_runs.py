"""Run directories written by version 0.1.0 are still read, scored, reported, viewed and resumed.

tests/fixtures/runs-0.1.0.tar.xz was made by that version with a random model of one layer and scripted roles.
It holds a finished training and one killed in step 3 of 4, an evaluation and one cut off half way, an
ablation of two runs and a judge audit; `expected_*.json` is what its `mapo score --json` printed. All paths
in it are relative: the tests run in the folder where it is unpacked.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from mapo.store import RunDir, read_jsonl
from mapo.view.app import make_app
from mapo.view.index.index import Index
from support.command import mapo

ARCHIVE = Path(__file__).parent / "fixtures" / "runs-0.1.0.tar.xz"
RUNS = ("finished", "stopped", "evaluated", "interrupted", "ablation", "audited")


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["evaluated", "finished"])
def test_the_score_is_the_same_number(old, name):
    done = mapo("score", old / "runs" / name, "--json")
    assert done.returncode == 0, done.stderr
    check_scores(done.stdout, old / f"expected_{name}.json")


def check_scores(output: str, expected: Path) -> None:
    """Compare every key that 0.1.0 printed; later versions print more."""
    scores, before = json.loads(output), json.loads(expected.read_text())
    assert [{key: new[key] for key in old} for new, old in zip(scores, before, strict=True)] == before


@pytest.mark.parametrize("name", ["finished", "stopped", "evaluated", "ablation"])
def test_it_is_reported(old, name):
    page = old / "page.html"
    done = mapo("report", old / "runs" / name, "--out", page)
    assert done.returncode == 0, done.stderr
    assert "EPM-Q" in page.read_text(encoding="utf-8")


def test_it_is_compared(old):
    done = mapo("compare", old / "runs" / "finished", old / "runs" / "evaluated")
    assert done.returncode == 0, done.stderr
    assert "scripted:honest" in done.stdout


def test_every_run_has_its_page(old):
    index = Index(old / "runs", old / "cache")
    index.refresh()
    with TestClient(make_app(index), base_url="http://127.0.0.1:8765") as client:
        pages = set(re.findall(r'href="(/run/[^"?#/]+)', client.get("/").text))
        assert {client.get(page).status_code for page in pages} == {200}
        assert len(pages) >= len(RUNS)
    index.close()


@pytest.mark.parametrize("named", [(), ("runs/stopped/config.toml",)], ids=["unnamed", "named"])
def test_a_killed_training_goes_on_from_its_checkpoint(old, named):
    run = RunDir(Path("runs/stopped"))
    before = run.metrics.read_bytes()
    done = mapo("train", *named, "--out", run.root, "--resume")
    assert done.returncode == 0, done.stderr
    assert run.metrics.read_bytes().startswith(before)
    assert [line["step"] for line in read_jsonl(run.metrics)] == [1, 2, 3, 4]
    assert (run.root / "summary.json").exists()


def test_an_evaluation_cut_off_plays_only_what_is_missing(old):
    out = old / "runs" / "interrupted"
    kept = (out / "dialogues" / "empa.jsonl").read_bytes()
    command = ["eval", "empa", "--model", "scripted:honest", "--scenarios", "scenarios/test"]
    done = mapo(*command, "--out", out, "--max-turns", 16, "--resume")
    assert done.returncode == 0, done.stderr
    assert (out / "dialogues" / "empa.jsonl").read_bytes().startswith(kept)
    check_scores(mapo("score", out, "--json").stdout, old / "expected_evaluated.json")


def test_an_ablation_is_reported_again(old):
    done = mapo("ablate", "--out", old / "runs" / "ablation", "--only-report")
    assert done.returncode == 0, done.stderr
    assert "grpo" in done.stdout


def test_an_ablation_is_continued_although_there_are_new_settings(old):
    done = mapo("ablate", "--out", old / "runs" / "ablation")
    assert done.returncode == 0, done.stderr
    assert "2 runs, 2 of them finished: methods mapo, grpo; rewards idr; seeds 0" in done.stderr
    assert "Nothing is left to train" in done.stderr


def test_a_finished_audit_is_measured_again_without_asking(old):
    out = old / "runs" / "audited"
    items = (out / "items.jsonl").read_bytes()
    command = [
        "judge",
        "audit",
        old / "runs" / "evaluated",
        "--judge",
        "scripted",
        "--turns",
        4,
        "--dialogues",
        1,
    ]
    done = mapo(*command, "--repeats", 2, "--scenarios", "scenarios/test", "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert (out / "items.jsonl").read_bytes() == items
