"""The layer's own query chooses (InfLLM-V2): the sparse baseline, and the Forecast's teacher."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparda import blocks
from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Query(Selector):
    name = "query"

    def block_scores(self, view: LayerView) -> Tensor:
        scores = blocks.query_scores(
            view.queries, view.compressed, view.positions, view.sparsity, scale=view.scale
        )
        return blocks.pool_to_blocks(scores, view.n_blocks, view.sparsity)
