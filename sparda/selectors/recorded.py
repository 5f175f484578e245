"""Another selector's work with the choices of a real model: for benchmarks, whose weights are random."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparda.selectors.base import LayerView
from sparda.selectors.replay import Override


@dataclass(frozen=True)
class Recorded(Override):
    """Does all of ``inner``'s scoring, then wants what was recorded, step after step.

    choices : [steps, sequences, layers, KV heads, n] block ids, of all layers but the first; where there are
              more sequences, layers or heads they repeat; after the last step nothing changes any more
    past    : tokens that every sequence holds when the replay begins
    """

    choices: Tensor = field(repr=False)
    past: int = 0
    _wanted: dict[tuple, Tensor] = field(default_factory=dict, repr=False, compare=False)
    name = "recorded"

    def overwrite(self, view: LayerView, scores: Tensor) -> None:
        wanted = self._of_layer(view.layer, scores)  # [steps, B, H, n]
        step = (view.positions[:, 0] - self.past).clamp(0, len(wanted) - 1)  # [B]
        now = wanted[step, torch.arange(len(step), device=step.device)]
        scores.zero_().scatter_(2, now, 1.0)

    def _of_layer(self, layer: int, scores: Tensor) -> Tensor:
        """On the device, made at the first step, which is not captured."""
        key = (layer, tuple(scores.shape), scores.device)
        if key not in self._wanted:
            batch, heads, _ = scores.shape
            sequences, layers, recorded_heads = self.choices.shape[1:4]
            some = self.choices[:, torch.arange(batch) % sequences, (layer - 1) % layers]
            self._wanted[key] = some[:, :, torch.arange(heads) % recorded_heads].long().to(scores.device)
        return self._wanted[key]
