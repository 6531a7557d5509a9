"""How a decode step's products and its attention are cut: fixed rules, so that a model on a card always does
the same.

What counts is that every processor has weights on their way at any time: narrow blocks, several of them in
flight, and a product is split over its depth as often as two blocks a processor allow: not at all if its
outputs make more than one each. The numbers were found by trying on an H200 (132 processors, 64 rows, depths
of 576 to 18944, contexts of 1024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MOST_SPLITS = 16  # their parts are added up again by the kernel that follows
_WAVES = 4  # programs of attention a processor is given, so that some read while others compute
_SHORT = 2048  # contexts up to here have been tried without splits


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """Outputs and depth of a block, blocks in flight, parts of the depth."""

    wide: int
    deep: int
    stages: int
    splits: int = 1


@dataclass(frozen=True, slots=True)
class AttentionCut:
    """Parts of a row's keys, keys of a block, blocks in flight."""

    splits: int
    block: int = 64
    stages: int = 3


def attention_cut(programs: int, context: int, processors: int) -> AttentionCut:
    """Of attention, `programs` being rows times heads of keys: enough parts to keep the card busy, but no
    share shorter than a few blocks of the longest row."""
    wanted = max(1, min(_WAVES * processors // programs, context // 64, 16))
    return AttentionCut(1 << (wanted.bit_length() - 1))


def streamed_attention_cut(programs: int, context: int, dim: int, processors: int) -> AttentionCut:
    """Of attention among streamed weights: in short contexts, rows and heads that fill the card by themselves
    are not split, for the parts cost more than they bring."""
    full = programs > processors and context <= _SHORT
    splits = 1 if full else attention_cut(programs, context, processors).splits
    return AttentionCut(splits, 32, 4) if 64 < dim <= 128 else AttentionCut(splits)  # 8 KB of keys at 16 bits either way


def product_tile(outputs: Sequence[int], depth: int, processors: int) -> MatmulTile:
    """Of a product inside a layer with the weights of some linear layers. The depth is a multiple of 64."""
    wide, deep = (32, 128) if depth % 128 == 0 else (64, 64)
    blocks = sum(-(-size // wide) for size in outputs)
    splits = min(2 * processors // blocks, depth // deep, _MOST_SPLITS)
    return MatmulTile(wide, deep, stages=4, splits=max(1, splits))


def gated_tile(outputs: int, processors: int) -> MatmulTile:
    """Of the two products of a gated MLP, which are never split: their activation needs the whole depth."""
    return MatmulTile(32, 64, stages=4) if outputs >= 32 * processors else MatmulTile(16, 64, stages=5)


def head_tile(depth: int) -> MatmulTile | None:
    """Of the head, or None where cuBLAS is better: a shallow product is bound by what it writes as well."""
    return MatmulTile(64, 128, stages=3) if depth >= 2048 and depth % 128 == 0 else None
