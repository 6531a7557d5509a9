"""Checks of a model's folder before any library reads it. The folder may come from anywhere.

Only safetensors files in the folder itself are read. A config may neither select code (an attention kernel
from a hub) nor ask for absurd sizes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.local_model.shipped import local_folder

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
MAX_TOKENIZER_BYTES = 256 << 20
MAX_EXPANSION = 1000
"""Times by which a tokenizer's replacements may lengthen a text."""
LARGEST = {
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position_embeddings": 1 << 27,
}
_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


def check_model_folder(folder: Path) -> None:
    """Raise InputError if the folder's config or index of weights must not be used."""
    config = folder / "config.json"
    if config.exists():
        _check_config(config, read_json_object(config, MAX_CONFIG_BYTES))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        _check_index(index, read_json_object(index, MAX_INDEX_BYTES))
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        _check_tokenizer(tokenizer, read_json_object(tokenizer, MAX_TOKENIZER_BYTES))


def longest_context(source: str) -> int | None:
    """Return the longest context of a model in a folder; None if it is not known without loading it."""
    folder = local_folder(source)
    config = folder / "config.json"
    length = (
        read_json_object(config, MAX_CONFIG_BYTES).get("max_position_embeddings")
        if config.is_file()
        else None
    )
    return length if type(length) is int and length > 0 else None


def read_json_object(path: Path, limit: int) -> dict[str, Any]:
    """Read a JSON object of at most `limit` bytes. Raises InputError if the file is anything else."""
    try:
        if not path.is_file():
            raise InputError("this is not a regular file", where=str(path))
        with open(path, "rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise InputError(f"the file is larger than {limit >> 20} MB", where=str(path))
        data = json.loads(content)
    except RecursionError:
        raise InputError("the file is nested too deeply", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"the file cannot be read ({error})", where=str(path)) from None
    if not isinstance(data, dict):
        raise InputError("the file is not a JSON object", where=str(path))
    return data


def _check_tokenizer(path: Path, tokenizer: dict[str, Any]) -> None:
    """Refuse replacements that multiply the length of a text until it fills the memory."""
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if math.prod(_replacement_lengths(tokenizer.get(part))) > MAX_EXPANSION:
            raise InputError(
                f"the replacements of its {part} lengthen a text more than {MAX_EXPANSION} times",
                where=str(path),
                fix="Use the model's original tokenizer",
            )


def _replacement_lengths(data: Any) -> Iterator[int]:
    """Yield the lengths of all replacement texts of a part of a tokenizer."""
    if isinstance(data, dict) and isinstance(content := data.get("content"), str):
        yield max(1, len(content))
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for value in inner:
        yield from _replacement_lengths(value)


def _check_config(path: Path, config: dict[str, Any]) -> None:
    for key, value in _entries(config):
        if "attn_implementation" in key and isinstance(value, str) and value not in _ATTENTION:
            raise InputError(
                f"{key} is {value[:80]!r}: attention kernels from elsewhere are code and are not loaded",
                where=str(path),
                fix=f"Remove it, or use one of: {', '.join(_ATTENTION)}",
            )
        limit = LARGEST.get(key)
        # type() and not isinstance(): a bool is an int
        if limit is not None and type(value) is int and not 0 <= value <= limit:
            shown = value if abs(value) < 10**18 else "a huge number"
            raise InputError(f"{key} is {shown}, the limit is {limit}", where=str(path))


def _entries(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values, nested ones included. The JSON reader has limited the depth."""
    for key, value in data.items() if isinstance(data, dict) else ():
        yield key, value
        yield from _entries(value)


def _check_index(path: Path, index: dict[str, Any]) -> None:
    names = index.get("weight_map")
    if not isinstance(names, dict):
        raise InputError("the index has no weight_map", where=str(path))
    for name in dict.fromkeys(map(str, names.values())):
        if not _PLAIN_NAME.fullmatch(name):
            raise InputError(
                f"the index lists {name[:80]!r}, which is not a safetensors file in this folder",
                where=str(path),
                fix="Save the model's weights as safetensors in one folder",
            )
        if not (path.parent / name).is_file():
            raise InputError(
                f"the index lists {name}, which is not in the folder",
                where=str(path),
                fix="Download it into the same folder",
            )
