"""Attention of many tokens, each over its own list of blocks, in one pass of online softmax.

Neighbouring tokens read mostly the same blocks: the local ones by rule, the learned ones by habit. So a
program serves a tile of a few tokens with all G heads of their group (the rows of the matrix unit) and reads
the union of their lists once (``union_lists``): no mask for blocks that all of them read, a mask of rows for
the others, a mask of keys for the few that reach past the first token. The tensor memory accelerator (TMA)
fetches blocks; it fills rows past the last token with zeros.

Reference: ``sparda.attention.block_attention``.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparda.attention import block_attention
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.kernels.sparse_decode import LOG2_E, fit_stages
from sparda.kernels.union_lists import MOST_TOKENS, union_lists


@triton.jit
def _read_block(
    query, keys, values, pair, entry, bit, position, top, total, acc, scale,
    PART: tl.constexpr, S: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One turn of online softmax: the rows of the tile meet one block."""
    start = entry // 65536 * S
    key_tile = keys.load([pair, start, 0]).reshape(S, D)
    logits = tl.dot(query, tl.trans(key_tile), input_precision=PRECISION)
    reads = (entry & bit) != 0
    if PART == "edge":
        key = start + tl.arange(0, S)
        logits = tl.where(reads[:, None] & (key[None, :] <= position[:, None]), logits, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, 1) * scale)
    shift = new_top
    if PART == "other":  # masks rows without touching the S columns: exp2(x - inf) is 0
        new_top = tl.where(reads, new_top, top)
        shift = tl.where(reads, new_top, float("inf"))
    weight = tl.exp2(logits * scale - shift[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weight, 1)
    value_tile = values.load([pair, start, 0]).reshape(S, D)
    acc = tl.dot(weight.to(value_tile.dtype), value_tile, acc * shrink[:, None], input_precision=PRECISION)
    return new_top, total, acc


@triton.jit
def _attend_kernel(
    q, keys, values, positions, entries, bounds, out, scale, n_queries, n_tiles, budget, n_kv,
    G: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    pair = tl.program_id(1)  # (sequence, KV head)
    row = tl.arange(0, TOKENS * HEADS)
    head = row // TOKENS
    token = tile * TOKENS + row % TOKENS
    real = (head < G) & (token < n_queries)
    at = ((pair.to(tl.int64) * G + head) * n_queries + token)[:, None] * D + tl.arange(0, D)[None, :]
    query = tl.load(q + at, mask=real[:, None], other=0.0)
    place = (pair // n_kv).to(tl.int64) * n_queries + token
    position = tl.load(positions + place, mask=real, other=-1).to(tl.int32)
    bit = 1 << (row % TOKENS)
    top = tl.full([TOKENS * HEADS], -1e30, tl.float32)  # finite: a row without keys must not give inf - inf
    total = tl.zeros([TOKENS * HEADS], tl.float32)
    acc = tl.zeros([TOKENS * HEADS, D], tl.float32)
    index = pair.to(tl.int64) * n_tiles + tile
    capacity = TOKENS * budget
    row_of = entries + index * capacity
    shared = tl.load(bounds + index * 3)
    edge = tl.load(bounds + index * 3 + 1)
    other = tl.load(bounds + index * 3 + 2)
    for i in tl.range(0, shared):
        top, total, acc = _read_block(query, keys, values, pair, tl.load(row_of + i), bit, position,
                                      top, total, acc, scale, "shared", S, D, PRECISION)  # fmt: skip
    for i in tl.range(other, capacity):
        top, total, acc = _read_block(query, keys, values, pair, tl.load(row_of + i), bit, position,
                                      top, total, acc, scale, "other", S, D, PRECISION)  # fmt: skip
    for i in tl.range(edge, other, num_stages=1):
        top, total, acc = _read_block(query, keys, values, pair, tl.load(row_of + i), bit, position,
                                      top, total, acc, scale, "edge", S, D, PRECISION)  # fmt: skip
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=real[:, None])


@dataclass(frozen=True)
class PrefillTiles:
    """Launch shape of ``sparse_prefill``; the defaults were measured on an H200."""

    rows: int = 64  # tokens * heads of a program
    num_warps: int = 4
    num_stages: int = 2


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
        ids, at = block_ids.long(), positions.long()
        return out.copy_(block_attention(q, k, v, ids, at, block_size=block_size, scale=scale))
    return _launch(q, k, v, block_ids, positions, block_size, scale, out, tiles)


def _launch(q, k, v, block_ids, positions, size, scale, out, tiles: PrefillTiles) -> Tensor:
    from triton.tools.tensor_descriptor import TensorDescriptor

    batch, n_kv, n_tokens, dim = k.shape
    n_queries, budget, group, pairs = q.shape[2], block_ids.shape[3], q.shape[1] // n_kv, batch * n_kv
    backend.expect_power_of_two(block_size=size, d=dim)
    if k.data_ptr() % 16 or v.data_ptr() % 16:
        raise ValueError("k and v must start at a multiple of 16 bytes (for TMA); pass k.clone(), v.clone()")
    heads = backend.next_power_of_two(group)
    rows = 16 if q.dtype is torch.float32 else tiles.rows  # exact float32 products fill the registers
    tokens = max(1, min(MOST_TOKENS, rows // heads))
    heads = max(heads, 16 // tokens)  # a matrix unit takes 16 rows
    entries, bounds = union_lists(block_ids, positions, tokens, -(-n_tokens // size), size)
    keys, values = (
        TensorDescriptor.from_tensor(t.view(pairs, n_tokens, dim), [1, size, dim]) for t in (k, v)
    )
    n_tiles = -(-n_queries // tokens)
    _attend_kernel[(n_tiles, pairs)](
        q, keys, values, positions, entries, bounds, out, scale * LOG2_E, n_queries, n_tiles, budget, n_kv,
        G=group, HEADS=heads, TOKENS=tokens, S=size, D=dim,
        PRECISION="ieee" if q.dtype is torch.float32 else "tf32",
        num_warps=tiles.num_warps, num_stages=fit_stages(tiles.num_stages, 2 * size * dim * k.element_size()),
    )  # fmt: skip
    return out


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
    if int(positions.max()) >= n_tokens or int(positions.min()) < 0:
        raise ValueError(f"positions must lie in 0..{n_tokens - 1}, the tokens that have keys")
    if int(block_ids.min()) < -1:
        raise ValueError(f"block_ids hold {int(block_ids.min())}; an empty place is -1")
    if int(block_ids.max()) * size >= n_tokens:
        raise ValueError(
            f"block {int(block_ids.max())} starts after the last of {n_tokens} keys (block_size {size}); the "
            "list was made for a longer sequence or another block size"
        )
