"""Triton kernels for decode steps of few rows, which are limited by memory bandwidth: every weight is read
once.

`product` multiplies some rows with the weights of one to three linear layers in one launch, split over the
depth so that the whole GPU reads. It returns partial sums, [splits, rows, outputs], which the next kernel
adds
up: `add_norm` (residual and norm) or `turn` (bias, rotary embedding, KV cache). `gated` computes the two
products of a gated MLP and their activation. Tile sizes are in `tiling.py`. Imported only if Triton is
installed.
"""

# ruff: noqa: N803 (Triton compile-time constants are upper case)
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

from mapo.sampling.streamed.tiling import MatmulTile


@triton.jit(do_not_specialize=["share"])
def _product(
    x, w0, w1, w2, out, rows, n0, n1, n2, depth, share,
    ROWS: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    w, size, column = w0, n0, 0
    if MANY > 1:  # noqa: SIM102 (a compile-time condition; the next one is not)
        if tile >= tl.cdiv(n0, WIDE):
            tile -= tl.cdiv(n0, WIDE)
            w, size, column = w1, n1, n0
            if MANY > 2:  # noqa: SIM102
                if tile >= tl.cdiv(n1, WIDE):
                    tile -= tl.cdiv(n1, WIDE)
                    w, size, column = w2, n2, n0 + n1
    w = tl.multiple_of(w, 16)
    m, k = tl.arange(0, ROWS), tl.arange(0, DEEP)
    n = tile * WIDE + tl.arange(0, WIDE)
    first = split * share
    last = tl.minimum(first + share, depth // DEEP)
    acc = tl.zeros([ROWS, WIDE], tl.float32)
    for step in range(first, last):
        at = step * DEEP + k
        a = tl.load(x + m[:, None] * depth + at[None, :], mask=m[:, None] < rows, other=0.0)
        b_at = w + n[None, :] * depth + at[:, None]
        b = tl.load(b_at, mask=n[None, :] < size, other=0.0, eviction_policy="evict_first")
        acc = tl.dot(a, b, acc)
    o_at = out + (split * rows + m[:, None]) * (n0 + n1 + n2) + column + n[None, :]
    tl.store(o_at, acc.to(out.dtype.element_ty), mask=(m[:, None] < rows) & (n[None, :] < size))


@triton.jit
def _gated(
    x, gate, up, out, rows, size, depth,
    ROWS: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    m, k = tl.arange(0, ROWS), tl.arange(0, DEEP)
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    g = tl.zeros([ROWS, WIDE], tl.float32)
    u = tl.zeros([ROWS, WIDE], tl.float32)
    for step in range(depth // DEEP):
        at = step * DEEP + k
        a = tl.load(x + m[:, None] * depth + at[None, :], mask=m[:, None] < rows, other=0.0)
        w_at = n[None, :] * depth + at[:, None]
        g_w = tl.load(gate + w_at, mask=n[None, :] < size, other=0.0, eviction_policy="evict_first")
        u_w = tl.load(up + w_at, mask=n[None, :] < size, other=0.0, eviction_policy="evict_first")
        g = tl.dot(a, g_w, g)
        u = tl.dot(a, u_w, u)
    y = g / (1.0 + tl.exp(-g)) * u
    o_at = out + m[:, None] * size + n[None, :]
    tl.store(o_at, y.to(out.dtype.element_ty), mask=(m[:, None] < rows) & (n[None, :] < size))


@triton.jit
def _silu_product(gate, up, out, size, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + n, mask=n < size, other=0.0).to(tl.float32)
    u = tl.load(up + n, mask=n < size, other=0.0).to(tl.float32)
    tl.store(out + n, (g / (1.0 + tl.exp(-g)) * u).to(out.dtype.element_ty), mask=n < size)


@triton.jit
def _add_norm(
    parts, residual, weight, total, normed, rows, size, eps,
    SPLITS: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    row, n = tl.program_id(0), tl.arange(0, PAD)
    x = tl.load(residual + row * size + n, mask=n < size, other=0.0)
    if SPLITS > 0:
        y = tl.zeros([PAD], tl.float32)
        for split in tl.static_range(SPLITS):
            y += tl.load(parts + (split * rows + row) * size + n, mask=n < size, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) + y).to(x.dtype)
        tl.store(total + row * size + n, x, mask=n < size)
    x32 = x.to(tl.float32)
    scaled = x32 * tl.rsqrt(tl.sum(x32 * x32, 0) / size + eps)
    w = tl.load(weight + n, mask=n < size, other=0.0)
    tl.store(normed + row * size + n, w * scaled.to(w.dtype), mask=n < size)


@triton.jit
def _turn(
    q, k, v, q_bias, k_bias, v_bias, cos, sin, query, keys, values, slots, positions,
    q_row, k_row, v_row, q_split, k_split, v_split, c_row, k_s, k_h, k_c, v_s, v_h, v_c,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HALF)
    source, bias, own, step = q + row * q_row, q_bias, head, q_split
    if head >= HEADS:
        source, bias, own, step = k + row * k_row, k_bias, head - HEADS, k_split
        if head >= HEADS + KV:
            source, bias, own, step = v + row * v_row, v_bias, head - HEADS - KV, v_split
    low_at = own * 2 * HALF + d
    low = tl.zeros([HALF], tl.float32)
    high = tl.zeros([HALF], tl.float32)
    for split in tl.static_range(SPLITS):
        low += tl.load(source + split * step + low_at).to(tl.float32)
        high += tl.load(source + split * step + low_at + HALF).to(tl.float32)
    if BIAS:
        low += tl.load(bias + low_at).to(tl.float32)
        high += tl.load(bias + low_at + HALF).to(tl.float32)
    kind = query.dtype.element_ty
    low, high = low.to(kind), high.to(kind)
    slot, at = tl.load(slots + row).to(tl.int64), tl.load(positions + row).to(tl.int64)
    if head >= HEADS + KV:
        v_at = values + slot * v_s + own * v_h + at * v_c + d
        tl.store(v_at, low)
        tl.store(v_at + HALF, high)
    else:
        a, b = low.to(tl.float32), high.to(tl.float32)
        c_at = row * c_row + d
        cos_low, cos_high = tl.load(cos + c_at).to(tl.float32), tl.load(cos + c_at + HALF).to(tl.float32)
        sin_low, sin_high = tl.load(sin + c_at).to(tl.float32), tl.load(sin + c_at + HALF).to(tl.float32)
        low, high = (a * cos_low - b * sin_low).to(kind), (b * cos_high + a * sin_high).to(kind)
        if head >= HEADS:
            k_at = keys + slot * k_s + own * k_h + at * k_c + d
            tl.store(k_at, low)
            tl.store(k_at + HALF, high)
        else:
            q_at = query + (row * HEADS + own) * 2 * HALF + d
            tl.store(q_at, low)
            tl.store(q_at + HALF, high)


def _rows(rows: int) -> int:
    return max(16, 1 << (rows - 1).bit_length())


def product(x: torch.Tensor, weights: Sequence[torch.Tensor], tile: MatmulTile) -> torch.Tensor:
    """Multiply x [rows, depth] with the weights [outputs, depth] of up to three layers and return the partial
    sums, [splits, rows, all outputs]."""
    rows, depth = x.shape
    sizes = [w.shape[0] for w in weights] + [0] * (3 - len(weights))
    w = [*weights, *[weights[0]] * (3 - len(weights))]
    blocks = depth // tile.deep
    share = triton.cdiv(blocks, tile.splits)
    splits = triton.cdiv(blocks, share)
    out = x.new_empty(splits, rows, sum(sizes), dtype=x.dtype if splits == 1 else torch.float32)
    tiles = sum(triton.cdiv(size, tile.wide) for size in sizes)
    _product[(tiles, splits)](
        x, *w, out, rows, *sizes, depth, share,
        ROWS=_rows(rows), WIDE=tile.wide, DEEP=tile.deep, MANY=len(weights),
        num_warps=4, num_stages=tile.stages,
    )  # fmt: skip
    return out


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, tile: MatmulTile) -> torch.Tensor:
    """Return silu(x gate') * (x up'), [rows, outputs], for weights [outputs, depth]."""
    rows, depth = x.shape
    out = x.new_empty(rows, gate.shape[0])
    _gated[(triton.cdiv(gate.shape[0], tile.wide),)](
        x, gate, up, out, rows, gate.shape[0], depth,
        ROWS=_rows(rows), WIDE=tile.wide, DEEP=tile.deep, num_warps=4, num_stages=tile.stages,
    )  # fmt: skip
    return out


def add_norm(
    parts: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return residual + all parts, and its RMS norm; parts [splits, rows, size] or None, residual [rows,
    size]."""
    rows, size = residual.shape
    total = residual if parts is None else torch.empty_like(residual)
    normed = torch.empty_like(residual)
    pad = triton.next_power_of_2(size)
    _add_norm[(rows,)](
        residual if parts is None else parts, residual, weight, total, normed, rows, size, eps,
        SPLITS=0 if parts is None else len(parts), PAD=pad, num_warps=min(16, max(1, pad // 512)),
    )  # fmt: skip
    return total, normed


def turn(
    states: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Add up the parts [splits, rows, size] of query, key and value, apply the rotary embedding to query and
    key, store key and value in their slots, and return the queries, [rows, heads, 1, dim]."""
    q, k, v = states
    splits, rows, _ = q.shape
    kv, dim = keys.shape[1], keys.shape[3]
    heads = q.shape[2] // dim
    query = q.new_empty(rows, heads, 1, dim, dtype=keys.dtype)
    has_bias = biases[0] is not None
    b = [bias if has_bias else q for bias in biases]
    _turn[(rows, heads + 2 * kv)](
        q, k, v, *b, cos, sin, query, keys, values, slots, positions,
        q.stride(1), k.stride(1), v.stride(1), q.stride(0), k.stride(0), v.stride(0), cos.stride(0),
        keys.stride(0), keys.stride(1), keys.stride(2), values.stride(0), values.stride(1), values.stride(2),
        HEADS=heads, KV=kv, HALF=dim // 2, SPLITS=splits, BIAS=has_bias, num_warps=1,
    )  # fmt: skip
    return query


def silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of two contiguous tensors."""
    out = torch.empty_like(gate)
    _silu_product[(triton.cdiv(gate.numel(), 4096),)](gate, up, out, gate.numel(), BLOCK=4096, num_warps=8)
    return out
