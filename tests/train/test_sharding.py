"""Training state divided among processes: what two whole states would learn, in half the memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from mapo.config import load_config
from mapo.errors import InputError
from mapo.local_model.files import read_tensors
from mapo.local_model.policy import load_policy
from mapo.store import read_jsonl
from mapo.train.batch import empty_batch
from mapo.train.loss import mean_stats, policy_loss
from mapo.train.optim import make_optimizer
from mapo.train.processes import ProcessGroup
from mapo.train.run import check_shard
from mapo.train.sharding.optimizer import ShardedOptimizer
from support import small_run as small
from support import tiny
from support.command import mapo
from support.local_cast import LIMITS
from support.sharded_ranks import Odd, sharded, start_two

SHARED = ("run.processes=2", "run.shard=true", "model.dtype=bfloat16", "optim.kl=0.1")
UNEVEN = ("rollout.scenarios=3", "rollout.siblings=2", "optim.tokens=200", "optim.updates=2")
"""Three rows per update: two micro-batches in one process and one in the other."""


# ---- the optimizer


@pytest.fixture(scope="module")
def ranks():
    return start_two()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_and_norms_are_those_of_a_whole_state(ranks, dtype):
    for rank in ranks:
        assert rank[dtype]["weights"] < 1e-6
        assert rank[dtype]["buckets"] > 2
        for whole, divided in rank[dtype]["norms"]:
            assert divided == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_processes_keep_half_of_the_state_each(ranks, dtype):
    # pieces are padded to the same size, and each parameter has a step count
    assert all(0.5 <= rank[dtype]["share"] < 0.53 for rank in ranks)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_saved_is_a_whole_state_and_can_be_restored_in_pieces(ranks, dtype):
    for rank in ranks:
        assert rank[dtype]["layout"]
        assert rank[dtype]["saved"] < 1e-6
        assert rank[dtype]["restored"] < 1e-6


def test_the_reference_gives_the_same_logits_with_its_layers_divided(ranks):
    expected = {"same": True, "share": 0.5, "needs_no_mask": True}
    assert all(rank["reference"] == expected for rank in ranks)


def test_a_state_of_another_model_changes_nothing():
    model = Odd().to(torch.bfloat16)
    optimizer = sharded(model, ProcessGroup())
    saved = make_optimizer(Odd().to(torch.bfloat16)).tensors()
    before = [bucket.master.clone() for bucket in optimizer.buckets]
    for wrong in ({}, {**saved, "master/scale": torch.zeros(2)}, {**saved, "master/other": torch.zeros(1)}):
        with pytest.raises(ValueError, match="missing or do not fit"):
            optimizer.restore({n: t + 1 for n, t in wrong.items()})
    assert all(torch.equal(b.master, a) for b, a in zip(optimizer.buckets, before, strict=True))


def test_a_state_without_moments_starts_from_zero():
    optimizer = sharded(Odd().to(torch.bfloat16), ProcessGroup())
    saved = make_optimizer(Odd().to(torch.bfloat16)).tensors()
    optimizer.restore(saved)
    layout, tensors = optimizer.saved_state()
    assert list(layout) == [f"master/{n}" for n in optimizer.params]
    assert all(torch.equal(saved[n], t) for n, t in zip(layout, tensors, strict=True))


def test_nothing_to_train_is_refused():
    with pytest.raises(InputError, match="nothing to train"):
        ShardedOptimizer([], ProcessGroup(), weight_decay=0.0)


def test_without_gradients_there_is_no_norm():
    assert sharded(Odd(), ProcessGroup()).clip(1.0) == 0.0


def test_an_empty_micro_batch_has_no_gradient_and_no_tokens():
    model = tiny.model("llama").train()
    loss, stats = policy_loss(model, empty_batch(4), total=7)
    loss.backward()
    assert all(not p.grad.any() for p in model.parameters())
    assert mean_stats([stats])["tokens"] == 0


# ---- settings


def test_adapters_are_refused():
    with pytest.raises(InputError, match=r"run\.shard divides .* LoRA adapters is small: set run\.shard"):
        load_config(None, ["run.shard=true", "run.processes=2", "model.lora.rank=4"])


def test_the_folder_of_an_adapter_is_refused_before_it_is_loaded(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    config = load_config(None, ["run.shard=true", "run.processes=2", f"model.source={tmp_path}"])
    with pytest.raises(InputError, match="LoRA adapters is small"):
        check_shard(config, 2)


def test_one_process_is_refused_before_anything_is_written(tmp_path):
    out = tmp_path / "run"
    done = mapo("train", "pocket", "run.shard=true", "run.processes=1", "--out", out)
    assert done.returncode == 2
    assert "run.shard: the training state cannot be divided: there is one process. Set" in done.stderr
    assert not out.exists()


def test_one_process_is_refused_in_a_library_call(tmp_path):
    model = small.model_folder(tmp_path / "model")
    with pytest.raises(InputError, match="there is one process"):
        small.trained(model, tmp_path / "run", "run.shard=true")


# ---- whole runs


def command(model, out, *overrides):
    given = [*small.SMALL, f"model.source={model}", "eval.test_repeats=0", "run.keep=9", *overrides]
    return [sys.executable, "-m", "mapo", "train", "pocket", *given, "--out", str(out)]


def run(model, out, *overrides):
    done = subprocess.run(command(model, out, *overrides), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def saved(out, step, file="model.safetensors"):
    return read_tensors(out / "checkpoints" / f"step_{step:05d}" / file)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def shared(model, tmp_path_factory):
    """A run with float32 copies of its weights, a KL penalty and uneven micro-batches."""
    out = tmp_path_factory.mktemp("shared") / "run"
    run(model, out, *SHARED, *UNEVEN)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), (*UNEVEN, "optim.kl=0.1", "optim.lr=1e-4")])
def test_a_divided_run_learns_what_a_whole_one_learns(model, tmp_path, options):
    outs = [tmp_path / name for name in ("whole", "divided")]
    for out, shard in zip(outs, ("false", "true"), strict=True):
        run(model, out, "run.processes=2", f"run.shard={shard}", *options)
    for a, b in zip(*(read_jsonl(out / "metrics.jsonl") for out in outs), strict=True):
        for key in ("reward", "tokens"):
            assert a[key] == b[key], key
        for key in ("grad_norm", "entropy", "loss", "kl_start"):
            assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-6), key
    a, b = (saved(out, 4) for out in outs)
    assert a.keys() == b.keys()
    assert all(torch.allclose(a[n], b[n], atol=1e-4) for n in a)
    a, b = (saved(out, 4, "optimizer.safetensors") for out in outs)
    assert {n: (t.shape, t.dtype) for n, t in a.items()} == {n: (t.shape, t.dtype) for n, t in b.items()}


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(model, shared, tmp_path):
    out = tmp_path / "cut"
    with subprocess.Popen(
        command(model, out, *SHARED, *UNEVEN), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        for line in process.stderr:
            if line.startswith("step 2"):
                os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "checkpoints" / "step_00004").exists()
    run(model, out, *SHARED, *UNEVEN, "--resume")
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert small.weights(out, 4, file) == small.weights(shared, 4, file)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("run.processes=1", "run.shard=false"), ("run.processes=3",)])
def test_a_run_goes_on_with_another_number_of_processes(model, shared, tmp_path, options):
    out = tmp_path / "run"
    shutil.copytree(shared, out)
    for step in (3, 4):
        shutil.rmtree(out / "checkpoints" / f"step_{step:05d}")
    (out / "summary.json").unlink()
    run(model, out, *SHARED, *UNEVEN, *options, "--resume")
    # the same dialogues and masters: the same weights, up to the rounding of sums
    masters = [
        {n: t for n, t in saved(x, 3, "optimizer.safetensors").items() if n.startswith("master/")}
        for x in (shared, out)
    ]
    assert masters[0].keys() == masters[1].keys()
    assert all((masters[0][n] - masters[1][n]).abs().mean() < 1e-3 for n in masters[0])


@pytest.mark.slow
def test_its_model_is_exported(shared, tmp_path):
    done = mapo("export", shared, "--step", "last", "--out", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    weights = load_policy(str(tmp_path / "model"), dtype="bfloat16", device="cpu").model.state_dict()
    trained = saved(shared, 4)
    assert all(torch.equal(weights[name], trained[name]) for name in trained)


@pytest.mark.slow
def test_a_role_that_samples_the_start_keeps_the_reference_whole(cast_model, tmp_path):
    roles = ["roles.agents=llm", f"roles.everyone.model=local:{cast_model}", "roles.context=4096"]
    roles += ["roles.everyone.judging=readout", f"roles.judge.model=local:{cast_model}"]
    roles += [f"roles.{role}.max_tokens={limit}" for role, limit in LIMITS.items()]
    short = ("optim.steps=1", "eval.every=0", "rollout.siblings=2", "rollout.max_turns=2")
    done = run(cast_model, tmp_path / "run", *SHARED, *roles, *short)
    assert "weights shared with the policy" in done.stderr
    (line,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert line["tokens"] > 0
