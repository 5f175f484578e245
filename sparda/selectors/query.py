"""The layer's own query chooses (InfLLM-V2): the sparse baseline, and the Forecast's teacher."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparda.kernels import score_blocks_query
from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Query(Selector):
    name = "query"

    def block_scores(self, view: LayerView) -> Tensor:
        queries = view.queries.contiguous()
        return score_blocks_query(
            queries, view.compressed, view.positions, view.sparsity, view.n_blocks, scale=view.scale
        )
