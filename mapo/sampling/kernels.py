"""Triton kernels of attention over the slots of the cache, for decode steps and for packed prompts.

Keys and values are stored in slots, [slots, kv_heads, context, head_dim]. In a decode step each row has one
query: `attend` reads only the positions that a row has (within its window), each key once for all query heads
that share it; long rows are split among several programs whose results `_merge` combines. `write` stores the
new key and value. `attend_packed` is for the new ids of several prompts in one row, each of which sees its
own slot. Imported only if Triton is installed; the versions in plain torch are in `kv_cache.py`.
"""

# ruff: noqa: N803 (Triton compile-time constants are upper case)
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from functools import cache

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

from mapo.sampling.streamed.tiling import AttentionCut, attention_cut


@triton.jit
def _write(
    new_k, new_v, keys, values, slots, positions,
    nk_b, nk_h, nv_b, nv_h, k_s, k_h, k_c, v_s, v_h, v_c,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    slot, at = tl.load(slots + row).to(tl.int64), tl.load(positions + row).to(tl.int64)
    dk, dv = tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    k = tl.load(new_k + row * nk_b + head * nk_h + dk, mask=dk < K_DIM)
    tl.store(keys + slot * k_s + head * k_h + at * k_c + dk, k, mask=dk < K_DIM)
    v = tl.load(new_v + row * nv_b + head * nv_h + dv, mask=dv < V_DIM)
    tl.store(values + slot * v_s + head * v_h + at * v_c + dv, v, mask=dv < V_DIM)


@triton.jit
def _attend(
    query, keys, values, slots, positions, part, weight, out,
    q_b, q_h, k_s, k_h, k_c, v_s, v_h, v_c, scale, softcap, window,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + row).to(tl.int64)
    end = tl.load(positions + row).to(tl.int32) + 1
    first = tl.maximum(end - window, 0)
    share = tl.cdiv(tl.cdiv(end - first, SPLITS), BLOCK) * BLOCK
    start = first + split * share
    stop = tl.minimum(start + share, end)
    g, dk, dv = tl.arange(0, GROUP_PAD), tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    q_at = query + row * q_b + (head * GROUP + g[:, None]) * q_h + dk[None, :]
    q = tl.load(q_at, mask=(g[:, None] < GROUP) & (dk[None, :] < K_DIM), other=0.0)
    best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, V_PAD], tl.float32)
    for block in range(start, stop, BLOCK):
        n = block + tl.arange(0, BLOCK)
        there = n < stop
        k_at = keys + slot * k_s + head * k_h + n[None, :].to(tl.int64) * k_c + dk[:, None]
        k = tl.load(k_at, mask=there[None, :] & (dk[:, None] < K_DIM), other=0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if CAPPED:
            score = softcap * (1.0 - 2.0 / (tl.exp(2.0 * score / softcap) + 1.0))  # tanh
        score = tl.where(there[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        fade = tl.exp(best - higher)
        p = tl.exp(score - higher[:, None])
        v_at = values + slot * v_s + head * v_h + n[:, None].to(tl.int64) * v_c + dv[None, :]
        v = tl.load(v_at, mask=there[:, None] & (dv[None, :] < V_DIM), other=0.0)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(p, 1)
        best = higher
    q_head = row * HEADS * GROUP + head * GROUP + g
    real = (g[:, None] < GROUP) & (dv[None, :] < V_DIM)
    if SPLITS == 1:
        o_at = out + q_head[:, None].to(tl.int64) * V_DIM + dv[None, :]
        tl.store(o_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)
    else:
        # An empty share (of a short row) keeps best = -inf and has weight 0.
        safe = tl.where(total > 0, total, 1.0)
        p_at = part + (q_head[:, None].to(tl.int64) * SPLITS + split) * V_DIM + dv[None, :]
        tl.store(p_at, acc / safe[:, None], mask=real)
        tl.store(weight + q_head * SPLITS + split, best + tl.log(safe), mask=g < GROUP)


@triton.jit
def _merge(part, weight, out, V_DIM: tl.constexpr, V_PAD: tl.constexpr, SPLITS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)
    s, dv = tl.arange(0, SPLITS), tl.arange(0, V_PAD)
    w = tl.load(weight + at * SPLITS + s)
    w = tl.exp(w - tl.max(w, 0))
    p_at = part + (at * SPLITS + s[:, None]) * V_DIM + dv[None, :]
    p = tl.load(p_at, mask=dv[None, :] < V_DIM, other=0.0)
    mixed = tl.sum(p * w[:, None], 0) / tl.sum(w, 0)
    tl.store(out + at * V_DIM + dv, mixed.to(out.dtype.element_ty), mask=dv < V_DIM)


def write(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Store the new key and value of each row, [rows, kv_heads, 1, dim], in its slot."""
    key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (key, value))
    k_dim, v_dim = key.shape[3], value.shape[3]
    _write[(key.shape[0], key.shape[1])](
        key, value, keys, values, slots, positions,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2), values.stride(0), values.stride(1), values.stride(2),
        K_DIM=k_dim, V_DIM=v_dim, K_PAD=triton.next_power_of_2(k_dim), V_PAD=triton.next_power_of_2(v_dim),
        num_warps=1,
    )  # fmt: skip


@triton.jit
def _attend_block(
    q, best, total, acc, keys, values, n, stop, position, scale, softcap, window, k_c, v_c, dk, dv,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Return the running softmax of a tile of queries after the keys `n`."""
    there = n < stop
    k_at = keys + n[None, :].to(tl.int64) * k_c + dk[:, None]
    v_at = values + n[:, None].to(tl.int64) * v_c + dv[None, :]
    if MASKED:
        k = tl.load(k_at, mask=there[None, :] & (dk[:, None] < K_DIM), other=0.0)
    else:
        k = tl.load(k_at, mask=dk[:, None] < K_DIM, other=0.0)
    score = tl.dot(q, k, input_precision="ieee") * scale
    if CAPPED:
        cap = softcap * 1.44269504  # scores are in base 2
        score = cap * (1.0 - 2.0 / (tl.exp2(2.0 * score / softcap) + 1.0))  # tanh
    if MASKED:
        seen = n[None, :] <= position[:, None]
        if WINDOWED:
            seen &= n[None, :] > position[:, None] - window
        score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    # Of a block outside a query's window nothing is seen, and its maximum is still -inf.
    safe = higher
    if WINDOWED:
        safe = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp2(best - safe)
    p = tl.exp2(score - safe[:, None])
    if MASKED:
        v = tl.load(v_at, mask=there[:, None] & (dv[None, :] < V_DIM), other=0.0)
    else:
        v = tl.load(v_at, mask=dv[None, :] < V_DIM, other=0.0)
    acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return higher, total * fade + tl.sum(p, 1), acc


@triton.jit
def _attend_packed(
    query, keys, values, tiles, out,
    q_h, q_t, k_s, k_h, k_c, v_s, v_h, v_c, o_t, scale, softcap, window,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(1), tl.program_id(0)
    slot, at = tl.load(tiles + tile * 4).to(tl.int64), tl.load(tiles + tile * 4 + 1)
    first, count = tl.load(tiles + tile * 4 + 2).to(tl.int64), tl.load(tiles + tile * 4 + 3)
    m, dk, dv = tl.arange(0, ROWS), tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    real = m[:, None] < count
    q_at = query + head * q_h + (first + m[:, None]) * q_t + dk[None, :]
    q = tl.load(q_at, mask=real & (dk[None, :] < K_DIM), other=0.0)
    keys += slot * k_s + (head // GROUP) * k_h
    values += slot * v_s + (head // GROUP) * v_h
    position, stop = at + m, at + count
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, V_PAD], tl.float32)
    # All queries of the tile see the keys before `middle`; only the blocks after it need a mask.
    start, middle = 0, (at + 1) // BLOCK * BLOCK
    if WINDOWED:
        start = tl.maximum(at - window + 1, 0) // BLOCK * BLOCK
        middle = start
    for block in range(start, middle, BLOCK):
        best, total, acc = _attend_block(
            q, best, total, acc, keys, values, block + tl.arange(0, BLOCK), stop, position, scale, softcap,
            window, k_c, v_c, dk, dv, K_DIM, V_DIM, CAPPED, WINDOWED, False,
        )  # fmt: skip
    for block in range(middle, stop, BLOCK):
        best, total, acc = _attend_block(
            q, best, total, acc, keys, values, block + tl.arange(0, BLOCK), stop, position, scale, softcap,
            window, k_c, v_c, dk, dv, K_DIM, V_DIM, CAPPED, WINDOWED, True,
        )  # fmt: skip
    o_at = out + (first + m[:, None]) * o_t + head * V_DIM + dv[None, :]
    tl.store(o_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=real & (dv[None, :] < V_DIM))


@cache
def _processors(device: torch.device) -> int:
    """Return the number of processors of a GPU; in Triton's interpreter, that of an H200."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    cut: AttentionCut | None = None,
) -> torch.Tensor:
    """Attend: query [rows, heads, 1, dim] -> [rows, 1, heads, dim]. A row sees its slot up to its position.

    `cut` says how the work is split; None uses `attention_cut`.
    """
    query = query if query.stride(3) == 1 else query.contiguous()
    rows, heads, _, k_dim = query.shape
    kv_heads, context, v_dim = keys.shape[1], keys.shape[2], values.shape[3]
    group = heads // kv_heads
    cut = cut or attention_cut(rows * kv_heads, context, _processors(query.device))
    splits = cut.splits
    out = query.new_empty(rows, 1, heads, v_dim)
    part = query.new_empty(rows * heads * splits * v_dim if splits > 1 else 1, dtype=torch.float32)
    weight = query.new_empty(rows * heads * splits, dtype=torch.float32)
    k_pad, v_pad = triton.next_power_of_2(k_dim), triton.next_power_of_2(v_dim)
    _attend[(rows, kv_heads, splits)](
        query, keys, values, slots, positions, part, weight, out,
        query.stride(0), query.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2), values.stride(0), values.stride(1), values.stride(2),
        scale, softcap or 1.0, window or context,
        HEADS=kv_heads, GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)),
        K_DIM=k_dim, V_DIM=v_dim, K_PAD=max(16, k_pad), V_PAD=max(16, v_pad),
        SPLITS=splits, BLOCK=cut.block, CAPPED=softcap is not None, num_warps=4, num_stages=cut.stages,
    )  # fmt: skip
    if splits > 1:
        _merge[(rows * heads,)](part, weight, out, V_DIM=v_dim, V_PAD=v_pad, SPLITS=splits, num_warps=1)
    return out


PACKED_ROWS = 128
"""Queries per tile of `attend_packed`."""


def attend_packed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    block: int = 64,
    warps: int = 8,
    stages: int = 3,
) -> torch.Tensor:
    """Attend with the packed queries [1, heads, ids, dim] of several prompts: -> [1, ids, heads, dim].

    A tile is (slot, position, index, count): `count` queries from an index on, at most PACKED_ROWS, at
    consecutive positions of a slot. Each sees the slot up to its own position.
    """
    query = query if query.stride(3) == 1 else query.contiguous()
    _, heads, ids, k_dim = query.shape
    kv_heads, v_dim = keys.shape[1], values.shape[3]
    out = query.new_empty(1, ids, heads, v_dim)
    k_pad, v_pad = triton.next_power_of_2(k_dim), triton.next_power_of_2(v_dim)
    _attend_packed[(heads, len(tiles))](
        query, keys, values, tiles, out,
        query.stride(1), query.stride(2),
        keys.stride(0), keys.stride(1), keys.stride(2), values.stride(0), values.stride(1), values.stride(2),
        out.stride(1), scale * 1.44269504, softcap or 1.0, window or 0,
        GROUP=heads // kv_heads, K_DIM=k_dim, V_DIM=v_dim, K_PAD=max(16, k_pad), V_PAD=max(16, v_pad),
        ROWS=PACKED_ROWS, BLOCK=block, CAPPED=softcap is not None, WINDOWED=window is not None,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
