"""Forced blocks and those of largest true attention mass: what no real system can know in advance."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparda.kernels import block_mass
from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Oracle(Selector):
    name = "oracle"
    needs_keys = True

    def block_scores(self, view: LayerView) -> Tensor:
        return block_mass(
            view.queries, view.all_keys, view.positions, block_size=view.sparsity.block_size, scale=view.scale
        )
