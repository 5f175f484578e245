"""What a selector sees, and what it must return. One file per answer to "who chooses the blocks?"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparda import blocks
from sparda.attention import query_slices
from sparda.spec import Sparsity


@dataclass(frozen=True)
class LayerView:
    """One attention layer, as a selector sees it.

    queries   : [B, H_q, T_q, d] post-RoPE
    keys      : [B, H, T, d] post-RoPE, index = position
    positions : [B, T_q] int64
    lookahead_hidden : [B, T_q, hidden] normed attention input of the layer before (in layer 0: its own), all
        that a selector may use which has to choose one layer ahead
    """

    layer: int
    queries: Tensor
    keys: Tensor
    positions: Tensor
    sparsity: Sparsity
    scale: float | None = None
    lookahead_hidden: Tensor | None = None

    @cached_property
    def compressed(self) -> Tensor:
        """Compressed keys, [B, H, N_c, d]."""
        return blocks.compress_keys(self.keys, self.sparsity)

    @property
    def n_blocks(self) -> int:
        return blocks.count_blocks(self.keys.shape[2], self.sparsity)

    def at(self, part: slice) -> LayerView:
        """The same layer, for some of its queries only."""
        view = replace(
            self,
            queries=self.queries[:, :, part],
            positions=self.positions[:, part],
            lookahead_hidden=None if self.lookahead_hidden is None else self.lookahead_hidden[:, part],
        )
        view.__dict__["compressed"] = self.compressed  # made once, shared by all parts
        return view


class Selector(ABC):
    """Scores blocks; the shared rule in ``blocks.select_blocks`` forces and takes the best."""

    name: str = ""

    @abstractmethod
    def block_scores(self, view: LayerView) -> Tensor:
        """Return [B, H, T_q, N] float32, higher is better, -inf where a block has no score."""

    def select(self, view: LayerView) -> Tensor:
        """Return the chosen blocks, [B, H, T_q, k] as ``blocks.select_blocks``, streamed over queries."""
        widest = view.queries.shape[0] * view.queries.shape[1] * max(view.compressed.shape[2], view.n_blocks)
        parts = query_slices(view.queries.shape[2], widest)
        return torch.cat([self._choose(view.at(part)) for part in parts], dim=2)

    def _choose(self, view: LayerView) -> Tensor:
        return blocks.select_blocks(self.block_scores(view), view.positions, view.sparsity)
