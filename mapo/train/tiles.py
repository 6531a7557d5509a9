"""How the products of a decode step are cut: a fixed rule, so that a model on a card always does the same.

What counts is that every processor has weights on their way at any time: narrow blocks, several of them in
flight, and a product with fewer blocks of outputs than two a processor is split over its depth. The numbers
were found by trying on an H200 (132 processors, 64 rows, depths of 576 to 18944).
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_SPLITS = 16  # their parts are added up again by the kernel that follows


@dataclass(frozen=True, slots=True)
class Tile:
    """Outputs and depth of a block, blocks in flight, parts of the depth."""

    wide: int
    deep: int
    stages: int
    splits: int = 1


def product_tile(outputs: int, depth: int, processors: int) -> Tile:
    """Of a product inside a layer. The depth is a multiple of 64."""
    wide, deep = (32, 128) if depth % 128 == 0 else (64, 64)
    blocks = -(-outputs // wide)
    splits = min(2 * processors // blocks, depth // deep, _MOST_SPLITS)
    return Tile(wide, deep, stages=4, splits=max(1, splits))


def gated_tile(outputs: int, processors: int) -> Tile:
    """Of the two products of a gated MLP, which are never split: their activation needs the whole depth."""
    return Tile(32, 64, stages=4) if outputs >= 32 * processors else Tile(16, 64, stages=5)


def head_tile(depth: int) -> Tile | None:
    """Of the head, or None where cuBLAS is better: a shallow product is bound by what it writes as well."""
    return Tile(64, 128, stages=3) if depth >= 2048 and depth % 128 == 0 else None
