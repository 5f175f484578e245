"""Forecast scores of blocks: dot product with every visible compressed key, best window of each block.

Reference: ``blocks.pool_to_blocks(blocks.forecast_scores(...))``. Scores of windows never reach memory: one
pass reads the compressed keys and writes one float32 per block.

Decode (one query a sequence) is bound by that read: a program takes NB blocks of one (sequence, KV head),
all loads at once. Prefill is a matrix product: for each window offset i of a block, one tile of queries
times keys r*b + i; the maximum over i is elementwise, so that pooling costs no data movement. The windows
that start before a block and reach into it (one, when window = 2 * stride) are multiplied by both neighbours.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import blocks
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.spec import Sparsity


@triton.jit
def count_visible(t, REACH: tl.constexpr, STRIDE: tl.constexpr, n_windows):
    """Windows that a query at t sees: those whose edge stride*j + REACH is not after t."""
    reached = t.to(tl.int32) - REACH
    return tl.minimum(tl.where(reached >= 0, reached // STRIDE + 1, 0), n_windows)


@triton.jit
def decode_kernel(
    forecast, compressed, positions, out, n_windows, n_blocks,
    HEADS: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BEFORE: tl.constexpr, REACH: tl.constexpr,
    STRIDE: tl.constexpr, NB: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    seen = count_visible(tl.load(positions + bh // HEADS), REACH, STRIDE, n_windows)
    lane = tl.arange(0, D)
    f = tl.load(forecast + bh * D + lane).to(tl.float32)  # [D]
    keys = compressed + bh.to(tl.int64) * n_windows * D
    w = tl.program_id(0) * NB * R + tl.arange(0, NB * R)
    tile = tl.load(keys + w[:, None] * D + lane, mask=w[:, None] < seen, other=0.0)  # [NB*R, D]
    score = tl.sum(tile.to(tl.float32) * f, 1)
    best = tl.max(tl.reshape(tl.where(w < seen, score, float("-inf")), (NB, R)), 1)  # [NB]
    block = tl.program_id(0) * NB + tl.arange(0, NB)
    for i in tl.static_range(1, BEFORE + 1):  # in cache: the neighbour reads the same rows
        w = block * R - i
        some = (w >= 0) & (w < seen)
        tile = tl.load(keys + w[:, None] * D + lane, mask=some[:, None], other=0.0)  # [NB, D]
        score = tl.sum(tile.to(tl.float32) * f, 1)
        best = tl.maximum(best, tl.where(some, score, float("-inf")))
    tl.store(out + bh.to(tl.int64) * n_blocks + block, best, mask=block < n_blocks)


@triton.jit
def _best_windows(
    f, keys, block, seen, n_windows, D: tl.constexpr, R: tl.constexpr, BEFORE: tl.constexpr,
    BM: tl.constexpr, NB: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Maximum over the windows of each block, [BM, NB]; without MASKED every row must see all of them."""
    lane = tl.arange(0, D)
    best = tl.full((BM, NB), float("-inf"), tl.float32)
    for i in tl.range(0, R + BEFORE):
        w = block * R + i - BEFORE
        if MASKED:
            stored = (w >= 0) & (w < n_windows)
            tile = tl.load(keys + w[:, None] * D + lane, mask=stored[:, None], other=0.0)
        else:
            tile = tl.load(keys + w[:, None] * D + lane)
        score = tl.dot(f, tl.trans(tile), input_precision=PRECISION)  # [BM, NB]
        if MASKED:
            visible = (w >= 0)[None, :] & (w[None, :] < seen[:, None])
            score = tl.where(visible, score, float("-inf"))
        best = tl.maximum(best, score)
    return best


@triton.jit
def prefill_kernel(
    forecast, compressed, positions, out, n_queries, n_windows, n_blocks,
    HEADS: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BEFORE: tl.constexpr, REACH: tl.constexpr,
    STRIDE: tl.constexpr, BM: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block_tiles = tl.cdiv(n_blocks, NB)
    bh = tl.program_id(1)
    row = tl.program_id(0) // block_tiles * BM + tl.arange(0, BM)
    first = tl.program_id(0) % block_tiles * NB
    block = first + tl.arange(0, NB)
    real = row < n_queries
    t = tl.load(positions + (bh // HEADS).to(tl.int64) * n_queries + row, mask=real, other=-1)
    seen = count_visible(t, REACH, STRIDE, n_windows)  # [BM]
    rows = forecast + (bh.to(tl.int64) * n_queries + row[:, None]) * D + tl.arange(0, D)
    f = tl.load(rows, mask=real[:, None], other=0.0)  # [BM, D]
    keys = compressed + bh.to(tl.int64) * n_windows * D
    start, stop = first * R - BEFORE, (first + NB) * R  # windows of this tile
    best = tl.full((BM, NB), float("-inf"), tl.float32)  # stays where the whole tile lies in the future
    if (start >= 0) & (stop <= tl.min(tl.where(real, seen, n_windows))):
        best = _best_windows(f, keys, block, seen, n_windows, D, R, BEFORE, BM, NB, False, PRECISION)
    elif start < tl.max(seen):
        best = _best_windows(f, keys, block, seen, n_windows, D, R, BEFORE, BM, NB, True, PRECISION)
    where = out + (bh.to(tl.int64) * n_queries + row[:, None]) * n_blocks + block
    tl.store(where, best, mask=real[:, None] & (block < n_blocks))


def score_blocks(
    forecast: Tensor, compressed: Tensor, positions: Tensor, sparsity: Sparsity, n_blocks: int, *,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Score blocks by the Forecast, one list per (sequence, KV head, query).

    forecast [B, H, T_q, d], compressed [B, H, N_c, d] (rows that no query sees may hold anything),
    positions [B, T_q] int32 or int64
    returns [B, H, T_q, N] float32, -inf where a block has no visible window

    With window = stride = 1 in ``sparsity``, ``compressed`` may be an index of every token, [B, H, T, r].
    """
    where = backend.choose(forecast, compressed, positions, out)
    batch, heads, n_queries, dim = check_scores(forecast, compressed, positions, sparsity, n_blocks)
    shape = (batch, heads, n_queries, n_blocks)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=forecast.device)
    backend.expect("out", out, shape, torch.float32)
    if forecast.shape[1] != heads:
        raise ValueError(f"a Forecast has one head per KV head: got {forecast.shape[1]} for {heads} KV heads")
    if where == "torch":
        scores = blocks.forecast_scores(forecast, compressed, positions, sparsity)
        return out.copy_(blocks.pool_to_blocks(scores, n_blocks, sparsity))
    check_tiles(dim)
    sizes = pool_constants(sparsity) | {"HEADS": heads, "D": dim}
    n_windows = compressed.shape[2]
    if n_queries == 1:
        per_program = max(DECODE_BLOCKS, DECODE_ELEMENTS // (dim * sizes["R"]))
        nb = min(per_program, backend.next_power_of_two(n_blocks))
        chained = backend.can_chain(forecast.device)
        decode_kernel[(-(-n_blocks // nb), batch * heads)](
            forecast, compressed, positions, out, n_windows, n_blocks, **sizes, NB=nb, CHAINED=chained,
            num_warps=DECODE_WARPS, **backend.launch_early(chained),
        )  # fmt: skip
        return out
    bm, nb = PREFILL_TILE if where == "cuda" and forecast.element_size() == 2 else (32, 32)
    grid = (-(-n_queries // bm) * -(-n_blocks // nb), batch * heads)
    prefill_kernel[grid](
        forecast, compressed, positions, out, n_queries, n_windows, n_blocks, **sizes, BM=bm, NB=nb,
        PRECISION=dot_precision(forecast), num_warps=PREFILL_WARPS, num_stages=PREFILL_STAGES,
    )  # fmt: skip
    return out


# tiles that were fastest on an H200 at 131,072 tokens
DECODE_ELEMENTS, DECODE_BLOCKS, DECODE_WARPS = 2048, 2, 1  # of a program: so many, but at least two blocks
PREFILL_TILE, PREFILL_WARPS, PREFILL_STAGES = (128, 64), 4, 3


def dot_precision(x: Tensor) -> str:
    """float32 products stay float32; 16-bit ones are exact in the tensor core anyway."""
    return "ieee" if x.dtype is torch.float32 else "tf32"


def pool_constants(sparsity: Sparsity) -> dict[str, int]:
    """The kernels' view of a block: R windows start in it, BEFORE start earlier and reach into it."""
    r = sparsity.block_size // sparsity.stride
    backend.expect_power_of_two(windows_per_block=r)
    reach = sparsity.window - 1 if sparsity.visibility == "end" else 0
    before = sparsity.window // sparsity.stride - 1
    return {"R": r, "BEFORE": before, "REACH": reach, "STRIDE": sparsity.stride}


def check_tiles(dim: int) -> None:
    """What the kernels ask of a head dimension, and the reference does not."""
    backend.expect_power_of_two(head_dim=dim)
    if dim < 16:
        raise ValueError(f"the kernels need a head dimension of at least 16, got {dim}")


def check_scores(
    rows: Tensor, compressed: Tensor, positions: Tensor, sparsity: Sparsity, n_blocks: int
) -> tuple[int, int, int, int]:
    """Checks shared by the two scorers; returns B, H, T_q, d."""
    backend.expect("compressed", compressed, (None, None, None, None), backend.FLOATS)
    batch, heads, _, dim = compressed.shape
    backend.expect("the queries", rows, (batch, None, None, dim), compressed.dtype)
    backend.expect("positions", positions, (batch, rows.shape[2]), (torch.int32, torch.int64))
    if n_blocks < 1:
        raise ValueError(f"n_blocks must be at least 1, got {n_blocks}")
    if backend.check_values(positions) and positions.numel():
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= n_blocks * sparsity.block_size:
            raise ValueError(
                f"positions {low}..{high} must lie in 0..{n_blocks * sparsity.block_size - 1}; "
                f"raise n_blocks (now {n_blocks}) or correct the positions"
            )
    return batch, heads, rows.shape[2], dim
