"""Init blocks and the last k - init: what sliding-window models with attention sinks read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Streaming(Selector):
    name = "streaming"

    def block_scores(self, view: LayerView) -> Tensor:
        recency = torch.arange(view.n_blocks, dtype=torch.float32, device=view.queries.device)
        return recency.expand(view.shape)
