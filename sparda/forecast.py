"""The Forecast: one projection a layer that chooses the blocks of the next one.

    F_l = RoPE(W_F^l x_l)        x_l: normed attention input of layer l; W_F: hidden -> H * d, no bias

Layer 0 has no layer before it and selects with a projection of its own. The last layer's Forecast would
predict nothing and does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Forecast:
    """Weights of every layer's Forecast.

    current : [H * d, hidden], layer 0's own projection
    future  : for each layer l but the last, [H * d, hidden]: chooses for layer l + 1
    """

    current: Tensor
    future: Sequence[Tensor]
    head_dim: int

    @classmethod
    def untrained(
        cls, *, n_layers: int, hidden: int, n_kv_heads: int, head_dim: int, seed: int = 0
    ) -> Forecast:
        """Random weights of the right shapes: enough to test and time, never to judge accuracy."""
        generator = torch.Generator().manual_seed(seed)
        shape = (n_layers, n_kv_heads * head_dim, hidden)
        first, *rest = torch.randn(shape, generator=generator) / hidden**0.5
        return cls(first, rest, head_dim)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Forecast:
        """The same weights elsewhere."""
        moved = [w.to(device, dtype) for w in self.future]
        return Forecast(self.current.to(device, dtype), moved, self.head_dim)

    def weight(self, layer: int) -> Tensor:
        """Rows [H * d, hidden] that select for ``layer``: they read the layer before, for layer 0 itself."""
        return self.future[layer - 1] if layer else self.current
