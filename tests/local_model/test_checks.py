"""Model folders from elsewhere, loaded for real."""

import asyncio
import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from mapo.errors import InputError
from mapo.local_model.checks import check_model_folder
from mapo.local_model.policy import load_policy, load_tokenizer
from mapo.local_model.shipped import POCKET
from mapo.local_model.template import read_template
from mapo.models.chat import Request
from mapo.players.identity import fingerprint
from mapo.sampling.local import local_sampler
from mapo.sampling.sampler import LocalChat
from mapo.sampling.tokens import generation_ends
from mapo.types import Message


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(POCKET, tmp_path / "model")


def set_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def index_of(folder, name):
    """Move the weights to `name` and write an index that names it."""
    target = folder / name
    (folder / "model.safetensors").rename(target)
    with safe_open(str(target), "pt") as weights:
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights.keys(), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "w.bin", "sub/w.safetensors", "/tmp/w.safetensors", ".safetensors"]
)
def test_weights_are_plain_safetensors_files_in_the_folder(folder, name):
    (folder / "sub").mkdir()
    index = {"weight_map": {"lm_head.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="not a safetensors file in this folder"):
        load_policy(str(folder))


def test_weights_in_several_files_are_loaded_and_identified(folder):
    index_of(folder, "model-00001-of-00001.safetensors")
    assert load_policy(str(folder)).model is not None
    before = fingerprint(folder)
    with open(folder / "model-00001-of-00001.safetensors", "r+b") as weights:
        weights.seek(-8, os.SEEK_END)
        weights.write(bytes(8))
    assert fingerprint(folder) != before


def test_an_attention_kernel_from_elsewhere_is_refused(folder):
    set_config(folder, _attn_implementation="kernels-community/attention")
    with pytest.raises(InputError, match="attention kernels from elsewhere are code"):
        load_policy(str(folder))
    set_config(folder, _attn_implementation=None, text_config={"_attn_implementation": "someone/kernel"})
    with pytest.raises(InputError, match="are not loaded"):
        check_model_folder(folder)


def test_the_attention_that_was_asked_for_wins(folder):
    set_config(folder, _attn_implementation="eager")
    policy = load_policy(str(folder))
    assert policy.model.config._attn_implementation == "sdpa"
    ids = torch.tensor([[1, 2, 3]])
    assert torch.isfinite(policy.model(ids).logits).all()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        (" " * (1 << 20) + "{}", "larger than 1 MB"),
        ("[]", "not a JSON object"),
        ("{", "cannot be read"),
        ('{"hidden_size": 1000000000}', "hidden_size is 1000000000, the limit is 131072"),
        ('{"vocab_size": 1' + "0" * 4000 + "}", "vocab_size is a huge number"),
        ('{"num_hidden_layers": -1}', "num_hidden_layers is -1"),
    ],
)
def test_a_config_that_cannot_be_meant_is_one_clear_error(folder, content, match):
    (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match=match):
        load_policy(str(folder))


def test_whatever_the_libraries_raise_becomes_one_clear_error(folder):
    set_config(folder, hidden_size=7)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_policy(str(folder))


def test_pipes_in_a_folder_are_not_read(folder):
    before = fingerprint(folder)
    os.mkfifo(folder / "pipe.json")
    assert fingerprint(folder) == before


def set_tokenizer(folder, **changes):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | changes))


def test_a_tokenizer_whose_replacements_fill_the_memory_is_refused(folder):
    grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 200}
    set_tokenizer(folder, normalizer={"type": "Sequence", "normalizers": [grow] * 4})
    with pytest.raises(InputError, match="lengthen a text more than 1000 times"):
        load_tokenizer(str(folder))


def test_a_pattern_on_which_the_tokenizer_gives_up_is_an_error(folder):
    pattern = {"Regex": "(a+)+$|((.*)*)*x"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    set_tokenizer(folder, pre_tokenizer=split)
    with pytest.raises(InputError, match="the tokenizer fails"):
        read_template(load_tokenizer(str(folder)))


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(folder):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    words = {word: n if n < 5 else n + 10**6 for word, n in model["vocab"].items()}
    set_tokenizer(folder, model=model | {"vocab": words})

    async def reply():
        async with local_sampler(str(folder), slots=1, context=256) as sampler:
            chat = LocalChat(sampler, "job")
            await chat.reply(Request((Message("user", "I am tired."),), max_tokens=4))

    with pytest.raises(InputError, match="but the model has"):
        asyncio.run(reply())


def test_end_ids_that_are_not_ids_are_ignored():
    def ends(value):
        return generation_ends(SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=value)))

    assert ends("x") == ends(None) == ends([None, -1, "x", True]) == frozenset()
    assert ends([2, 3]) == {2, 3}
    assert ends(2) == {2}


def test_a_deeply_nested_adapter_config_is_refused(folder):
    (folder / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        load_policy(str(folder))
