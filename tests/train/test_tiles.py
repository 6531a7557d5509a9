"""The rule that cuts products: what was measured to be good, and bounds that kernels rely on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mapo.train.tiles import Tile, gated_tile, head_tile, product_tile


def test_it_gives_what_was_measured_on_132_processors():
    assert product_tile(3584, 18944, 132) == Tile(32, 128, 4, splits=2)  # 112 blocks of outputs: 264 // 112
    assert product_tile(4608, 3584, 132) == Tile(32, 128, 4, splits=1)
    assert product_tile(3584, 3584, 132) == Tile(32, 128, 4, splits=2)
    assert product_tile(576, 1536, 132) == Tile(32, 128, 4, splits=12)  # no more than blocks of depth
    assert product_tile(960, 576, 132) == Tile(64, 64, 4, splits=9)
    assert product_tile(576, 576, 132) == Tile(64, 64, 4, splits=9)
    assert gated_tile(18944, 132) == Tile(32, 64, 4)
    assert gated_tile(1536, 132) == Tile(16, 64, 5)
    assert head_tile(3584) == Tile(64, 128, 3)
    assert head_tile(576) is None


@given(st.integers(1, 200_000), st.integers(1, 400).map(lambda n: 64 * n), st.integers(1, 300))
def test_blocks_divide_the_depth_and_splits_have_something_to_do(outputs, depth, processors):
    tiles = [product_tile(outputs, depth, processors), gated_tile(outputs, processors), head_tile(depth)]
    for tile in filter(None, tiles):
        assert depth % tile.deep == 0
        assert 1 <= tile.splits <= min(16, depth // tile.deep)
