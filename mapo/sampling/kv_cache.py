"""The sampler's KV cache: every dialogue has a slot, which it keeps across turns.

Buffers are static, [slots + 1, kv_heads, context, head_dim] per layer; padding goes to the last slot, which
is scratch. A `View` (or `PackedRows`) says which rows the next forward pass is for and the positions of their
new ids. The standard transformers forward then runs with `SlotCache` as its cache and `attend` as its
attention function, so any model with full or sliding-window attention works unchanged. Keys of grouped heads
are not repeated: the query heads of a group are treated as additional query positions.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

NAME = "mapo_slots"


def kernels() -> Any:
    """Return the module of Triton kernels; None if Triton is not installed."""
    try:
        return importlib.import_module("mapo.sampling.kernels")
    except ImportError:
        return None


class View:
    """The rows of one forward pass.

    slots [B]; positions [B, T] of the new ids; real [B, T], False for padding, or None without padding.
    `length` bounds the keys that are read. `fused` is the module of kernels to use, if any.
    """

    def __init__(
        self,
        slots: torch.Tensor,
        positions: torch.Tensor,
        length: int,
        *,
        scratch: int,
        real: torch.Tensor | None = None,
        span: tuple[int, int] | None = None,
        fused: Any = None,
    ) -> None:
        self.slots, self.positions, self.length, self.fused = slots, positions, length, fused
        self.write_slots = slots[:, None].expand_as(positions)
        if real is not None:
            self.write_slots = torch.where(real, self.write_slots, scratch)
        # On a CPU, a range of adjacent slots is read in place. Unused rows in it are computed for nothing,
        # which is cheaper than copying the others as long as they are few.
        self.span = span if span and span[1] - span[0] <= 2 * len(slots) else None
        self.contiguous = self.span is not None and self.span[1] - self.span[0] == len(slots)
        self._masks: dict[tuple[int | None, int], torch.Tensor] = {}

    def read(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the rows' keys or values."""
        buffer = buffer[:, :, : self.length]
        return buffer[self.span[0] : self.span[1]] if self.span else buffer.index_select(0, self.slots)

    def scatter(self, query: torch.Tensor) -> torch.Tensor:
        """Arrange the queries as `read` arranges the keys."""
        if self.span is None or self.contiguous:
            return query
        low, high = self.span
        wide = query.new_zeros(high - low, *query.shape[1:])
        return wide.index_copy_(0, self.slots - low, query)

    def gather(self, out: torch.Tensor) -> torch.Tensor:
        """Undo `scatter`."""
        if self.span is None or self.contiguous:
            return out
        return out.index_select(0, self.slots - self.span[0])

    def mask(self, window: int | None, tiles: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the mask that is added to the scores, [B, 1, tiles * T, length]: a position sees itself and
        those before it, as far back as the window. Made once per pass and used by all layers."""
        if (window, tiles) not in self._masks:
            at = self.scatter(self.positions)[:, :, None]
            keys = torch.arange(self.length, device=at.device)
            visible = keys <= at
            if window:
                visible &= keys > at - window
            mask = torch.zeros(visible.shape, dtype=dtype, device=at.device)
            mask = mask.masked_fill_(~visible, float("-inf"))
            if at.shape[1] > 1 and tiles > 1:
                mask = mask.repeat(1, tiles, 1)
            self._masks[window, tiles] = mask[:, None]
        return self._masks[window, tiles]


class PackedRows:
    """New ids of several prompts concatenated into one row, without padding.

    A piece is (slot, start, count); `last` has the index of the last id of each. `fused` is the module of
    kernels to use; without it, each piece is attended to in turn, as on a CPU.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[int, int, int]],
        device: torch.device | None = None,
        *,
        fused: Any = None,
    ) -> None:
        self.pieces, self.fused = pieces, fused
        slots, starts, counts = np.array(pieces, dtype=np.int64).T
        ends = counts.cumsum()
        positions = np.arange(ends[-1]) + np.repeat(starts + counts - ends, counts)
        rows = torch.from_numpy(np.stack([positions, np.repeat(slots, counts)])).to(device)
        self.positions, self.write_slots = rows[:1], rows[1:]
        self.last = torch.from_numpy(ends - 1)
        if fused is not None:
            self.tiles = torch.tensor(tiles_of(pieces, fused.PACKED_ROWS), dtype=torch.int32).to(device)
        self._masks: dict[tuple[int, int | None, int], torch.Tensor] = {}

    def mask(self, number: int, window: int | None, tiles: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the mask of one piece, [1, 1, tiles * count, keys]; see `View.mask`."""
        if (number, window, tiles) not in self._masks:
            _, start, count = self.pieces[number]
            visible = torch.ones(count, start + count, dtype=torch.bool).tril(start)
            if window:
                visible = visible.triu(start - window + 1)
            mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
            if tiles > 1:
                mask = mask.repeat(tiles, 1)
            self._masks[number, window, tiles] = mask[None, None]
        return self._masks[number, window, tiles]


def tiles_of(pieces: Sequence[tuple[int, int, int]], rows: int) -> list[tuple[int, int, int, int]]:
    """Cut packed pieces into tiles of up to `rows` ids, (slot, position, index, count), those with the most
    keys first: the last ones to run should be short."""
    tiles, index = [], 0
    for slot, start, count in pieces:
        tiles += [(slot, start + at, index + at, min(rows, count - at)) for at in range(0, count, rows)]
        index += count
    return sorted(tiles, key=lambda tile: -tile[1])


class SlotLayer(CacheLayerMixin):
    """Buffers of a layer. `update` writes and returns the layer itself; `attend` reads it through a view."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        shape = (self.cache.slots + 1, key_states.shape[1], self.cache.context)
        self.keys: torch.Tensor = key_states.new_zeros(*shape, key_states.shape[3])
        self.values: torch.Tensor = value_states.new_zeros(*shape, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        view = self.cache.view
        if isinstance(view, View) and view.fused is not None and key_states.shape[2] == 1:
            view.fused.write(key_states, value_states, self.keys, self.values, view.slots, view.positions)
        else:
            index = (view.write_slots, view.positions)
            self.keys.transpose(1, 2).index_put_(index, key_states.transpose(1, 2))
            self.values.transpose(1, 2).index_put_(index, value_states.transpose(1, 2))
        return self, self

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 (signature of the base)
        return self.cache.context, 0

    def get_seq_length(self) -> int:
        return 0  # positions are always passed explicitly

    def get_max_length(self) -> int:
        return self.cache.context

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class SlotCache(Cache):
    """The cache for transformers. Set `view` before each forward pass."""

    view: View | PackedRows

    def __init__(self, slots: int, context: int) -> None:
        super().__init__(layer_class_to_replicate=lambda: SlotLayer(self))
        self.slots, self.context = slots, context

    def clear(self) -> None:
        """Clear all layers: a NaN from broken weights would have an effect even where it is masked."""
        for layer in self.layers:
            layer.reset()

    def copy(self, source: int, targets: list[int], count: int) -> None:
        """Copy the first `count` positions of a slot to other slots."""
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[targets, :, :count] = buffer[source, :, :count]

    def bytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


def attend(
    module: torch.nn.Module,  # noqa: ARG001 (signature of transformers)
    query: torch.Tensor,
    key: SlotLayer,
    value: SlotLayer,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 (the view makes the mask)
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with new queries [B, heads, T, dim] over the slots and return [B, T, heads, dim]."""
    view, keys, values = key.cache.view, key.keys, value.values
    rows, heads, length, dim = query.shape
    group, scale = heads // keys.shape[1], dim**-0.5 if scaling is None else scaling
    if isinstance(view, PackedRows) and view.fused is not None:
        options = {"scale": scale, "window": sliding_window, "softcap": softcap}
        return view.fused.attend_packed(query, keys, values, view.tiles, **options), None
    if isinstance(view, PackedRows):
        return _attend_pieces(view, query, keys, values, scale, sliding_window, softcap), None
    if view.fused is not None and length == 1:
        options = {"scale": scale, "window": sliding_window, "softcap": softcap}
        return view.fused.attend(query, keys, values, view.slots, view.positions, **options), None
    tiles = _tiles(group, length)
    mask = view.mask(sliding_window, tiles, query.dtype)
    k, v = view.read(keys), view.read(values)
    if tiles < group:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    q = view.scatter(query.reshape(rows, k.shape[1], tiles * length, dim))
    out = view.gather(_attention(q, k, v, mask, scale, softcap))
    return out.reshape(rows, heads, length, -1).transpose(1, 2), None


def _attend_pieces(
    view: PackedRows,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend with each piece over its own slot: [1, heads, ids, dim] -> [1, ids, heads, dim]."""
    heads, dim = query.shape[1], query.shape[3]
    group = heads // keys.shape[1]
    outputs = []
    queries = torch.split(query, [count for _, _, count in view.pieces], 2)
    for number, (slot, start, count) in enumerate(view.pieces):
        tiles = _tiles(group, count)
        k, v = (buffer[slot : slot + 1, :, : start + count] for buffer in (keys, values))
        if tiles < group:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q = queries[number].reshape(1, k.shape[1], tiles * count, dim)
        out = _attention(q, k, v, view.mask(number, window, tiles, query.dtype), scale, softcap)
        outputs.append(out.reshape(1, heads, count, -1))
    return torch.cat(outputs, 2).transpose(1, 2)


def _tiles(group: int, length: int) -> int:
    """Return how many query heads of a group are treated as further positions, so that their keys need no
    copies: all of them, except in a long prefill, where the mask would be larger than copies of the keys."""
    return group if length <= 64 else 1


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    if softcap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    score = torch.tanh(q @ k.transpose(2, 3) * (scale / softcap)) * softcap + mask
    return score.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


AttentionInterface.register(NAME, attend)


def configs_of(model: torch.nn.Module) -> list[Any]:
    """Return the configurations in which attention modules of `model` look up their attention function."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation")]


@contextmanager
def slot_attention(configs: list[Any]) -> Iterator[None]:
    """Inside the block, the model's attention uses the slots; outside, for training, it is unchanged."""
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = NAME
        yield
    finally:
        for config, original in zip(configs, before, strict=True):
            config._attn_implementation = original
