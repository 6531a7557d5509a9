"""Tests for `mapo.runs.kind`: what a folder is, by its manifest or by what else is there."""

from __future__ import annotations

import json

import pytest

from mapo.errors import InputError
from mapo.runs.kind import Kind, kind_in_manifest, kind_of, refuse_run_as_model
from mapo.store import RunDir


def write(root, **files):
    """Create files in a folder: the keyword names a path of `RunDir`, the value is the content."""
    for name, content in files.items():
        path = getattr(RunDir(root), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("mapo.train/1", Kind.TRAINING),
        ("mapo.ablate/1", Kind.ABLATION),
        ("mapo.empa/1", Kind.EMPA),
        ("mapo.empa/2", Kind.EMPA),
        ("mapo.emobench/1", Kind.EMOBENCH),
        ("mapo.eqbench3/1", Kind.EQBENCH),
        ("mapo.eqbench_v2/1", Kind.EQBENCH_V2),
        ("mapo.audit/1", Kind.AUDIT),
        ("mapo.swap/1", Kind.SWAP),
        ("mapo.realsim/1", Kind.MADE_SCENARIOS),
        ("mapo.screen/1", Kind.SCREENING),
    ],
)
def test_the_manifest_says_what_a_run_is(tmp_path, schema, kind):
    assert kind_of(write(tmp_path, manifest=json.dumps({"schema": schema}))) is kind


@pytest.mark.parametrize("schema", ["mapo.dialogue/1", "train/1", "", 7, None])
def test_other_schemas_name_no_kind(schema):
    assert kind_in_manifest({"schema": schema}) is None


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"metrics": ""}, Kind.TRAINING),
        ({"config": "", "rubric": ""}, Kind.TRAINING),
        ({"result": '{"benchmark": "emobench"}'}, Kind.EMOBENCH),
        ({"result": '{"benchmark": "eqbench3"}'}, Kind.EQBENCH),
        ({"result": '{"benchmark": "mine"}'}, Kind.BENCHMARK),
        ({"result": "torn"}, Kind.BENCHMARK),
        ({"audit": "{}", "items": ""}, Kind.AUDIT),
        ({"swap": "{}"}, Kind.SWAP),
        ({"screen": "{}"}, Kind.SCREENING),
        ({"ablation": "{}", "config": ""}, Kind.ABLATION),
        ({"empa_dialogues": ""}, Kind.EMPA),
        ({"items": "", "source": ""}, Kind.NOTHING),
    ],
)
def test_without_a_manifest_the_other_files_say_it(tmp_path, files, kind):
    assert kind_of(write(tmp_path, **files)) is kind


@pytest.mark.parametrize("manifest", ["", "[]", "{", '{"schema": 1}'])
def test_a_damaged_manifest_counts_as_lost(tmp_path, manifest):
    assert kind_of(write(tmp_path, manifest=manifest, metrics="")) is Kind.TRAINING


def test_the_manifest_counts_more_than_the_other_files(tmp_path):
    root = write(tmp_path, manifest='{"schema": "mapo.empa/1"}', config="")
    assert kind_of(root) is Kind.EMPA


def test_saved_checkpoints_make_a_training_run(tmp_path):
    RunDir(tmp_path).checkpoint(3).mkdir(parents=True)
    assert kind_of(tmp_path) is Kind.TRAINING


def test_a_folder_of_empa_result_files(tmp_path):
    (tmp_path / "script_001_result.json").write_text("{}")
    assert kind_of(tmp_path) is Kind.EMPA_FILES


@pytest.mark.parametrize("file", ["dialogues.jsonl", "dialogues/step_00001.jsonl"])
def test_a_folder_of_dialogues(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    assert kind_of(tmp_path) is Kind.DIALOGUES


def test_a_folder_of_runs_even_with_a_config_beside_them(tmp_path):
    write(tmp_path / "one", manifest='{"schema": "mapo.train/1"}')
    assert kind_of(write(tmp_path, config="")) is Kind.RUNS


@pytest.mark.parametrize("beside", ["a_result.json", "metrics.jsonl", "dialogues/a.jsonl", "summary.json"])
def test_what_lies_beside_runs_does_not_hide_them(tmp_path, beside):
    write(tmp_path / "one", manifest='{"schema": "mapo.train/1"}')
    (tmp_path / beside).parent.mkdir(exist_ok=True)
    (tmp_path / beside).write_text("")
    assert kind_of(tmp_path) is Kind.RUNS


def test_a_lone_summary_is_not_a_training_run(tmp_path):
    assert kind_of(write(tmp_path, summary="{}")) is Kind.NOTHING


def test_an_empty_folder_and_no_folder_are_nothing(tmp_path):
    assert kind_of(tmp_path) is Kind.NOTHING
    assert kind_of(tmp_path / "absent") is Kind.NOTHING


def test_a_linked_folder_of_dialogues_does_not_count(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.jsonl").write_text("")
    root = tmp_path / "here"
    root.mkdir()
    RunDir(root).dialogues.symlink_to(tmp_path / "there")
    assert kind_of(root) is Kind.NOTHING


def test_a_training_run_is_refused_and_its_last_checkpoint_named(tmp_path):
    RunDir(tmp_path).manifest.write_text('{"schema": "mapo.train/1"}')
    for step in (5, 10):
        RunDir(tmp_path).checkpoint(step).mkdir(parents=True)
    with pytest.raises(
        InputError, match=r"is a training run, not a model.*mapo export.*last checkpoint: .*step_00010"
    ):
        refuse_run_as_model(str(tmp_path))


def test_a_model_may_keep_the_metrics_of_its_training_beside_it(tmp_path):
    for name in ("config.json", "metrics.jsonl", "summary.json"):
        (tmp_path / name).write_text("{}")
    assert refuse_run_as_model(str(tmp_path)) is None


def test_a_name_that_is_no_folder_is_not_a_run():
    assert refuse_run_as_model("owner/name-of-a-model") is None


@pytest.mark.parametrize("part", ["scenarios", "prompts"])
def test_a_domain_with_a_training_config_is_not_a_training_run(tmp_path, part):
    for name in ("config.toml", "rubric.toml"):
        (tmp_path / name).write_text("")
    (tmp_path / part).mkdir()
    assert kind_of(tmp_path) is Kind.NOTHING
