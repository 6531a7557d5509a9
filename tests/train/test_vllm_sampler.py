"""Runs that vLLM cannot sample are refused before anything is loaded or written."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from mapo.errors import InputError
from mapo.train.run import check_sampler
from support import small_run
from support.command import mapo

VLLM = "rollout.sampler=vllm"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.model_folder(tmp_path_factory.mktemp("model"))


def test_the_own_sampler_needs_nothing(model):
    check_sampler(small_run.config(model), processes=2)


def test_several_processes_are_refused(model):
    with pytest.raises(InputError, match="in one process, and there are 2"):
        check_sampler(small_run.config(model, VLLM), processes=2)


def test_local_roles_are_refused(model):
    roles = ("roles.agents=llm", f"roles.everyone.model=local:{model}")
    with pytest.raises(InputError, match="local model, which cannot be sampled beside vLLM"):
        check_sampler(small_run.config(model, VLLM, *roles), processes=1)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_refused_run_leaves_nothing_behind(model, tmp_path):
    out = tmp_path / "run"
    done = mapo("train", *small_run.SMALL, f"model.source={model}", VLLM, "--out", out)
    assert done.returncode == 2
    assert "mapo-rl[vllm]" in done.stderr
    assert not out.exists()
