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
        batch, heads = view.keys.shape[:2]
        recency = torch.arange(view.n_blocks, dtype=torch.float32, device=view.keys.device)
        return recency.expand(batch, heads, view.queries.shape[2], -1)
