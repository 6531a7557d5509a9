"""Checkpoints: bit for bit back, whole or absent whatever happens on the way, damage seen."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mapo.config import Lora
from mapo.errors import RecordError, StoreError
from mapo.local_model import files
from mapo.local_model.files import read_tensors, write_tensors
from mapo.local_model.policy import load_policy
from mapo.train.checkpoint import LEFTOVERS, latest, load, remove_old, save
from mapo.train.optim import make_optimizer
from support.tiny_policy import tiny_folder, tiny_loss

STATE = {"step": 3, "seed": 7, "order": [3, 1, 2], "best": None, "rate": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def trained(folder):
    return start(folder, steps=1)


def start(folder, steps=0, **how):
    policy = load_policy(str(folder), device="cpu", **how)
    optimizer = make_optimizer(policy.model)
    train(policy, optimizer, range(steps))
    return policy, optimizer


def train(policy, optimizer, seeds):
    policy.model.train()
    for seed in seeds:
        torch.manual_seed(seed)  # dropout, as the training loop does it
        tiny_loss(policy, seed).backward()
        optimizer.clip(1.0)
        optimizer.step(1e-2)
        optimizer.zero_grad()


def parameters(policy):
    return {n: p.detach().clone() for n, p in policy.model.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


HOWS = {
    "whole": {},
    "masters": {"dtype": "bfloat16"},
    "lora": {"lora": Lora(rank=2, dropout=0.5)},
    "lora on bfloat16": {"lora": Lora(rank=2), "dtype": "bfloat16"},
}


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS.keys())
def test_a_resumed_run_equals_an_undisturbed_one(folder, tmp_path, how):
    torch.manual_seed(1)
    policy, optimizer = start(folder, **how)
    train(policy, optimizer, range(3))
    save(tmp_path / "step_00003", policy, optimizer, STATE)
    train(policy, optimizer, range(3, 6))

    torch.manual_seed(99)
    again, its = start(folder, **how)
    assert load(tmp_path / "step_00003", again, its) == STATE
    train(again, its, range(3, 6))
    assert same(parameters(policy), parameters(again))
    assert same(optimizer.tensors(), its.tensors())


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_checkpoint_is_a_plain_folder(tmp_path, tied):
    policy, optimizer = start(tiny_folder(tmp_path / "m", tied=tied), steps=1)
    save(tmp_path / "step_00001", policy, optimizer, STATE)
    stored = load_file(tmp_path / "step_00001" / "model.safetensors")
    assert ("lm_head.weight" in stored) is not tied
    again = load_policy(str(tmp_path / "step_00001"), device="cpu")
    assert same(parameters(policy), parameters(again))
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template


def test_an_adapter_checkpoint_is_a_plain_adapter_folder(folder, tmp_path):
    policy, optimizer = start(folder, steps=2, lora=Lora(rank=2))
    save(tmp_path / "step_00002", policy, optimizer, STATE)
    again = load_policy(str(tmp_path / "step_00002"), device="cpu")
    assert again.lora and same(parameters(policy), parameters(again))


def test_the_state_records_what_was_trained(folder, tmp_path):
    policy, optimizer = start(folder, lora=Lora(rank=2, alpha=3))
    save(tmp_path / "step_00001", policy, optimizer, STATE)
    told = json.loads((tmp_path / "step_00001" / "state.json").read_text())
    assert told["schema"] == "mapo.checkpoint/1" and told["state"] == STATE
    assert told["model"] == {
        "source": str(folder),
        "name": "tiny",
        "dtype": "float32",
        "lora": {"rank": 2, "alpha": 3, "dropout": 0.0},
    }
    assert {"adapter_model.safetensors", "optimizer.safetensors", "tokenizer.json"} < set(told["files"])


def test_nothing_is_pickled(trained, tmp_path):
    save(tmp_path / "step_00001", *trained, STATE)
    suffixes = {path.suffix for path in (tmp_path / "step_00001").iterdir()}
    assert suffixes <= {".safetensors", ".json", ".jinja"}


def test_tensors_survive_their_file(tmp_path):
    tensors = {
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "scalar": torch.tensor(3.0),
        "none": torch.zeros(0, 4),
        "ids": torch.tensor([1, -2]),
        "é/ü": torch.tensor([True, False]),
    }
    write_tensors(tmp_path / "t.safetensors", tensors)
    back = read_tensors(tmp_path / "t.safetensors")
    assert same(tensors, back) and all(back[n].dtype == t.dtype for n, t in tensors.items())


# ---- kills


class Kill(BaseException):
    """Nothing in the package catches it: what comes after never happens."""


def kill_at(monkeypatch, count):
    """Stop at the count-th write, sync, rename or removal; returns whether it came to that."""
    left = [count]

    def counted(plain):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                raise Kill
            return plain(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(os, "unlink", counted(os.unlink))  # each file of a folder that is removed
    monkeypatch.setattr(os, "rmdir", counted(os.rmdir))
    monkeypatch.setattr("mapo.train.checkpoint.write_tensors", counted(write_tensors))
    monkeypatch.setattr(Path, "mkdir", counted(Path.mkdir))
    return left


def killed_everywhere(monkeypatch, act, check):
    """Run `act`, killed at every instant in turn, and `check` after each; returns how many there were."""
    for count in range(1, 200):
        with monkeypatch.context() as patch:
            left = kill_at(patch, count)
            with contextlib.suppress(Kill):
                act()
        check(count)
        if left[0] > 0:
            return count
    raise AssertionError("never came to an end")


def test_a_kill_at_any_instant_leaves_a_whole_checkpoint_or_none(trained, folder, tmp_path, monkeypatch):
    policy, optimizer = trained
    save(tmp_path / "step_00001", policy, optimizer, STATE)

    def check(_):
        newest = latest(tmp_path)
        assert newest is not None
        assert load(newest, policy, optimizer) == STATE
        assert (newest.name == "step_00002") == (tmp_path / "step_00002").exists()
        shutil.rmtree(tmp_path / "step_00002", ignore_errors=True)

    act = lambda: save(tmp_path / "step_00002", policy, optimizer, STATE)  # noqa: E731
    assert killed_everywhere(monkeypatch, act, check) > 10
    save(tmp_path / "step_00003", policy, optimizer, STATE)
    assert {p.name for p in tmp_path.iterdir()} == {"step_00001", "step_00003"}  # leftovers are gone


def test_a_kill_while_saving_again_keeps_the_earlier_one(trained, tmp_path, monkeypatch):
    policy, optimizer = trained
    save(tmp_path / "step_00001", policy, optimizer, STATE)
    save(tmp_path / "step_00002", policy, optimizer, STATE)

    def check(_):
        assert latest(tmp_path) is not None
        assert not (tmp_path / "step_00002").exists() or latest(tmp_path) == tmp_path / "step_00002"
        save(tmp_path / "step_00002", policy, optimizer, STATE)

    killed_everywhere(monkeypatch, lambda: save(tmp_path / "step_00002", policy, optimizer, STATE), check)


def test_a_kill_while_pruning_leaves_no_half_checkpoint(trained, tmp_path, monkeypatch):
    for step in (1, 2, 3):
        save(tmp_path / f"step_{step:05d}", *trained, STATE)

    def check(_):
        for path in tmp_path.glob("step_*"):
            load(path, *trained)
        assert latest(tmp_path) == tmp_path / "step_00003"

    killed_everywhere(monkeypatch, lambda: remove_old(tmp_path, last=1), check)
    assert [p.name for p in tmp_path.glob("step_*")] == ["step_00003"]


# ---- damage


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "config.json"])
def test_damage_is_named_and_passed_over(trained, tmp_path, name, damage):
    save(tmp_path / "step_00001", *trained, STATE)
    shutil.copytree(tmp_path / "step_00001", tmp_path / "step_00002")
    assert latest(tmp_path) == tmp_path / "step_00002"
    before = parameters(trained[0])
    damage(tmp_path / "step_00002" / name)
    with pytest.raises(StoreError, match=f"step_00002.*{name}"):
        load(tmp_path / "step_00002", *trained)
    assert same(before, parameters(trained[0]))
    assert latest(tmp_path) == tmp_path / "step_00001"


def test_there_may_be_no_checkpoint(tmp_path):
    assert latest(tmp_path / "none") is None and latest(tmp_path) is None
    (tmp_path / "step_00001").mkdir()
    (tmp_path / "step_x").mkdir()
    assert latest(tmp_path) is None
    with pytest.raises(StoreError, match="not a checkpoint"):
        load(tmp_path / "step_00001", None)


def test_the_wrong_model_is_refused(trained, folder, tmp_path):
    save(tmp_path / "step_00001", *trained, STATE)
    with pytest.raises(StoreError, match="holds all weights, but the run trains LoRA adapters"):
        load(tmp_path / "step_00001", *start(folder, lora=Lora(rank=2)))
    other = start(tiny_folder(tmp_path / "other", tied=False))
    with pytest.raises(StoreError, match=r"belongs to another model \(1 tensors differ.*lm_head.weight"):
        load(tmp_path / "step_00001", *other)
    save(tmp_path / "step_00002", *start(folder, lora=Lora(rank=2)), STATE)
    with pytest.raises(StoreError, match="to another model"):
        load(tmp_path / "step_00002", *start(folder, lora=Lora(rank=4)))


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
@pytest.mark.parametrize(("kept", "asked"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_run_goes_on_in_its_own_dtype(folder, tmp_path, kept, asked, lora):
    """dtype "auto" follows the device: elsewhere masters would be dropped, or be missing."""
    save(tmp_path / "step_00001", *start(folder, dtype=kept, lora=lora), STATE)
    other = start(folder, dtype=asked, lora=lora)
    before = parameters(other[0])
    with pytest.raises(StoreError, match=rf"trained in {kept}, but .* uses {asked}.*model.dtype={kept}"):
        load(tmp_path / "step_00001", *other)
    assert same(before, parameters(other[0]))


def test_an_optimizer_of_another_model_is_told(folder, tmp_path):
    policy, _ = start(folder)
    _, other = start(tiny_folder(tmp_path / "other", tied=False), steps=1)
    save(tmp_path / "step_00001", policy, other, STATE)
    with pytest.raises(StoreError, match=r"optimizer.safetensors: .* another model .*lm_head.weight"):
        load(tmp_path / "step_00001", *start(folder))


def test_without_an_optimizer(trained, tmp_path):
    policy, optimizer = trained
    save(tmp_path / "step_00001", policy, None, STATE)
    assert load(tmp_path / "step_00001", policy) == STATE
    with pytest.raises(StoreError, match="no optimizer state"):
        load(tmp_path / "step_00001", policy, optimizer)


# ---- a folder that makes room for its successor


def between_the_renames(monkeypatch, then):
    """`then` is called once the old folder is out of the way, and the new one not yet there."""
    rename = Path.rename

    def renamed(self, target):
        found = rename(self, target)
        if Path(target).name.endswith(".old.tmp"):
            monkeypatch.setattr(Path, "rename", rename)
            then()
        return found

    monkeypatch.setattr(Path, "rename", renamed)


def stop():
    raise KeyboardInterrupt


def test_stopped_between_two_renames_the_old_one_is_put_back(trained, tmp_path, monkeypatch):
    save(tmp_path / "step_00004", *trained, STATE)
    between_the_renames(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "step_00004", *trained, STATE | {"seed": 8})
    assert [path.name for path in tmp_path.iterdir()] == ["step_00004"]
    assert load(tmp_path / "step_00004", trained[0]) == STATE


@pytest.mark.parametrize("other", ["step_00004", "step_00008"])
def test_killed_between_two_renames_the_next_save_finds_the_old_one(trained, tmp_path, other):
    save(tmp_path / "step_00004", *trained, STATE)
    (tmp_path / "step_00004").rename(tmp_path / ".step_00004.old.tmp")
    (tmp_path / ".step_00004.77.tmp").mkdir()
    save(tmp_path / other, *trained, STATE | {"seed": 8})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"step_00004", other})
    assert load(tmp_path / "step_00004", trained[0])["seed"] == (8 if other == "step_00004" else 7)


def test_a_stop_at_any_other_time_keeps_the_old_one_too(trained, tmp_path):
    with files.atomic_folder(tmp_path / "m") as draft:
        (draft / "old").write_text("")
    with pytest.raises(KeyboardInterrupt), files.atomic_folder(tmp_path / "m"):
        stop()
    assert [path.name for path in tmp_path.rglob("*")] == ["m", "old"]


def test_what_was_removed_is_not_put_back(trained, tmp_path, monkeypatch):
    save(tmp_path / "step_00001", *trained, STATE)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: stop())
    with pytest.raises(KeyboardInterrupt):
        files.remove(tmp_path / "step_00001")
    monkeypatch.undo()
    files.restore_replaced(tmp_path, LEFTOVERS)
    assert latest(tmp_path) is None
    save(tmp_path / "step_00002", *trained, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00002"]


# ---- a disk that refuses


@pytest.mark.parametrize("limit", [100, 2_000, 6_000, 40_000])
def test_a_disk_that_takes_no_more_is_told(trained, tmp_path, limit):
    """A limit on the size of files, met by the weights, the tokenizer (written in Rust) or the optimizer."""
    save(tmp_path / "step_00001", *trained, STATE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(StoreError, match="step_00002: cannot be written"):
            save(tmp_path / "step_00002", *trained, STATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step_00001"]
    assert latest(tmp_path) == tmp_path / "step_00001"


def test_a_full_disk_told_by_a_library_in_words(tmp_path):
    with pytest.raises(StoreError, match="disk is full"), files.atomic_folder(tmp_path / "out"):
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        save(tmp_path / "file" / "step_00001", *trained, STATE)


def test_a_state_that_json_cannot_hold_is_refused(trained, tmp_path):
    with pytest.raises(RecordError, match="Use plain JSON values"):
        save(tmp_path / "step_00001", *trained, {"reward": float("nan")})
    assert not list(tmp_path.iterdir())


# ---- pruning


def test_keep_prunes_all_but_the_newest_and_the_named(trained, tmp_path):
    save(tmp_path / "step_00001", *trained, STATE)
    for step in (2, 3, 10, 11):
        shutil.copytree(tmp_path / "step_00001", tmp_path / f"step_{step:05d}")
    gone = remove_old(tmp_path, last=2, also={2})
    assert [path.name for path in gone] == ["step_00001", "step_00003"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00002", "step_00010", "step_00011"]


def test_a_damaged_checkpoint_costs_no_good_one_its_place(trained, tmp_path):
    save(tmp_path / "step_00001", *trained, STATE)
    shutil.copytree(tmp_path / "step_00001", tmp_path / "step_00002")
    (tmp_path / "step_00002" / "model.safetensors").unlink()
    remove_old(tmp_path, last=1)
    assert latest(tmp_path) == tmp_path / "step_00001"


# ---- checkpoints from somebody else: a checksum is not a signature


def forge(checkpoint, change):
    """Change the content of state.json and correct its checksum."""
    path = checkpoint / "state.json"
    body = json.loads(path.read_bytes())
    del body["sha256"]
    change(body)
    digest = hashlib.sha256(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps({**body, "sha256": digest}))


ODD = {
    "file outside": lambda body: body["files"].update({"../outside": {"bytes": 0, "sha256": ""}}),
    "files": lambda body: body.update(files=[1]),
    "file": lambda body: body["files"].update(config=3),
    "state": lambda body: body.update(state=None),
    "model": lambda body: body.update(model="pocket"),
    "lora": lambda body: body["model"].update(lora="x"),
    "not a number": lambda body: body["state"].update(rate=float("nan")),
}


@pytest.mark.parametrize("name", ODD)
def test_a_forged_checkpoint_is_damaged(trained, tmp_path, name):
    folder = save(tmp_path / "step_00003", *trained, STATE)
    forge(folder, lambda body: None)
    assert latest(tmp_path) == folder  # the checksum is right
    forge(folder, ODD[name])
    assert latest(tmp_path) is None


@pytest.mark.parametrize("name", ["state.json", "config.json"])
def test_a_checkpoint_with_a_pipe_is_damaged(trained, tmp_path, name):
    folder = save(tmp_path / "step_00003", *trained, STATE)
    forge(folder, lambda body: body["files"]["config.json"].update(bytes=0))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert latest(tmp_path) is None


def test_a_deeply_nested_state_is_damaged(trained, tmp_path):
    folder = save(tmp_path / "step_00003", *trained, STATE)
    (folder / "state.json").write_text("[" * 100_000)
    assert latest(tmp_path) is None
