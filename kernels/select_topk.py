"""Force, then take the best blocks: the rule of ``blocks.select_blocks`` for one row of scores a program.

No sort: scores become integers of the same order, a search over their 32 bits, ended as soon as the count
fits, finds the value of the last block within the budget, and one prefix sum numbers what is taken. Equal
scores go to the lower id.
``topk_difference`` uses the same search.
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
def sortable(score):
    """An unsigned integer that sorts like the float: 0x007FFFFF for -inf, 0xFF800000 for +inf."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative floats sort the other way round
    return bits.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def order_key(score, block, own, INIT: tl.constexpr, LOCAL: tl.constexpr):
    """An unsigned integer that sorts like the rule: 0 after the query's own block, the largest if forced."""
    forced = (block < INIT) | (block >= own - LOCAL)
    return tl.where(block > own, 0, tl.where(forced, 0xFFFFFFFF, sortable(score))).to(tl.uint32)


@triton.jit
def last_key(key, wanted):
    """A value that exactly ``wanted`` keys reach, or where ties forbid that, the largest that more reach."""
    bound, bit = tl.full((), 0, tl.uint32), tl.full((), 1 << 31, tl.uint32)
    reached = wanted - 1
    while (bit > 0) & (reached != wanted):
        count = tl.sum((key >= (bound | bit)).to(tl.int32))
        bound = tl.where(count >= wanted, bound | bit, bound)
        reached = tl.where(count >= wanted, count, reached)
        bit = bit >> 1
    return bound


@triton.jit
def last_key_soon(key, wanted, first):
    """``last_key`` by two bits a turn: for a lone row, which waits for every turn, half the turns win.

    ``first`` is the lower of the first two bits; higher ones must be 0 in every key.
    """
    bound = tl.full((), 0, tl.uint32)
    shift = tl.full((), 0, tl.int32) + first
    reached = wanted - 1
    while (shift >= 0) & (reached != wanted):
        step = tl.full((), 1, tl.uint32) << shift.to(tl.uint32)
        some = (key >= (bound | step)).to(tl.int64)
        more = (key >= (bound | step * 2)).to(tl.int64)
        most = (key >= (bound | step * 3)).to(tl.int64)
        counts = tl.sum(some + (more << 20) + (most << 40))  # three in one; N < 65536
        one, two = (counts & 0xFFFFF).to(tl.int32), ((counts >> 20) & 0xFFFFF).to(tl.int32)
        three = (counts >> 40).to(tl.int32)
        if one >= wanted:
            digit = 1 + (two >= wanted).to(tl.uint32) + (three >= wanted).to(tl.uint32)
            bound = bound | digit * step
            reached = tl.where(three >= wanted, three, tl.where(two >= wanted, two, one))
        shift -= 2
    return bound


@triton.jit
def take(key, wanted, bound):
    """Which keys are taken, and how many were taken up to and with each; ``bound`` is their last key."""
    above = (key > bound).to(tl.int32)
    tied = (key == bound).to(tl.int32)
    room = wanted - tl.sum(above)
    so_far = tl.cumsum(above * 65536 + tied, 0)  # both counts in one scan; N < 65536
    ties = so_far & 65535
    taken = (above > 0) | ((tied > 0) & (ties <= room))
    return taken, (so_far >> 16) + tl.minimum(ties, room)


@triton.jit
def topk_kernel(
    scores, positions, block_ids, n_queries, n_blocks, HEADS: tl.constexpr, S: tl.constexpr,
    INIT: tl.constexpr, LOCAL: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # (b*H + h)*T_q + query
    query = row // n_queries // HEADS * n_queries + row % n_queries
    own = tl.load(positions + query).to(tl.int32) // S
    block = tl.arange(0, NP)
    score = tl.load(scores + row * n_blocks + block, mask=block <= own, other=float("-inf"))
    wanted = tl.minimum(K, own + 1)
    key = order_key(score, block, own, INIT, LOCAL)
    taken, number = take(key, wanted, last_key(key, wanted))
    tl.store(block_ids + row * K + number - 1, block, mask=taken)
    column = tl.arange(0, KP)
    tl.store(block_ids + row * K + column, -1, mask=(column >= wanted) & (column < K))


def select_topk(
    block_scores: Tensor, positions: Tensor, sparsity: Sparsity, *, out: Tensor | None = None
) -> Tensor:
    """Choose the blocks of every query.

    block_scores [B, H, T_q, N] float32, positions [B, T_q] int32 or int64
    returns [B, H, T_q, k] int32 as ``blocks.select_blocks``: ascending ids, then -1
    """
    where = backend.choose(block_scores, positions, out)
    backend.expect("block_scores", block_scores, (None, None, None, None), torch.float32)
    batch, heads, n_queries, n_blocks = block_scores.shape
    backend.expect("positions", positions, (batch, n_queries), (torch.int32, torch.int64))
    check_rows(block_scores, positions, sparsity)
    shape = (batch, heads, n_queries, sparsity.budget_blocks)
    if out is None:
        out = torch.empty(shape, dtype=torch.int32, device=block_scores.device)
    backend.expect("out", out, shape, torch.int32)
    if where == "torch":
        return out.copy_(blocks.select_blocks(block_scores, positions.long(), sparsity))
    padded = backend.next_power_of_two(n_blocks)
    if out.numel():
        topk_kernel[(batch * heads * n_queries,)](
            block_scores, positions, out, n_queries, n_blocks, HEADS=heads, NP=padded,
            **rule_constants(sparsity), num_warps=min(8, max(1, padded // ROW_ELEMENTS)),
        )  # fmt: skip
    return out


ROW_ELEMENTS = 512  # scores a warp: fastest on an H200 at 2,048 blocks


def rule_constants(sparsity: Sparsity) -> dict[str, int]:
    """The kernels' view of which blocks are forced, and of the budget."""
    budget = sparsity.budget_blocks
    padded = backend.next_power_of_two(budget)
    names = {"S": sparsity.block_size, "INIT": sparsity.init_blocks, "LOCAL": sparsity.local_blocks}
    return names | {"K": budget, "KP": padded}


def check_rows(block_scores: Tensor, positions: Tensor, sparsity: Sparsity) -> None:
    """Checks shared with ``topk_difference``."""
    n_blocks = block_scores.shape[-1]
    if not 1 <= n_blocks < 65536:
        raise ValueError(f"block_scores cover {n_blocks} blocks; 1 to 65535 are possible")
    if backend.check_values(positions) and positions.numel():
        low, own = int(positions.min()), int(positions.max()) // sparsity.block_size
        if low < 0 or own >= n_blocks:
            raise ValueError(
                f"positions from {low} on, up to block {own}, but only blocks 0..{n_blocks - 1} have scores; "
                "pass scores of more blocks or correct the positions"
            )
        if torch.isnan(block_scores).any():
            raise ValueError("block scores hold NaN; check the keys and queries that they came from")
