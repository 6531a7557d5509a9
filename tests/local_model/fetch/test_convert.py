"""From a GGUF file to a folder transformers loads: the same model, saved and trained at will."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mapo.errors import InputError, StoreError
from mapo.local_model.fetch import convert as module
from mapo.local_model.fetch.convert import convert, unrotate
from mapo.local_model.policy import load_policy
from mapo.train.optim import make_optimizer
from support.gguf_files import TOKENS, make_model, source_of, write_gguf

ARCHITECTURES = ("llama", "qwen2")


@pytest.fixture(scope="module")
def models():
    return {name: make_model(name) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, model in models.items():
        write_gguf(folder / f"{name}.gguf", model)
        convert(folder / f"{name}.gguf", folder / name, source_of(folder / f"{name}.gguf", name))
    return folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_model_is_the_same(name, models, folders):
    policy = load_policy(str(folders / name), device="cpu")
    ids = torch.randint(0, len(TOKENS), (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, expected = policy.model(input_ids=ids).logits, models[name](input_ids=ids).logits
    assert torch.equal(ours, expected)
    assert {n: p.shape for n, p in policy.model.named_parameters()} == {
        n: p.shape for n, p in models[name].named_parameters()
    }
    assert policy.model.config.rms_norm_eps == 1e-5


def test_rows_are_unpaired():
    # one head of width 4: rows 0 2 1 3 come back as 0 1 2 3
    weight = torch.arange(4.0)[:, None]
    assert unrotate(weight[[0, 2, 1, 3]], 1).flatten().tolist() == [0, 1, 2, 3]


def test_of_two_copies_of_the_embeddings_the_outputs_is_kept(models, tmp_path):
    better = np.full((len(TOKENS), 64), 0.25, dtype=np.float32)
    write_gguf(tmp_path / "a.gguf", models["qwen2"], output=better)
    convert(tmp_path / "a.gguf", tmp_path / "a", source_of(tmp_path / "a.gguf", "qwen2"))
    policy = load_policy(str(tmp_path / "a"), device="cpu")
    assert policy.model.config.tie_word_embeddings
    assert policy.model.get_input_embeddings().weight.unique().tolist() == [0.25]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_folder_is_saved_and_trained_whole(name, folders, tmp_path):
    policy = load_policy(str(folders / name), device="cpu")
    assert not getattr(policy.model, "is_quantized", False)
    optimizer = make_optimizer(policy.model)
    ids = torch.tensor([[1, 5, 6, 7]])
    policy.model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step(1e-3)
    policy.model.save_pretrained(tmp_path / "saved")
    policy.tokenizer.save_pretrained(tmp_path / "saved")
    again = load_policy(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(again.model.lm_head.weight, policy.model.lm_head.weight)


def test_numbers_are_split_into_digits(folders):
    for name in ARCHITECTURES:
        tokenizer = load_policy(str(folders / name), device="cpu").tokenizer
        # "1 2" is a merge, yet digits stand alone; words do merge
        assert tokenizer.tokenize("he 12 hello") == ["he", "Ġ", "1", "2", "Ġhe", "ll", "o"]
        assert tokenizer("<|im_start|>12<|im_end|>")["input_ids"][0::3] == [1, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I'm  here", ["I", "'", "m", "Ġ", "Ġhe", "r", "e"]),
        ("a\n\n b", ["a", "Ċ", "Ċ", "Ġ", "b"]),
        ("e\u0301", ["Ã", "©"]),  # composed first
        ("<tool_call>1", ["<tool_call>", "1"]),
    ],
)
def test_qwen2_splits_text_as_its_publisher_does(folders, text, words):
    assert load_policy(str(folders / "qwen2"), device="cpu").tokenizer.tokenize(text) == words


def test_unused_tokens_are_left_out(folders):
    tokenizer = load_policy(str(folders / "qwen2"), device="cpu").tokenizer
    assert len(tokenizer) == len(TOKENS) - 1 and "[PAD1]" not in tokenizer.get_vocab()
    assert tokenizer.decode(tokenizer("<tool_call>")["input_ids"], skip_special_tokens=True) == "<tool_call>"


@pytest.mark.parametrize(("name", "bos"), [("llama", 1), ("qwen2", None)])
def test_marks_and_template(name, bos, folders):
    policy = load_policy(str(folders / name), device="cpu")
    tokenizer = policy.tokenizer
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, bos)
    assert policy.model.generation_config.eos_token_id == [2, 0]
    messages = [{"role": "user", "content": "hé  12 , ok"}]
    text = "<|im_start|>user\nhé  12 , ok<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokenizer.decode(ids) == text and ids[-1] != 2


def test_the_licence_and_the_origin_are_written_beside_it(folders):
    assert "Apache License" in (folders / "qwen2" / "LICENSE").read_text()
    notice = (folders / "qwen2" / "NOTICE").read_text()
    assert "the Qwen team" in notice and "tiny-part1==0.2.0" in notice and "Modified" in notice


def test_loading_prints_no_warning(folders, caplog, recwarn):
    config = json.loads((folders / "qwen2" / "config.json").read_text())
    assert config["transformers_version"] >= "5"
    load_policy(str(folders / "qwen2"), device="cpu")
    assert not caplog.records and not recwarn.list


def test_another_model_is_rejected(models, tmp_path):
    write_gguf(tmp_path / "a.gguf", models["llama"], pre="llama-bpe")
    with pytest.raises(InputError, match="a.gguf: is not SmolLM2"):
        convert(tmp_path / "a.gguf", tmp_path / "a", source_of(tmp_path / "a.gguf", "llama"))


def test_a_full_disk_leaves_nothing(models, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "stream_tensors", fail)
    write_gguf(tmp_path / "a.gguf", models["llama"])
    with pytest.raises(StoreError, match="The disk is full"):
        convert(tmp_path / "a.gguf", tmp_path / "a", source_of(tmp_path / "a.gguf", "llama"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]
