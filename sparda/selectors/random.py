"""Forced blocks and chance: the floor that every learned choice must beat.

The draw depends on (seed, layer, head, position, block) alone, so that it is the same in prefill and
decode, on CPU and GPU, in any chunking.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Random(Selector):
    seed: int = 0
    name = "random"

    def block_scores(self, view: LayerView) -> Tensor:
        device, heads = view.queries.device, view.shape[1]
        head = torch.arange(heads, device=device)[None, :, None, None]
        block = torch.arange(view.n_blocks, device=device)
        code = torch.full((), self.seed, dtype=torch.int64, device=device)
        for part in (view.layer, head, view.positions[:, None, :, None], block):
            code = _scramble(code + part)
        return (code >> 40 & 0xFFFFFF).float() / 2**24  # [B, H, T_q, N] in [0, 1)


def _scramble(code: Tensor) -> Tensor:
    """A bijection of int64 with wrap-around products, in which every input bit reaches the high bits."""
    code = code * -7046029254386353131  # odd: 2**64 divided by the golden ratio, as a signed number
    code = code ^ (code >> 29 & 0x7FFFFFFFF)
    code = code * -4658895280553007687  # odd
    return code ^ (code >> 32 & 0xFFFFFFFF)
