"""GGUF files: metadata and memory-mapped tensors, dequantized to bfloat16 in small pieces.

The gguf library needs 18 seconds for the metadata of a large vocabulary and dequantizes 45 million weights
per second in K-quants; this reader needs one second, and reaches 200 million. Other quantizations are left to
the library.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapo.errors import InputError

Blocks = NDArray[np.uint8]

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_Q4_K, _Q6_K = 12, 14
_PIECE = 1 << 19
"""Weights dequantized at once: few enough for the intermediate results to stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A tensor of a GGUF file. `blocks` has one row of bytes per block of quantized weights."""

    name: str
    shape: tuple[int, ...]
    kind: int
    blocks: Blocks

    def bfloat16(self) -> Tensor:
        """Return the weights."""
        out = torch.empty(prod(self.shape), dtype=torch.bfloat16)
        size = len(out) // len(self.blocks)
        step = max(1, _PIECE // size)
        for start in range(0, len(self.blocks), step):
            piece = self.blocks[start : start + step]
            out[start * size : (start + len(piece)) * size] = _dequantize(piece, self.kind).reshape(-1)
        return out.view(self.shape)


@dataclass(frozen=True, slots=True)
class Gguf:
    """The contents of a GGUF file."""

    fields: dict[str, Any]
    tensors: list[QuantizedTensor]


def read_gguf(path: Path) -> Gguf:
    """Read the metadata of a GGUF file and map its tensors into memory."""
    try:
        data: Blocks = np.memmap(path, dtype=np.uint8, mode="r")
        cursor = _Cursor(data.data)
        if cursor.take("4s") != b"GGUF" or cursor.take("I") not in (2, 3):
            raise ValueError("it does not start with the GGUF header")
        tensor_count, field_count = cursor.take("Q"), cursor.take("Q")
        fields = {cursor.string(): cursor.value(cursor.take("I")) for _ in range(field_count)}
        infos = [cursor.tensor_info() for _ in range(tensor_count)]
        alignment = fields.get("general.alignment", 32)
        start = -(-cursor.position // alignment) * alignment
        tensors = [_map_tensor(data, start, *info) for info in infos]
    except (ValueError, KeyError, OSError, struct.error, RecursionError) as error:
        raise InputError(
            f"is not a complete GGUF file ({error})", where=str(path), fix="Download it again"
        ) from error
    return Gguf(fields, tensors)


class _Cursor:
    """A position in the metadata, which has no index: every value is read to find the next."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.position = data, 0

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        size = self.take("Q")
        raw = bytes(self.data[self.position : self.position + size])
        if len(raw) < size:
            raise ValueError("it ends within a string")
        self.position += size
        return raw.decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.take(_SCALARS[kind])
        inner, count = self.take("I"), self.take("Q")
        if inner in _SCALARS:
            values = struct.unpack_from(f"<{count}{_SCALARS[inner]}", self.data, self.position)
            self.position += struct.calcsize(f"<{count}{_SCALARS[inner]}")
            return list(values)
        return [self.value(inner) for _ in range(count)]

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        shape = tuple(self.take("Q") for _ in range(self.take("I")))
        return name, shape[::-1], self.take("I"), self.take("Q")


def _map_tensor(
    data: Blocks, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> QuantizedTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    count = prod(shape) // weights
    raw = data[start + offset : start + offset + count * size]
    if len(raw) < count * size or not count:
        raise ValueError(f"it ends within the tensor {name}")
    return QuantizedTensor(name, shape, kind, raw.reshape(count, size))


def _dequantize(blocks: Blocks, kind: int) -> Tensor:
    if kind == _Q4_K:
        return dequantize_q4_k(torch.from_numpy(blocks.copy()))
    if kind == _Q6_K:
        return dequantize_q6_k(torch.from_numpy(blocks.copy()))
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    return torch.from_numpy(dequantize(blocks.reshape(-1), GGMLQuantizationType(kind)).astype(np.float32))


def dequantize_q4_k(blocks: Tensor) -> Tensor:
    """Dequantize blocks of 256 weights: eight groups of 32 four-bit numbers, each with a scale and a minimum.

    weight = d * scale * number - dmin * minimum, with six-bit scales and minima packed into twelve bytes.
    """
    n = len(blocks)
    factors = blocks[:, :4].contiguous().view(torch.float16).float()
    d, dmin = factors[:, :1], factors[:, 1:]
    low, middle, high = blocks[:, 4:16].view(n, 3, 4).unbind(1)
    scales = torch.cat([low & 63, (high & 15) | ((low >> 2) & 48)], dim=1)
    minima = torch.cat([middle & 63, (high >> 4) | ((middle >> 2) & 48)], dim=1)
    packed = blocks[:, 16:].view(n, 4, 32)
    numbers = torch.stack([packed & 15, packed >> 4], dim=2).view(n, 8, 32)
    return numbers.float().mul_((d * scales)[..., None]).sub_((dmin * minima)[..., None])


def dequantize_q6_k(blocks: Tensor) -> Tensor:
    """Dequantize blocks of 256 weights: sixteen groups of 16 six-bit numbers, each with an eight-bit scale.

    weight = d * scale * (number - 32). The low four bits and the high two bits of a number are stored apart.
    """
    n = len(blocks)
    low = blocks[:, :128].view(n, 2, 1, 64)
    high = blocks[:, 128:192].view(n, 2, 1, 32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    d = blocks[:, 208:].contiguous().view(torch.float16).float()
    low = torch.cat([low & 15, low >> 4], dim=2).view(n, 2, 4, 32)
    high = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    numbers = (low | (high << 4)).view(n, 16, 16).float()
    return numbers.sub_(32).mul_((d * scales)[..., None])
