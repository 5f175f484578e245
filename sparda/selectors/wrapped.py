"""A selector that changes another one in some respect, and otherwise is that one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparda.forecast import Shape
from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Wrapped(Selector):
    """What is not overridden is ``inner``'s."""

    inner: Selector

    def __post_init__(self):
        for about in ("looks_ahead", "needs_keys", "own_index", "waits"):
            object.__setattr__(self, about, getattr(self.inner, about))

    @property
    def index_dim(self) -> int:
        return self.inner.index_dim

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Selector:
        return replace(self, inner=self.inner.to(device, dtype))

    def check(self, shape: Shape) -> None:
        self.inner.check(shape)

    def made_for(self, fingerprint: str) -> bool | None:
        return self.inner.made_for(fingerprint)

    def ahead_weights(self, layer: int) -> Tensor:
        return self.inner.ahead_weights(layer)

    def look_ahead(self, layer: int, hidden: Tensor) -> Tensor:
        return self.inner.look_ahead(layer, hidden)

    def index_keys(self, layer: int, keys: Tensor) -> Tensor:
        return self.inner.index_keys(layer, keys)

    def block_scores(self, view: LayerView) -> Tensor:
        return self.inner.block_scores(view)

    def select(self, view: LayerView) -> Tensor:
        return self.inner.select(view)
