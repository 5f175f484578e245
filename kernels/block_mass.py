"""Attention mass of every block: the Forecast's teacher, the oracle's choice, the yardstick of recall.

Reference: ``attention.block_mass``. Two passes over the keys on tensor cores; nothing T_q x T is written:

1. log-sum-exp of each query head: the normaliser of ``score_blocks_query``, where a "window" is one key;
2. probabilities again, keys times queries, summed over a block's tokens and the G heads.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import attention
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.kernels.score_blocks import check_tiles, dot_precision
from sparda.kernels.score_blocks_query import LOG2_E, log_sum_exps, query_tiles


@triton.jit
def mass_kernel(
    q, keys, positions, lse, out, n_queries, n_tokens, n_blocks, scale,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
    BT: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    runs = tl.cdiv(n_blocks, NB)
    bh = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) // runs * BT
    start = tl.program_id(0) % runs * NB
    stop = tl.minimum(start + NB, n_blocks)
    lane = tl.arange(0, D)
    column = tl.arange(0, GP * BT)  # head-major: head column // BT, token column % BT
    token = first + column % BT
    real = (column // BT < G) & (token < n_queries)
    t = tl.load(positions + bh // HEADS * n_queries + token, mask=real, other=-1).to(tl.int32)
    row = (bh * G + column // BT) * n_queries + token
    query = tl.load(q + row[:, None] * D + lane, mask=real[:, None], other=0.0)  # [GP*BT, D]
    norm = tl.load(lse + row, mask=real, other=0.0)
    turn = first + tl.arange(0, BT)
    where = out + (bh * n_queries + turn) * n_blocks
    past = tl.minimum(tl.max(t) // S + 1, stop)  # later blocks are in the future of all
    for block in tl.range(start, past):
        key = block * S + tl.arange(0, S)
        tile = tl.load(
            keys + (bh * n_tokens + key[:, None]) * D + lane, mask=(key < n_tokens)[:, None], other=0.0
        )
        logit = tl.dot(tile, tl.trans(query), input_precision=PRECISION)  # [S, GP*BT]
        seen = key[:, None] <= t[None, :]
        weight = tl.where(seen, tl.exp2(logit * scale - norm[None, :]), 0.0)
        mass = tl.sum(tl.reshape(tl.sum(weight, 0), (GP, BT)), 0) / G
        tl.store(where + block, mass, mask=turn < n_queries)
    for block in tl.range(tl.maximum(past, start), stop):
        tl.store(where + block, tl.zeros((BT,), tl.float32), mask=turn < n_queries)


ROWS = (128, 64, 8, 3)  # of the normaliser: query rows, keys, warps, stages
COLUMNS = (256, 16, 8, 3)  # of the second pass: query columns, blocks, warps, stages


def block_mass(
    q: Tensor, k: Tensor, positions: Tensor, *, block_size: int, scale: float | None = None
) -> Tensor:
    """Softmax of each query head, summed over the tokens of a block, mean over the G heads.

    q [B, H_q, T_q, d], k [B, H, T, d], positions [B, T_q], of any strides; scale replaces 1 / sqrt(d)
    returns [B, H, T_q, N] float32, rows sum to 1
    """
    q, k, positions = (x.contiguous() for x in (q, k, positions))
    where = backend.choose(q, k, positions)
    backend.expect("k", k, (None, None, None, None), backend.FLOATS)
    batch, heads, n_tokens, dim = k.shape
    backend.expect("q", q, (batch, None, None, dim), k.dtype)
    backend.expect("positions", positions, (batch, q.shape[2]), (torch.int32, torch.int64))
    if q.shape[1] % heads:
        raise ValueError(f"{q.shape[1]} query heads cannot be grouped over {heads} KV heads")
    if backend.check_values(positions) and positions.numel() and int(positions.max()) >= n_tokens:
        raise ValueError(f"a query stands at {int(positions.max())}, after the last of {n_tokens} keys")
    if where == "torch":
        return attention.block_mass(q, k, positions, block_size=block_size, scale=scale)
    check_tiles(dim)
    backend.expect_power_of_two(block_size=block_size)
    out = q.new_empty(batch, heads, q.shape[2], -(-n_tokens // block_size), dtype=torch.float32)
    if out.numel():
        _launch(q, k, positions, block_size, dim**-0.5 if scale is None else scale, out, where == "cuda")
    return out


def _launch(q, k, positions, block_size, scale, out, on_gpu: bool) -> None:
    batch, heads, n_queries, n_blocks = out.shape
    group, padded = q.shape[1] // heads, backend.next_power_of_two(q.shape[1] // heads)
    rows, (columns, nb, warps, stages) = query_tiles(q, group, ROWS, COLUMNS, COLUMNS[1], on_gpu)
    lse = log_sum_exps(q, k, positions, scale * LOG2_E, rows, reach=0, stride=1)
    bt = columns // padded
    mass_kernel[(-(-n_queries // bt) * -(-n_blocks // nb), batch * heads)](
        q, k, positions, lse, out, n_queries, k.shape[2], n_blocks, scale * LOG2_E, HEADS=heads, G=group,
        GP=padded, D=q.shape[3], S=block_size, BT=bt, NB=nb, PRECISION=dot_precision(q), num_warps=warps,
        num_stages=stages,
    )  # fmt: skip
