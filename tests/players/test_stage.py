"""Tests for `mapo.players.stage`: which folders are refused where a model is expected."""

from __future__ import annotations

import pytest

from mapo.errors import InputError
from mapo.players.stage import refuse_run
from mapo.store import RunDir


def test_a_training_run_is_refused_and_its_last_checkpoint_named(tmp_path):
    RunDir(tmp_path).manifest.write_text('{"schema": "mapo.train/1"}')
    for step in (5, 10):
        RunDir(tmp_path).checkpoint(step).mkdir(parents=True)
    with pytest.raises(InputError, match=r"is a training run, not a model.*local:.*step_00010"):
        refuse_run(str(tmp_path))


def test_a_model_may_keep_the_metrics_of_its_training_beside_it(tmp_path):
    for name in ("config.json", "metrics.jsonl", "summary.json"):
        (tmp_path / name).write_text("{}")
    refuse_run(str(tmp_path))


def test_a_name_that_is_no_folder_is_not_a_run():
    refuse_run("owner/name-of-a-model")
