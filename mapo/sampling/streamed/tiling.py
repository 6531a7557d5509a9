"""Tile sizes of a decode step's products and attention. The rules are fixed, so that a model on a GPU always
gives the same results.

Every processor should always have loads of weights in flight. Blocks are therefore narrow, several are in
flight, and a product is split over its depth as often as two blocks per processor allow: not at all if its
outputs give more than one block per processor. The numbers were tuned on an H200 (132 processors, 64 rows,
depths of 576 to 18944, contexts of 1024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MAX_SPLITS = 16  # the next kernel has to add up their parts
_WAVES = 4  # attention programs per processor, so that some read while others compute
_SHORT = 2048  # contexts up to this length were measured without splits


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """The block size of a matrix product (outputs `wide`, depth `deep`), the blocks in flight (`stages`) and
    the parts into which the depth is split."""

    wide: int
    deep: int
    stages: int
    splits: int = 1


@dataclass(frozen=True, slots=True)
class AttentionCut:
    """How attention is split: parts of a row's keys, keys per block, blocks in flight."""

    splits: int
    block: int = 64
    stages: int = 3


def attention_cut(programs: int, context: int, processors: int) -> AttentionCut:
    """Return how to split attention for `programs` = rows x key heads: into enough parts to keep the GPU
    busy, but none shorter than a few blocks of the longest row."""
    wanted = max(1, min(_WAVES * processors // programs, context // 64, 16))
    return AttentionCut(1 << (wanted.bit_length() - 1))


def streamed_attention_cut(programs: int, context: int, dim: int, processors: int) -> AttentionCut:
    """Return how to split attention in streamed layers. In short contexts, it is not split if rows and heads
    fill the GPU by themselves: merging the parts would cost more than it saves."""
    full = programs > processors and context <= _SHORT
    splits = 1 if full else attention_cut(programs, context, processors).splits
    return (
        AttentionCut(splits, 32, 4) if 64 < dim <= 128 else AttentionCut(splits)
    )  # 8 KB of keys at 16 bits either way


def product_tile(outputs: Sequence[int], depth: int, processors: int) -> MatmulTile:
    """Return the tile of a product with the weights of one or more linear layers of a decoder layer. The
    depth is a multiple of 64."""
    wide, deep = (32, 128) if depth % 128 == 0 else (64, 64)
    blocks = sum(-(-size // wide) for size in outputs)
    splits = min(2 * processors // blocks, depth // deep, _MAX_SPLITS)
    return MatmulTile(wide, deep, stages=4, splits=max(1, splits))


def gated_tile(outputs: int, processors: int) -> MatmulTile:
    """Return the tile of the two products of a gated MLP, which are never split: their activation needs the
    complete sums."""
    return MatmulTile(32, 64, stages=4) if outputs >= 32 * processors else MatmulTile(16, 64, stages=5)


def head_tile(depth: int) -> MatmulTile | None:
    """Return the tile of the output head; None where cuBLAS is faster, because a shallow product is also
    limited by its output."""
    return MatmulTile(64, 128, stages=3) if depth >= 2048 and depth % 128 == 0 else None
