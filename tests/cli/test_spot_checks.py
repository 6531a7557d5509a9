"""mapo train with a local model as the judge of spot checks, without a network."""

from __future__ import annotations

import json

import pytest

from mapo.store import read_dialogues, read_jsonl
from support import small_run as small
from support.command import mapo
from support.local_cast import LIMITS, block_network


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    block_network(monkeypatch)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


def check(model, **more):
    fields = {"model": f"local:{model}", "share": 1.0, "max_tokens": LIMITS["judge"], **more}
    return f"roles.check={{{', '.join(f'{key}={json.dumps(value)}' for key, value in fields.items())}}}"


@pytest.mark.slow
def test_a_local_model_checks_the_scripted_judge_and_its_limit_ends_the_run(policy, cast_model, tmp_path):
    tiny = (*small.SMALL, f"model.source={policy}", "optim.steps=1", "eval.every=0", "roles.context=8192")
    out = ("--out", tmp_path / "run")
    done = mapo("train", "pocket", *tiny, check(cast_model, window=20, limit=0.9), *out)
    assert done.returncode != 0
    assert "below the limit of 0.9" in done.stderr
    assert "resume with a lower roles.check.limit" in " ".join(done.stderr.split())
    dialogues = list(read_dialogues(tmp_path / "run" / "dialogues" / "step_00001.jsonl"))
    assert all(len(turn.check or ()) == 6 for d in dialogues for turn in d.turns)
    assert dialogues[0].cast["check"] == f"local:{cast_model}" or "tiny-cast" in dialogues[0].cast["check"]
    (line,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert line["check"]["asked"] == line["check"]["answered"] == 24
    done = mapo("train", *out, "--resume", "roles.check.limit=-1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_folder_that_is_no_model_is_refused(policy, tmp_path):
    tiny = (*small.SMALL, f"model.source={policy}", "optim.steps=1")
    done = mapo("train", "pocket", *tiny, check(tmp_path / "nothing"), "--out", tmp_path / "run")
    assert done.returncode != 0
    assert "nothing" in done.stderr
    assert not (tmp_path / "run").exists()
