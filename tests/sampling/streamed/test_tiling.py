"""The rule that cuts products: what was measured to be good, and bounds that kernels rely on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mapo.sampling.streamed.tiling import (
    AttentionCut,
    MatmulTile,
    attention_cut,
    gated_tile,
    head_tile,
    product_tile,
    streamed_attention_cut,
)


def test_it_gives_what_was_measured_on_132_processors():
    assert product_tile([3584], 18944, 132) == MatmulTile(
        32, 128, 4, splits=2
    )  # 112 blocks of outputs: 264 // 112
    assert product_tile([3584, 512, 512], 3584, 132) == MatmulTile(32, 128, 4, splits=1)
    assert product_tile([3584], 3584, 132) == MatmulTile(32, 128, 4, splits=2)
    assert product_tile([576], 1536, 132) == MatmulTile(32, 128, 4, splits=12)  # no more than blocks of depth
    assert product_tile([576, 192, 192], 576, 132) == MatmulTile(64, 64, 4, splits=9)
    assert product_tile([576], 576, 132) == MatmulTile(64, 64, 4, splits=9)
    assert gated_tile(18944, 132) == MatmulTile(32, 64, 4)
    assert gated_tile(1536, 132) == MatmulTile(16, 64, 5)
    assert head_tile(3584) == MatmulTile(64, 128, 3)
    assert head_tile(576) is None


@given(st.integers(1, 200_000), st.integers(1, 400).map(lambda n: 64 * n), st.integers(1, 300))
def test_blocks_divide_the_depth_and_splits_have_something_to_do(outputs, depth, processors):
    tiles = [product_tile([outputs], depth, processors), gated_tile(outputs, processors), head_tile(depth)]
    for tile in filter(None, tiles):
        assert depth % tile.deep == 0
        assert 1 <= tile.splits <= min(16, depth // tile.deep)


def test_layers_in_one_product_are_each_rounded_up_to_blocks():
    """Blocks of 32 outputs: 66 in one layer are 3, but 33 and 33 in two are 4; two a processor are shared."""
    assert product_tile([66], 1024, 6).splits == 12 // 3
    assert product_tile([33, 33], 1024, 6).splits == 12 // 4


def test_a_product_is_split_by_what_two_blocks_a_processor_leave():
    assert [product_tile([32 * n], 1024, 132).splits for n in (88, 132, 133, 264)] == [3, 2, 1, 1]


def test_attention_is_cut_as_it_was_measured_by_itself():
    """4 * 132 programs are shared among rows times heads of keys, in powers of two."""
    for programs, splits in ((24, 16), (132, 4), (133, 2), (192, 2), (256, 2), (264, 2), (265, 1), (768, 1)):
        assert attention_cut(programs, 1024, 132) == AttentionCut(splits, 64, 3)
    assert attention_cut(24, 128, 132) == AttentionCut(2, 64, 3)  # shares of a block at least
    assert attention_cut(192, 1024, 78) == AttentionCut(1, 64, 3)


def test_among_streamed_weights_a_full_card_is_not_split_where_contexts_are_short():
    assert streamed_attention_cut(256, 1024, 128, 132) == AttentionCut(1, 32, 4)
    assert streamed_attention_cut(192, 2048, 64, 132) == AttentionCut(1, 64, 3)
    assert streamed_attention_cut(132, 1024, 64, 132) == attention_cut(132, 1024, 132)
    for programs in (24, 133, 256, 512):
        assert streamed_attention_cut(programs, 4096, 256, 132) == attention_cut(programs, 4096, 132)
