"""Reading GGUF files: metadata, tensors and dequantization, compared with the gguf library."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from mapo.errors import InputError
from mapo.local_model.fetch.gguf import QuantizedTensor, read_gguf


def random_blocks(kind, rows, blocks):
    """Return random blocks with scales that are finite numbers."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.1, (rows * blocks, 2)).astype(np.float16).view(np.uint8)
    if kind == Kind.Q4_K:
        raw[:, :4] = scales
    else:
        raw[:, -2:] = scales[:, :2]
    return raw


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K])
def test_k_quants_equal_the_librarys(kind):
    blocks = random_blocks(kind, 1031, 2)  # more than one piece, and the last one is not full
    ours = QuantizedTensor("w", (1031, 512), int(kind), blocks).bfloat16()
    theirs = gguf.quants.dequantize(blocks.reshape(1031, -1), kind)
    assert torch.equal(ours, torch.from_numpy(theirs).to(torch.bfloat16))


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_1])
def test_other_types_are_read_with_the_library(kind):
    weights = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    raw = gguf.quants.quantize(weights, kind)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    ours = QuantizedTensor(
        "w", (4, 64), int(kind), raw.reshape(-1).view(np.uint8).reshape(-1, size)
    ).bfloat16()
    assert torch.equal(ours, torch.from_numpy(gguf.quants.dequantize(raw, kind)).to(torch.bfloat16))


@pytest.fixture
def file(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_uint32("n", 7)
    writer.add_float32("x", 0.5)
    writer.add_bool("yes", True)
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("words", ["é", "", "三"])
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b.weight", np.array([9.0], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "a.gguf"


def test_fields_and_tensors(file):
    contents = read_gguf(file)
    fields = contents.fields
    assert [fields[key] for key in ("n", "x", "yes", "numbers")] == [7, 0.5, True, [1, 2, 3]]
    assert fields["words"] == ["é", "", "三"]
    assert [tensor.name for tensor in contents.tensors] == ["a.weight", "b.weight"]
    assert contents.tensors[0].bfloat16().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert contents.tensors[1].bfloat16().tolist() == [9]


def test_a_file_cut_anywhere_is_rejected(file, tmp_path):
    whole = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    last = len(whole.rstrip(b"\x00"))
    for size in range(0, last, 5):
        cut.write_bytes(whole[:size])
        with pytest.raises(InputError, match="is not a complete GGUF file"):
            read_gguf(cut)


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "text").write_text("404 not found" * 100)
    with pytest.raises(InputError, match="does not start with the GGUF header"):
        read_gguf(tmp_path / "text")
    with pytest.raises(InputError, match="No such file"):
        read_gguf(tmp_path / "none")
