"""Training on test scenarios: refused, or explicit and then marked in every result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from mapo.domain_folders import domain_folder
from mapo.errors import InputError
from mapo.evals.compare.entries_empa import read_training
from mapo.report import write_report
from mapo.runs.contamination import MARK, notice_of, trained_test_scenarios
from mapo.scenarios.sets import load_scenarios
from mapo.train.export import export
from mapo.view.app import make_app
from mapo.view.index.index import Index
from support import small_run as small
from support.command import mapo

MESSAGE = "Trained on test scenarios"
SEEN = [s.id for s in load_scenarios("builtin:train")[:2]]


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    """Settings whose test set consists of two training scenarios."""
    folder = tmp_path_factory.mktemp("test")
    for case in SEEN:
        shutil.copy(domain_folder("empathy") / "scenarios" / f"{case}.toml", folder)
    return [
        "scenarios.train=builtin:train",
        "scenarios.validation=builtin:validation",
        f"scenarios.test={folder}",
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def run(model, splits, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "seen"
    settings = [
        *splits,
        "eval.test_repeats=1",
        "scenarios.contaminated=true",
        "optim.steps=1",
        "eval.every=0",
    ]
    small.trained(model, out, *settings)
    return out


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    return export(run, tmp_path_factory.mktemp("export") / "model")


def test_training_on_the_test_is_refused_unless_it_is_explicit(model, splits, tmp_path):
    with pytest.raises(InputError, match="in both train and test"):
        small.trained(model, tmp_path / "run", *splits)


def test_other_overlaps_stay_refused(model, tmp_path):
    settings = ["scenarios.validation=builtin:train", "scenarios.contaminated=true"]
    with pytest.raises(InputError, match="in both train and validation"):
        small.trained(model, tmp_path / "run", *settings)


def test_manifest_and_summary_name_the_scenarios(run):
    for file in ("manifest.json", "summary.json"):
        assert json.loads((run / file).read_bytes())["trained_on_test"] == sorted(SEEN)


def test_a_clean_run_is_not_marked(model, tmp_path):
    small.trained(model, tmp_path / "run", "optim.steps=1", "eval.every=0", "scenarios.contaminated=true")
    assert not notice_of(json.loads((tmp_path / "run/manifest.json").read_bytes()))


def test_report_and_comparison_are_marked(run):
    assert MESSAGE in write_report(run).read_text(encoding="utf-8")
    notes = {entry.model: entry.notes for entry in read_training(run)}
    assert any(MESSAGE in note for note in notes["seen, after"])
    assert not any(MESSAGE in note for note in notes["seen, before"])


def test_the_viewer_is_marked(run, tmp_path):
    index = Index(run.parent, tmp_path / "cache")
    index.refresh()
    with TestClient(make_app(index), base_url="http://127.0.0.1:8765") as client:
        assert f"{MESSAGE}:" in client.get("/run/seen").text
        assert f"({MESSAGE.lower()})" in client.get("/").text
    index.close()


def test_scores_are_marked_but_those_before_the_training(run):
    assert f"warning: {MESSAGE}" in mapo("score", str(run / "eval" / "after")).stderr
    assert MESSAGE not in mapo("score", str(run / "eval" / "before")).stderr


def test_an_exported_model_remembers(run, exported):
    assert trained_test_scenarios(exported) == sorted(SEEN)
    assert trained_test_scenarios(next((run / "checkpoints").glob("step_*"))) == sorted(SEEN)


def test_training_further_passes_the_mark_on(exported, tmp_path):
    small.trained(exported, tmp_path / "run", "optim.steps=1", "eval.every=0")
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["trained_on_test"] == sorted(SEEN)


def test_an_evaluation_on_those_scenarios_is_marked(exported, tmp_path):
    command = ["eval", "empa", "--model", f"local:{exported}", "--max-turns", "2", "--max-tokens", "5"]
    for source, case, marked in (("builtin:train", SEEN[0], True), ("builtin:test", None, False)):
        out = tmp_path / source.partition(":")[2]
        chosen = ["--cases", case] if case else ["--limit", "1"]
        done = mapo(*command, "--scenarios", source, *chosen, "--out", str(out))
        assert (f"warning: {MESSAGE}" in done.stderr) is marked, done.stderr
        assert ("trained_on_test" in json.loads((out / "manifest.json").read_bytes())) is marked
        assert (MESSAGE in write_report(out).read_text(encoding="utf-8")) is marked


@pytest.mark.parametrize("content", ["[]", "{", '{"trained_on_test": 3}', '{"trained_on_test": {}}'])
def test_a_damaged_mark_is_no_mark(tmp_path, content):
    (tmp_path / MARK).write_text(content)
    assert trained_test_scenarios(Path(tmp_path)) == []
