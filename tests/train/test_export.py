"""From a run to a plain folder: the weights that were trained, adapters merged, whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from mapo.cli.common.stop import tidy
from mapo.cli.training.export import export as export_command
from mapo.config import Lora
from mapo.errors import InputError, StoreError
from mapo.local_model import files
from mapo.local_model.policy import load_policy
from mapo.store import RunDir
from mapo.train.checkpoint import save
from mapo.train.export import export, find_checkpoint
from mapo.train.optim import make_optimizer
from support.tiny_policy import tiny_folder, tiny_loss

IDS = torch.tensor([[0, 5, 6, 7, 1]])


def make_run(root, base, **how):
    """Three checkpoints, the second the best; returns the logits at each step."""
    policy = load_policy(str(base), device="cpu", **how)
    optimizer = make_optimizer(policy.model)
    logits = {}
    for step in (1, 2, 3):
        tiny_loss(policy, step).backward()
        optimizer.step(5e-2)
        optimizer.zero_grad()
        save(RunDir(root).checkpoint(step), policy, optimizer, {"step": step})
        with torch.no_grad():
            logits[step] = policy.model(input_ids=IDS).logits.float()
    (root / "best.json").write_text('{"step": 2, "epm_q": 50.0}')
    return logits


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    return root, make_run(root, base)


@pytest.fixture(scope="module")
def lora(base, tmp_path_factory):
    root = tmp_path_factory.mktemp("lora")
    return root, make_run(root, base, lora=Lora(rank=2, alpha=8))


def loaded(folder):
    """As anybody would load it."""
    return AutoModelForCausalLM.from_pretrained(folder)


def logits_of(folder):
    with torch.no_grad():
        return loaded(folder)(input_ids=IDS).logits.float()


def test_a_whole_model_comes_out_bit_for_bit(whole, tmp_path):
    root, logits = whole
    for step, number in (("best", 2), ("last", 3), ("1", 1)):
        out = export(root, tmp_path / step, step=step)
        assert torch.equal(logits_of(out), logits[number])
        assert not {"state.json", "optimizer.safetensors"} & {path.name for path in out.iterdir()}


def test_one_checkpoint_is_enough(whole, tmp_path):
    root, logits = whole
    out = export(RunDir(root).checkpoint(1), tmp_path / "out")
    assert torch.equal(logits_of(out), logits[1])


def test_an_adapter_is_merged(lora, base, tmp_path):
    root, logits = lora
    out = export(root, tmp_path / "out")
    assert not (out / "adapter_config.json").exists()
    torch.testing.assert_close(logits_of(out), logits[2], rtol=1e-4, atol=1e-5)
    assert (logits_of(out) - logits_of(base)).abs().max() > 1e-2
    assert not any("lora" in name for name, _ in loaded(out).named_parameters())


def test_an_adapter_may_stay_one(lora, base, tmp_path):
    from peft import PeftModel

    root, logits = lora
    out = export(root, tmp_path / "out", merge=False)
    model = PeftModel.from_pretrained(loaded(base), out)
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, logits[2])
    assert not {"state.json", "optimizer.safetensors"} & {path.name for path in out.iterdir()}


def test_a_merge_in_bfloat16_is_rounded_once(base, tmp_path):
    make_run(tmp_path / "run", base, dtype="bfloat16", lora=Lora(rank=2, alpha=8))
    exact = loaded(export(tmp_path / "run", tmp_path / "exact", dtype="float32"))
    rounded = loaded(export(tmp_path / "run", tmp_path / "rounded"))
    assert rounded.dtype == torch.bfloat16
    # nearest bfloat16 number of the float32 merge; the base as the file holds it, not as it was in training
    for (name, a), b in zip(exact.named_parameters(), rounded.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b), name


def test_whoever_may_read_the_config_may_read_the_weights(whole, tmp_path):
    out = export(whole[0], tmp_path / "out")
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1


def test_dtype_on_request(whole, tmp_path):
    assert loaded(export(whole[0], tmp_path / "half", dtype="bfloat16")).dtype == torch.bfloat16


def test_the_tokenizer_and_its_template_come_along(whole, tmp_path):
    out = export(whole[0], tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(out)
    talk = [{"role": "user", "content": "hi 12"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False).startswith("<|im_start|>user\nhi 12")


def test_other_programs_find_the_names_they_look_for(whole, tmp_path):
    out = export(whole[0], tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["torch_dtype"] == config["dtype"] == "float32"
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    assert (
        tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast" and "im_start" in tokenizer["chat_template"]
    )


def test_scaled_rotations_survive_their_older_names(base, tmp_path):
    from transformers import AutoConfig

    from mapo.train.export import _for_older_readers

    rope = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    shutil.copytree(base, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    _for_older_readers(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert AutoConfig.from_pretrained(tmp_path / "m").rope_parameters == rope


def test_the_best_of_a_run_without_validation_is_its_last(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    (tmp_path / "run" / "best.json").unlink()
    assert find_checkpoint(tmp_path / "run") == RunDir(tmp_path / "run").checkpoint(3)


def test_what_is_not_there_is_told(whole, tmp_path):
    with pytest.raises(InputError, match="exist for steps 1, 2, 3"):
        export(whole[0], tmp_path / "out", step="9")
    with pytest.raises(InputError, match="best, last or the number"):
        export(whole[0], tmp_path / "out", step="first")
    with pytest.raises(InputError, match="there is no such folder"):
        export(tmp_path / "no-run", tmp_path / "out")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.json").write_text("{}")
    with pytest.raises(InputError, match="names no step"):
        export(tmp_path / "run", tmp_path / "out")


def test_nothing_is_written_over(whole, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        export(whole[0], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_checkpoint_is_not_exported(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    weights = RunDir(tmp_path / "run").checkpoint(2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(StoreError, match="model.safetensors: the file is damaged"):
        export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_whose_base_has_gone_is_told(tmp_path):
    base = tiny_folder(tmp_path / "base")
    make_run(tmp_path / "run", base, lora=Lora(rank=2))
    shutil.rmtree(base)
    with pytest.raises(InputError, match="base: there is no such folder"):
        export(tmp_path / "run", tmp_path / "out")


def test_what_killed_exports_left_goes_with_the_next_and_nothing_else(whole, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, mine, living = ended.pid, os.getpid(), os.getppid()
    gone = [f".m.{dead}.tmp", f".m.{mine}.tmp", ".m.old.tmp", f".m.{10**30}.tmp"]
    kept = [f".m.{living}.tmp", f".m.v2.{dead}.tmp", ".m.notes.tmp", f".n.{dead}.tmp"]
    for name in (*gone, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("half")
    export(whole[0], tmp_path / "m")
    assert {path.name for path in tmp_path.iterdir()} == {"m", *kept}


def test_another_persons_process_is_a_living_one(monkeypatch):
    def theirs(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", theirs)
    assert not files._is_dead("12345")


# ---- the command

app = typer.Typer()
app.command()(export_command)


def test_the_command(whole, tmp_path):
    done = CliRunner().invoke(app, [str(whole[0]), "--out", str(tmp_path / "m"), "--step", "1"])
    assert done.stdout.startswith(f"{tmp_path / 'm'}: ready, from {RunDir(whole[0]).checkpoint(1)}")
    assert torch.equal(logits_of(tmp_path / "m"), whole[1][1])
    error = (
        CliRunner().invoke(app, [str(whole[0]), "--out", str(tmp_path / "n"), "--dtype", "int4"]).exception
    )
    assert isinstance(error, InputError) and "float32 or bfloat16" in str(error)


STOPPED = """
import signal
from mapo.cli import run
from mapo.train import export
def half_way(folder):
    with open({gate!r}, "w") as file:  # blocks until somebody reads
        file.write(str(folder))
    signal.pause()
export._for_older_readers = half_way
run()
"""


def test_stopped_half_way_it_leaves_nothing(whole, tmp_path, monkeypatch):
    out, drafts = tmp_path / "out" / "m", []

    def stopped(draft):
        drafts.append(draft.is_dir())
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("mapo.train.export._for_older_readers", stopped)
    done = CliRunner().invoke(app, [str(whole[0]), "--out", str(out)])
    assert done.exit_code == 143 and done.stderr.endswith(f"stopped; nothing was written to {out}\n")
    assert drafts == [True] and not list(out.parent.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_stopped_half_way_it_leaves_nothing_or_what_the_next_one_removes(whole, tmp_path, how, status):
    gate, out = tmp_path / "gate", tmp_path / "out" / "m"
    os.mkfifo(gate)
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED.format(gate=str(gate)), "export", str(whole[0]), "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    with open(gate) as file:
        draft = Path(file.read())
    assert draft.is_dir() and draft.parent == out.parent
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status and draft.exists() == (how == signal.SIGKILL)
    if how != signal.SIGKILL:
        assert said.endswith(f"stopped; nothing was written to {out}\n")
    export(whole[0], out)
    assert [path.name for path in out.parent.iterdir()] == ["m"]


def test_stopped_when_it_is_written_it_says_so(tmp_path, monkeypatch, capsys):
    """The signal comes after the last rename, before the command has told of it."""
    out = tmp_path / "m"
    sync = files.sync_folder

    def stopped(folder):
        sync(folder)
        if out.exists():
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(files, "sync_folder", stopped)
    with pytest.raises(typer.Exit) as stop, tidy(out), files.atomic_folder(out) as draft:
        (draft / "config.json").write_text("{}")
    assert stop.value.exit_code == 143 and (out / "config.json").exists()
    assert capsys.readouterr().err == f"stopped; {out} is ready\n"
    (tmp_path / "n").mkdir()
    with pytest.raises(typer.Exit), tidy(tmp_path / "n"):
        signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().err == f"stopped; nothing was written to {tmp_path / 'n'}\n"


def test_the_word_of_a_stop_is_kept_within_the_work(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as stop, tidy(tmp_path / "m"):
        signal.raise_signal(signal.SIGTERM)
    assert stop.value.exit_code == 143 and signal.getsignal(signal.SIGTERM) is before
    told = []

    def elsewhere():
        with tidy(tmp_path / "m"):
            told.append("done")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert told == ["done"] and signal.getsignal(signal.SIGTERM) is before


def test_without_torch_the_command_says_what_to_install(monkeypatch, tmp_path):
    import mapo.train

    monkeypatch.delattr(mapo.train, "export", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "mapo.train.export", None)
    error = CliRunner().invoke(app, [str(tmp_path), "--out", str(tmp_path / "m")]).exception
    assert isinstance(error, InputError) and "pip install 'mapo-rl[train]'" in str(error)
