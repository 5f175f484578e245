"""Query-driven scores of blocks (InfLLM-V2, the sparse baseline): softmax per head, group sum, best window.

Reference: ``blocks.pool_to_blocks(blocks.query_scores(...))``. Two passes over the compressed keys, both on
tensor cores, because a sum of softmaxes needs every head's normaliser first:

1. log-sum-exp of each query head and token, like the first half of flash attention;
2. probabilities again, summed over the G heads of a group, pooled, written once as [.., N].

Pass 2 works on the transposed product, keys times queries, with the heads of a group as columns: the sum over
heads then stays inside a thread. In decode both passes split over the windows so that all SMs read.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import blocks
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.kernels.score_blocks import (
    check_scores,
    check_tiles,
    count_visible,
    dot_precision,
    pool_constants,
)
from sparda.spec import Sparsity


@triton.jit
def _fold(top, total, q, keys, start, stop, seen, n_windows, scale, D: tl.constexpr, BN: tl.constexpr,
          MASKED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Online maximum and sum over windows start .. stop - 1, in powers of two."""
    lane = tl.arange(0, D)
    for first in tl.range(start, stop, BN):
        w = first + tl.arange(0, BN)
        if MASKED:
            tile = tl.load(keys + w[:, None] * D + lane, mask=w[:, None] < n_windows, other=0.0)
        else:
            tile = tl.load(keys + w[:, None] * D + lane)
        logit = tl.dot(q, tl.trans(tile), input_precision=PRECISION)  # [BM, BN]
        if MASKED:
            logit = tl.where((w < stop)[None, :] & (w[None, :] < seen[:, None]), logit, float("-inf"))
        higher = tl.maximum(top, tl.max(logit, 1) * scale)
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp2(top - shift) + tl.sum(tl.exp2(logit * scale - shift[:, None]), 1)
        top = higher
    return top, total


@triton.jit
def normaliser_kernel(
    q, compressed, positions, lse, n_queries, n_windows, split_windows, scale,
    HEADS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, REACH: tl.constexpr, STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    bh, split = tl.program_id(1), tl.program_id(2)
    n_rows = G * n_queries  # the heads of a group lie one after the other
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    real = row < n_rows
    t = tl.load(positions + (bh // HEADS).to(tl.int64) * n_queries + row % n_queries, mask=real, other=-1)
    seen = count_visible(t, REACH, STRIDE, n_windows)  # [BM]
    rows = bh.to(tl.int64) * n_rows + row
    query = tl.load(q + rows[:, None] * D + tl.arange(0, D), mask=real[:, None], other=0.0)  # [BM, D]
    keys = compressed + bh.to(tl.int64) * n_windows * D
    start = split * split_windows
    stop = tl.minimum(tl.max(seen), start + split_windows)
    shared = tl.minimum(tl.min(tl.where(real, seen, n_windows)), stop)  # every row sees these
    full = tl.maximum(start, start + (shared - start) // BN * BN)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    top, total = _fold(top, total, query, keys, start, full, seen, n_windows, scale, D, BN, False, PRECISION)
    top, total = _fold(top, total, query, keys, full, stop, seen, n_windows, scale, D, BN, True, PRECISION)
    part = split * tl.num_programs(1).to(tl.int64) * n_rows
    tl.store(lse + part + rows, tl.where(total > 0, top + tl.log2(total), float("-inf")), mask=real)


@triton.jit
def pooled_kernel(
    q, compressed, positions, lse, out, n_queries, n_windows, n_blocks, scale, n_splits,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    BEFORE: tl.constexpr, REACH: tl.constexpr, STRIDE: tl.constexpr, BT: tl.constexpr, NB: tl.constexpr,
    SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block_tiles = tl.cdiv(n_blocks, NB)
    bh = tl.program_id(1)
    first = tl.program_id(0) // block_tiles * BT
    block = tl.program_id(0) % block_tiles * NB + tl.arange(0, NB)
    turn = first + tl.arange(0, BT)
    t = tl.load(positions + (bh // HEADS).to(tl.int64) * n_queries + turn, mask=turn < n_queries, other=-1)
    seen = count_visible(t, REACH, STRIDE, n_windows)  # [BT]
    best = tl.full((NB, BT), float("-inf"), tl.float32)
    if tl.min(block) * R - BEFORE < tl.max(seen):
        lane = tl.arange(0, D)
        column = tl.arange(0, GP * BT)  # head-major: head column // BT, token column % BT
        real = (column // BT < G) & (first + column % BT < n_queries)
        row = bh.to(tl.int64) * G * n_queries + column // BT * n_queries + first + column % BT
        query = tl.load(q + row[:, None] * D + lane, mask=real[:, None], other=0.0)  # [GP*BT, D]
        part = tl.arange(0, SPLITS).to(tl.int64) * tl.num_programs(1) * G * n_queries
        parts = tl.load(
            lse + row[:, None] + part[None, :],
            mask=real[:, None] & (tl.arange(0, SPLITS) < n_splits)[None, :], other=float("-inf"),
        )  # fmt: skip
        top = tl.max(parts, 1)
        shift = tl.where(top == float("-inf"), 0.0, top)
        norm = shift + tl.log2(tl.sum(tl.exp2(parts - shift[:, None]), 1))  # [GP*BT]
        norm = tl.where(real & (top > float("-inf")), norm, float("inf"))  # weight 0
        keys = compressed + bh.to(tl.int64) * n_windows * D
        for i in tl.range(0, R + BEFORE):
            w = block * R + i - BEFORE
            tile = tl.load(
                keys + w[:, None] * D + lane, mask=((w >= 0) & (w < n_windows))[:, None], other=0.0
            )
            logit = tl.dot(tile, tl.trans(query), input_precision=PRECISION)  # [NB, GP*BT]
            weight = tl.exp2(logit * scale - norm[None, :])
            score = tl.sum(tl.reshape(weight, (NB, GP, BT)), 1)  # [NB, BT]
            visible = (w >= 0)[:, None] & (w[:, None] < seen[None, :])
            best = tl.maximum(best, tl.where(visible, score, float("-inf")))
    where = out + (bh.to(tl.int64) * n_queries + turn[None, :]) * n_blocks + block[:, None]
    tl.store(where, best, mask=(turn < n_queries)[None, :] & (block < n_blocks)[:, None])


LOG2_E = 1.4426950408889634
Tile = tuple[int, int, int, int]
# tiles that were fastest on an H200 at 131,072 tokens
NORMALISER = (128, 64, 8, 3)  # query rows, windows, warps, stages
POOLED = (256, 64, 4, 3)  # query columns, blocks, warps, stages
SMALL_BLOCKS = 64  # blocks of a tile in decode and in float32


def score_blocks_query(
    q: Tensor, compressed: Tensor, positions: Tensor, sparsity: Sparsity, n_blocks: int, *,
    scale: float | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Score blocks by the queries, one list per (sequence, KV head, query), shared by a group's G heads.

    q [B, H_q, T_q, d] post-RoPE, compressed [B, H, N_c, d], positions [B, T_q]; scale replaces 1 / sqrt(d)
    returns [B, H, T_q, N] float32, -inf where a block has no visible window
    """
    where = backend.choose(q, compressed, positions, out)
    batch, heads, n_queries, dim = check_scores(q, compressed, positions, sparsity, n_blocks)
    if q.shape[1] % heads:
        raise ValueError(f"{q.shape[1]} query heads cannot be grouped over {heads} KV heads")
    shape = (batch, heads, n_queries, n_blocks)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=q.device)
    backend.expect("out", out, shape, torch.float32)
    if where == "torch":
        scores = blocks.query_scores(q, compressed, positions, sparsity, scale=scale)
        return out.copy_(blocks.pool_to_blocks(scores, n_blocks, sparsity))
    check_tiles(dim)
    _launch(q, compressed, positions, sparsity, dim**-0.5 if scale is None else scale, out, where == "cuda")
    return out


def log_sum_exps(
    q: Tensor, keys: Tensor, positions: Tensor, scale: float, tile: Tile, *,
    reach: int, stride: int, split: int | None = None,
) -> Tensor:  # fmt: skip
    """First pass: normalisers [splits, B * H, G * T_q] in powers of two, of ``split`` windows each (all).

    scale in powers of two; tile: query rows, windows, warps, stages; with reach 0, stride 1 a window is a key
    """
    batch, heads, n_windows, dim = keys.shape
    group, n_queries = q.shape[1] // heads, q.shape[2]
    n_rows, split = group * n_queries, split or max(1, n_windows)  # a prompt may be shorter than a window
    splits = max(1, -(-n_windows // split))
    lse = torch.empty(splits, batch * heads, n_rows, dtype=torch.float32, device=q.device)
    normaliser_kernel[(-(-n_rows // tile[0]), batch * heads, splits)](
        q, keys, positions, lse, n_queries, n_windows, split, scale, HEADS=heads, G=group, D=dim,
        PRECISION=dot_precision(q), REACH=reach, STRIDE=stride, BM=tile[0], BN=tile[1], num_warps=tile[2],
        num_stages=tile[3],
    )  # fmt: skip
    return lse


def _launch(q, compressed, positions, sparsity, scale, out, on_gpu: bool) -> None:
    batch, heads, n_queries, n_blocks = out.shape
    group, n_windows, dim = q.shape[1] // heads, compressed.shape[2], q.shape[3]
    padded, sizes = backend.next_power_of_two(group), pool_constants(sparsity)
    rows, (columns, nb, warps, stages) = query_tiles(q, group, NORMALISER, POOLED, SMALL_BLOCKS, on_gpu)
    split = n_windows
    if n_queries == 1 and on_gpu:  # so few rows that only splitting fills the GPU
        wanted = max(1, 2 * backend.multiprocessors(q.device) // (batch * heads))
        split = max(rows[1], backend.next_power_of_two(-(-n_windows // wanted)))
    scale *= LOG2_E
    lse = log_sum_exps(
        q, compressed, positions, scale, rows, reach=sizes["REACH"], stride=sizes["STRIDE"], split=split
    )
    bt = columns // padded
    pooled_kernel[(-(-n_queries // bt) * -(-n_blocks // nb), batch * heads)](
        q, compressed, positions, lse, out, n_queries, n_windows, n_blocks, scale, len(lse), **sizes,
        HEADS=heads, G=group, GP=padded, D=dim, BT=bt, NB=nb, PRECISION=dot_precision(q),
        SPLITS=backend.next_power_of_two(len(lse)), num_warps=warps, num_stages=stages,
    )  # fmt: skip


def query_tiles(q: Tensor, group: int, first: Tile, second: Tile, small_blocks: int, on_gpu: bool):
    """Tiles of the two passes: the given ones where they fit, small ones in decode and in float32."""
    n_rows, padded = group * q.shape[2], backend.next_power_of_two(group)
    if on_gpu and q.element_size() == 2 and n_rows >= first[0] and padded <= second[0]:
        return first, second
    rows = max(16, min(64, backend.next_power_of_two(n_rows)))
    return (rows, 64, 4, 3), (max(16, padded), small_blocks, 4, 3)
