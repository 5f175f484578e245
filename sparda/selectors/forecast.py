"""The layer before chooses (SparDA): its Forecast against this layer's compressed keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from sparda import blocks
from sparda.forecast import Forecast as Weights
from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Forecast(Selector):
    weights: Weights = field(repr=False)
    name = "forecast"
    looks_ahead = True

    def look_ahead(self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The rotated Forecast, [B, H, T_q, d]."""
        return self.weights.heads(layer, hidden, cos, sin)

    def block_scores(self, view: LayerView) -> Tensor:
        if view.ahead is None:
            raise ValueError("the Forecast needs the layer before; select inside attach() or the engine")
        scores = blocks.forecast_scores(view.ahead, view.compressed, view.positions, view.sparsity)
        return blocks.pool_to_blocks(scores, view.n_blocks, view.sparsity)
