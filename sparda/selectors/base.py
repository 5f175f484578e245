"""What a selector sees, and what it must return. One file per answer to "who chooses the blocks?"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from sparda import blocks
from sparda.attention import query_slices
from sparda.spec import Sparsity


@dataclass(frozen=True)
class LayerView:
    """One attention layer, as a selector sees it.

    queries    : [B, H_q, T_q, d] post-RoPE
    keys       : [B, H, T, d] post-RoPE, index = position; None where they are offloaded
    positions  : [B, T_q] int64
    ahead      : what ``Selector.look_ahead`` made of the layer before, [B, *, T_q, *]
    stored     : compressed keys that are kept already, [B, H, N_c, d]; needed where keys is None
    """

    layer: int
    queries: Tensor
    keys: Tensor | None
    positions: Tensor
    sparsity: Sparsity
    scale: float | None = None
    ahead: Tensor | None = None
    stored: Tensor | None = None
    stored_blocks: int = 0  # N, where keys is None

    @cached_property
    def compressed(self) -> Tensor:
        """Compressed keys, [B, H, N_c, d]."""
        if self.stored is not None:
            return self.stored
        return blocks.compress_keys(self.all_keys, self.sparsity)

    @property
    def all_keys(self) -> Tensor:
        """Every key, for a selector that needs them; ValueError where they are offloaded."""
        if self.keys is None:
            raise ValueError("this selector reads every key, but they are offloaded; use cache='full'")
        return self.keys

    @property
    def n_blocks(self) -> int:
        if self.keys is None:
            return self.stored_blocks
        return blocks.count_blocks(self.keys.shape[2], self.sparsity)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the block scores: B, H, T_q, N."""
        some = self.keys if self.keys is not None else self.compressed
        return some.shape[0], some.shape[1], self.queries.shape[2], self.n_blocks

    def at(self, part: slice) -> LayerView:
        """The same layer, for some of its queries only."""
        view = replace(
            self,
            queries=self.queries[:, :, part],
            positions=self.positions[:, part],
            ahead=None if self.ahead is None else self.ahead[:, :, part],
        )
        view.__dict__["compressed"] = self.compressed  # made once, shared by all parts
        return view


class Selector(ABC):
    """Scores blocks; the shared rule in ``blocks.select_blocks`` forces and takes the best."""

    name: str = ""
    needs_keys: ClassVar[bool] = False  # reads every key, so that nothing can be offloaded
    looks_ahead: ClassVar[bool] = False  # knows layer l+1's choice in layer l, so that a copy can overlap

    @abstractmethod
    def block_scores(self, view: LayerView) -> Tensor:
        """Return [B, H, T_q, N] float32, higher is better, -inf where a block has no score."""

    def look_ahead(self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """What a selector that looks ahead takes from the layer before, in one step of its own.

        layer  : the layer that will be selected for
        hidden : [B, T_q, hidden] normed attention input of the layer before (for layer 0: its own)
        cos, sin : [B, T_q, d/2] float32 rotary angles of those positions
        returns  [B, *, T_q, *], handed back as ``view.ahead``
        """
        raise NotImplementedError(f"selector {self.name!r} does not look ahead")

    def select(self, view: LayerView) -> Tensor:
        """Return the chosen blocks, [B, H, T_q, k] as ``blocks.select_blocks``, streamed over queries."""
        widest = view.queries.shape[0] * view.queries.shape[1] * max(view.compressed.shape[2], view.n_blocks)
        parts = query_slices(view.queries.shape[2], widest)
        return torch.cat([self._choose(view.at(part)) for part in parts], dim=2)

    def _choose(self, view: LayerView) -> Tensor:
        return blocks.select_blocks(self.block_scores(view), view.positions, view.sparsity)
