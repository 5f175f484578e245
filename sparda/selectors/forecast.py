"""The layer before chooses (SparDA): its Forecast against this layer's compressed keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sparda.forecast import Forecast as Weights
from sparda.forecast import Shape
from sparda.kernels import score_blocks
from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Forecast(Selector):
    weights: Weights = field(repr=False)
    name = "forecast"
    looks_ahead = True

    def __post_init__(self):
        if not isinstance(self.weights, Weights):
            raise TypeError(
                "weights is a Forecast, as Forecast.load(file, Shape.of(model)) gives it; got "
                f"{type(self.weights).__name__}"
            )

    def check(self, shape: Shape) -> None:
        self.weights.check(shape)

    def made_for(self, fingerprint: str) -> bool | None:
        return self.weights.made_for(fingerprint)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Forecast:
        return replace(self, weights=self.weights.to(device, dtype))

    def ahead_weights(self, layer: int) -> Tensor:
        """The Forecast of the layer before, [H * d, hidden]."""
        return self.weights.weight(layer)

    def block_scores(self, view: LayerView) -> Tensor:
        if view.ahead is None:
            raise ValueError("the Forecast needs the layer before; select inside attach() or the engine")
        ahead = view.ahead.contiguous()
        return score_blocks(ahead, view.compressed, view.positions, view.sparsity, view.n_blocks)
