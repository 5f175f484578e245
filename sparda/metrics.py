"""How good is a choice of blocks? Three numbers, defined once (spec.md section 10 names them).

mass recall : share of the true attention inside the chosen blocks; the yardstick
agreement   : share of learned (not forced) blocks that two selections have in common
hit rate    : share of wanted blocks that the step before had already made resident
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparda.blocks import block_mask, forced_blocks
from sparda.spec import Sparsity


def mass_recall(mass: Tensor, block_ids: Tensor) -> Tensor:
    """Attention mass inside the chosen blocks.

    mass [B, H, T_q, N] (rows sum to 1, from attention.block_mass), block_ids [B, H, T_q, k] -> [B, H, T_q]
    """
    return (mass * block_mask(block_ids, mass.shape[-1])).sum(-1)


def agreement(ours: Tensor, theirs: Tensor, positions: Tensor, n_blocks: int, sparsity: Sparsity) -> Tensor:
    """Share of the learned blocks of ``theirs`` that ``ours`` chose too; forced blocks do not count.

    ours, theirs [B, H, T_q, k], positions [B, T_q] -> [B, H, T_q]; NaN where nothing had to be learned
    """
    learned = ~forced_blocks(positions, n_blocks, sparsity)[:, None]  # [B, 1, T_q, N]
    wanted = block_mask(theirs, n_blocks) & learned
    common = wanted & block_mask(ours, n_blocks)
    return common.sum(-1) / wanted.sum(-1)  # 0 / 0 is NaN on purpose


def hit_rate(before: Tensor, now: Tensor) -> Tensor:
    """Share of the blocks wanted now that were chosen one step before: those need no transfer.

    before, now [B, H, k] with -1 padding -> [B, H]; forced blocks and the tail count as wanted

    >>> hit_rate(torch.tensor([[[0, 4, 5, 6]]]), torch.tensor([[[0, 5, 6, 7]]])).item()
    0.75
    """
    n_blocks = int(torch.maximum(before.max(), now.max())) + 1
    wanted = block_mask(now, n_blocks)
    return (wanted & block_mask(before, n_blocks)).sum(-1) / wanted.sum(-1)
