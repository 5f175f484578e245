"""Block scores that repeat a given temporal hit rate, for benchmarks: random weights choose at random.

A block has a rank among the candidates, or -1. The step at position p wants the ``learned`` candidates from
rank p * misses on, round and round, so that from one step to the next exactly ``misses`` of them enter and as
many leave. Everything else scores 0: forced blocks are the selection's own affair.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda.kernels import backend
from sparda.kernels.backend import tl, triton

TILE = 1024


@triton.jit
def replay_kernel(
    scores, rank, positions, n_blocks, misses, learned, pool, HEADS: tl.constexpr, BN: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * BN + tl.arange(0, BN)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.load(positions + row // HEADS).to(tl.int64) * misses % pool
    place = tl.load(rank + row * n_blocks + block, mask=block < n_blocks, other=-1)
    wanted = (place >= 0) & ((place - first + pool) % pool < learned)
    tl.store(scores + row * n_blocks + block, wanted.to(tl.float32), mask=block < n_blocks)


def replay_scores(
    scores: Tensor, rank: Tensor, positions: Tensor, *, misses: int, learned: int, pool: int
) -> Tensor:
    """Overwrite block scores with 1 for the blocks that this step wants and 0 for the others.

    scores [B, H, N] float32, in place; rank [B, H, N] int32, for each head a permutation of 0..pool-1 over
    the candidates, -1 elsewhere; positions [B]
    misses: candidates that enter at each step; learned: candidates wanted at once (k less the forced blocks);
    pool: candidates, at least learned + misses, and more than the slots of a larger cache can remember
    returns scores
    """
    where = backend.choose(scores, rank, positions)
    backend.expect("scores", scores, (None, None, None), torch.float32)
    batch, heads, n_blocks = scores.shape
    backend.expect("rank", rank, (batch, heads, n_blocks), torch.int32)
    backend.expect("positions", positions, (batch,), (torch.int32, torch.int64))
    if not 0 <= misses <= learned:
        raise ValueError(f"misses must lie in 0..{learned}, the learned blocks, got {misses}")
    if learned > pool - misses:
        raise ValueError(
            f"{misses} misses of {learned} blocks need at least {learned + misses} candidates, got {pool}; "
            "raise the context or lower the budget"
        )
    if backend.check_values(rank) and rank.numel() and not -1 <= int(rank.min()) <= int(rank.max()) < pool:
        raise ValueError(f"rank must lie in -1..{pool - 1}, got {int(rank.min())}..{int(rank.max())}")
    if where == "torch":
        first = positions.long() * misses % pool
        wanted = (rank >= 0) & ((rank - first[:, None, None]) % pool < learned)
        return scores.copy_(wanted)
    chained = backend.can_chain(scores.device)
    replay_kernel[(-(-n_blocks // TILE), batch * heads)](
        scores, rank, positions, n_blocks, misses, learned, pool, HEADS=heads, BN=TILE, CHAINED=chained,
        num_warps=4, **backend.launch_early(chained),
    )  # fmt: skip
    return scores
