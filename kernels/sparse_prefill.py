"""Attention of many tokens, each over its own list of blocks, in one pass of online softmax.

Neighbouring tokens read mostly the same blocks: the local ones by rule, the learned ones by habit. So a
program serves a tile of a few tokens with all G heads of their group (the rows of the matrix unit) and reads
the union of their lists once. ``_union_kernel`` prepares it: for every tile the blocks that all its tokens
read in full (a dense band comes out by itself, no mask needed), then the others, each with one bit per token.

Reference: ``sparda.attention.block_attention``.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import torch
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from torch import Tensor

from sparda.attention import block_attention

LOG2_E = 1.4426950408889634
MOST_TOKENS = 16  # tokens of a tile: an entry is block * 2**16 + one bit per token
BLOCKS_AT_ONCE = 1024  # blocks that one turn of the union kernel looks at


@triton.jit
def _union_kernel(
    block_ids, positions, marks, entries, counts, n_queries, n_tiles, n_all, n_blocks, budget, n_kv,
    TOKENS: tl.constexpr, LIST: tl.constexpr, S: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Write the entries of every tile: shared blocks from the front, the others from the back."""
    token = tl.arange(0, TOKENS)
    slot = tl.arange(0, LIST)
    capacity = TOKENS * budget
    n_marks = tl.cdiv(n_blocks, STEP) * STEP
    mine = marks + tl.program_id(0).to(tl.int64) * n_marks  # one word of bits per block, all zero
    tile = tl.program_id(0)
    while tile < n_all:
        pair = tile // n_tiles
        query = tile % n_tiles * TOKENS + token
        there = query < n_queries
        at = (pair.to(tl.int64) * n_queries + query)[:, None] * budget + slot[None, :]
        ids = tl.load(block_ids + at, mask=there[:, None] & (slot < budget)[None, :], other=-1)
        bit = tl.where(ids >= 0, (1 << token)[:, None], 0)
        tl.atomic_or(mine + ids, bit, mask=ids >= 0, sem="relaxed")
        row = (pair // n_kv).to(tl.int64) * n_queries
        first = tl.min(tl.load(positions + row + query, mask=there, other=2**31 - 1).to(tl.int32), 0)
        everyone = tl.sum(tl.where(there, 1 << token, 0), 0)
        target = entries + tile.to(tl.int64) * capacity
        n_shared = tl.zeros([], tl.int32)
        n_other = tl.zeros([], tl.int32)
        tl.debug_barrier()
        for start in tl.range(0, n_marks, STEP):
            block = start + tl.arange(0, STEP)
            bits = tl.load(mine + block, cache_modifier=".cg")
            tl.store(mine + block, tl.zeros([STEP], tl.int32))  # ready for the next tile
            shared = (bits == everyone) & ((block + 1) * S <= first + 1)
            other = (bits != 0) & ~shared
            rank = n_shared + tl.cumsum(shared.to(tl.int32), 0) - 1
            tl.store(target + rank, block * 65536 + bits, mask=shared)
            rank = capacity - n_other - tl.cumsum(other.to(tl.int32), 0)
            tl.store(target + rank, block * 65536 + bits, mask=other)
            n_shared += tl.sum(shared.to(tl.int32), 0)
            n_other += tl.sum(other.to(tl.int32), 0)
        tl.store(counts + tile * 2, n_shared)
        tl.store(counts + tile * 2 + 1, n_other)
        tl.debug_barrier()
        tile += tl.num_programs(0)


@triton.jit
def _read_block(
    query, keys, values, entry, bit, position, top, total, acc, scale, n_tokens,
    MASKED: tl.constexpr, S: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One turn of online softmax: the rows of the tile meet one block."""
    token = tl.arange(0, S)
    key = entry // 65536 * S + token
    at = key.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    if MASKED:  # only the last block of a sequence can be cut short, and it is never shared
        key_tile = tl.load(keys + at, mask=(key < n_tokens)[:, None], other=0.0)
        value_tile = tl.load(values + at, mask=(key < n_tokens)[:, None], other=0.0)
    else:
        key_tile = tl.load(keys + at)
        value_tile = tl.load(values + at)
    logits = tl.dot(query, tl.trans(key_tile), input_precision=PRECISION) * scale
    if MASKED:
        allowed = ((entry & bit) != 0)[:, None] & (key[None, :] <= position[:, None])
        logits = tl.where(allowed, logits, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, 1))
    weight = tl.exp2(logits - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weight, 1)
    acc = tl.dot(weight.to(value_tile.dtype), value_tile, acc * shrink[:, None], input_precision=PRECISION)
    return new_top, total, acc


@triton.jit
def _attend_kernel(
    q, k, v, positions, entries, counts, out, scale, n_queries, n_tokens, n_tiles, budget, n_kv,
    G: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    pair = tl.program_id(1)  # (sequence, KV head)
    row = tl.arange(0, TOKENS * HEADS)
    head = row // TOKENS
    query = tile * TOKENS + row % TOKENS
    real = (head < G) & (query < n_queries)
    where = (pair.to(tl.int64) * G + head) * n_queries + query
    at = where[:, None] * D + tl.arange(0, D)[None, :]
    rows = tl.load(q + at, mask=real[:, None], other=0.0)
    place = (pair // n_kv).to(tl.int64) * n_queries + query
    position = tl.load(positions + place, mask=real, other=-1).to(tl.int32)
    bit = 1 << (row % TOKENS)
    keys = k + pair.to(tl.int64) * n_tokens * D
    values = v + pair.to(tl.int64) * n_tokens * D
    top = tl.full([TOKENS * HEADS], -1e30, tl.float32)  # finite: a row without keys must not give inf - inf
    total = tl.zeros([TOKENS * HEADS], tl.float32)
    acc = tl.zeros([TOKENS * HEADS, D], tl.float32)
    index = pair.to(tl.int64) * n_tiles + tile
    capacity = TOKENS * budget
    listed = entries + index * capacity
    for i in tl.range(0, tl.load(counts + index * 2)):
        top, total, acc = _read_block(
            rows, keys, values, tl.load(listed + i), bit, position, top, total, acc, scale, n_tokens,
            False, S, D, PRECISION,
        )  # fmt: skip
    for i in tl.range(capacity - tl.load(counts + index * 2 + 1), capacity):
        top, total, acc = _read_block(
            rows, keys, values, tl.load(listed + i), bit, position, top, total, acc, scale, n_tokens,
            True, S, D, PRECISION,
        )  # fmt: skip
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=real[:, None])


@dataclass(frozen=True)
class PrefillTiles:
    """Launch shape of ``sparse_prefill``; the defaults were measured on an H200."""

    rows: int = 64  # tokens * heads of a program
    num_warps: int = 4
    num_stages: int = 3


def sparse_prefill(
    q: Tensor, k: Tensor, v: Tensor, block_ids: Tensor, positions: Tensor, *, block_size: int = 64,
    scale: float | None = None, out: Tensor | None = None, tiles: PrefillTiles = PrefillTiles(),
) -> Tensor:  # fmt: skip
    """Causal softmax attention of every query over the tokens of its own blocks only.

    q         : [B, H_q, T_q, d]   after RoPE, bf16, fp16 or fp32
    k, v      : [B, H, T, d]       by position, same dtype
    block_ids : [B, H, T_q, k]     int32, each id once, -1 for none
    positions : [B, T_q] int       index of each query in its sequence
    scale     : replaces 1 / sqrt(d)
    returns   : [B, H_q, T_q, d] like q; a query without any key gets zeros

    Besides the result it holds 4 * k bytes per query token and KV head.
    ValueError, TypeError: shapes, dtypes, layout or ids that do not fit; ids are read on the CPU, and on a
    GPU with SPARDA_CHECK=1.
    """
    where = backend.choose(q, k, v, block_ids, positions, out)
    _check(q, k, v, block_ids, positions, block_size)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty_like(q) if out is None else out
    backend.expect("out", out, tuple(q.shape), q.dtype)
    if where == "torch":
        return out.copy_(
            block_attention(q, k, v, block_ids.long(), positions.long(), block_size=block_size, scale=scale)
        )
    return _launch(q, k, v, block_ids, positions, block_size, scale, out, tiles)


def _launch(q, k, v, block_ids, positions, size, scale, out, tiles: PrefillTiles) -> Tensor:
    batch, n_kv, n_tokens, dim = k.shape
    n_queries, budget, group, pairs = q.shape[2], block_ids.shape[3], q.shape[1] // n_kv, batch * n_kv
    backend.expect_power_of_two(block_size=size, d=dim)
    heads = backend.next_power_of_two(group)
    tokens = max(1, min(MOST_TOKENS, tiles.rows // heads))
    heads = max(heads, 16 // tokens)  # a matrix unit takes 16 rows
    n_tiles, n_blocks = -(-n_queries // tokens), -(-n_tokens // size)
    entries, counts = union_lists(block_ids, positions, tokens, n_blocks, size)
    _attend_kernel[(n_tiles, pairs)](
        q, k, v, positions, entries, counts, out, scale * LOG2_E, n_queries, n_tokens, n_tiles, budget, n_kv,
        G=group, HEADS=heads, TOKENS=tokens, S=size, D=dim,
        PRECISION="ieee" if q.dtype is torch.float32 else "tf32",
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return out


def union_lists(
    block_ids: Tensor, positions: Tensor, tokens: int, n_blocks: int, size: int
) -> tuple[Tensor, Tensor]:
    """Merge the lists of each tile of ``tokens`` neighbouring queries.

    returns entries [B*H*tiles, tokens*k] int32, each block * 2**16 + the bits of the tokens that read it: the
    shared ones first, the others at the end of the row; counts [B*H*tiles, 2] int32 of the two kinds
    """
    batch, n_kv, n_queries, budget = block_ids.shape
    n_tiles = -(-n_queries // tokens)
    n_all = batch * n_kv * n_tiles
    programs = min(n_all, 8 * backend.multiprocessors(block_ids.device))
    step = min(BLOCKS_AT_ONCE, backend.next_power_of_two(n_blocks))
    marks = block_ids.new_zeros(programs, -(-n_blocks // step) * step)
    entries = block_ids.new_empty(n_all, tokens * budget)
    counts = block_ids.new_empty(n_all, 2)
    _union_kernel[(programs,)](
        block_ids, positions, marks, entries, counts, n_queries, n_tiles, n_all, n_blocks, budget, n_kv,
        TOKENS=tokens, LIST=backend.next_power_of_two(budget), S=size, STEP=step, num_warps=4,
    )  # fmt: skip
    return entries, counts


def _check(q, k, v, block_ids, positions, size) -> None:
    if size < 1:
        raise ValueError(f"block_size must be at least 1 token, got {size}")
    backend.expect("q", q, (None, None, None, None), backend.FLOATS)
    batch, n_queries, dim = q.shape[0], q.shape[2], q.shape[3]
    backend.expect("k", k, (batch, None, None, dim), q.dtype)
    n_kv, n_tokens = k.shape[1:3]
    backend.expect("v", v, (batch, n_kv, n_tokens, dim), q.dtype)
    backend.expect("block_ids", block_ids, (batch, n_kv, n_queries, None), torch.int32)
    backend.expect("positions", positions, (batch, n_queries), (torch.int32, torch.int64))
    if q.shape[1] % n_kv:
        raise ValueError(f"{q.shape[1]} query heads cannot be grouped over {n_kv} KV heads")
    if -(-n_tokens // size) > 2**15:
        raise ValueError(f"{n_tokens} tokens are more than 32768 blocks of {size}; raise the block size")
    if not backend.check_values(q) or not block_ids.numel():
        return
    if int(block_ids.max()) * size >= n_tokens:
        raise ValueError(
            f"block {int(block_ids.max())} starts after the last of {n_tokens} keys (block_size {size}); the "
            "list was made for a longer sequence or another block size"
        )
