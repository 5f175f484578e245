"""Dense attention as a selector: every block up to the query's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class All(Selector):
    name = "all"

    def block_scores(self, view: LayerView) -> Tensor:
        return torch.zeros(view.shape, device=view.queries.device)

    def _choose(self, view: LayerView) -> Tensor:
        """Ids 0 .. own block; the list is as wide as the context, not k."""
        block = torch.arange(view.n_blocks, device=view.queries.device)
        own = (view.positions // view.sparsity.block_size)[:, None, :, None]  # [B, 1, T_q, 1]
        return torch.where(block <= own, block, -1).expand(-1, view.shape[1], -1, -1)
