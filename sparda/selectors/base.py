"""What a selector sees, and what it must return. One file per answer to "who chooses the blocks?"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from sparda import blocks
from sparda.attention import query_slices
from sparda.forecast import Shape
from sparda.kernels import compress_keys, select_topk
from sparda.spec import Sparsity

GPU_SCORES = 2**29  # block scores that the heads of one slice of queries would have, each for itself


@dataclass(frozen=True)
class LayerView:
    """One attention layer, as a selector sees it.

    queries    : [B, H_q, T_q, d] post-RoPE
    keys       : [B, H, T, d] post-RoPE, index = position; None where they are offloaded
    positions  : [B, T_q] int64
    ahead      : what ``Selector.look_ahead`` made of the layer before, rotated, [B, n, T_q, d]
    stored     : what scores read of the past, where it is kept already: compressed keys [B, H, N_c, d], or
                 the selector's own index [B, H, T, r]; needed where keys is None
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
        return compress_keys(self.all_keys.contiguous(), self.sparsity)

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
            queries=self.queries[:, :, part].contiguous(),  # as kernels want them
            positions=self.positions[:, part].contiguous(),
            ahead=None if self.ahead is None else self.ahead[:, :, part].contiguous(),
        )
        view.__dict__["compressed"] = self.compressed  # made once, shared by all parts
        return view


class Selector(ABC):
    """Scores blocks; the shared rule in ``blocks.select_blocks`` forces and takes the best."""

    name: str = ""
    needs_keys: ClassVar[bool] = False  # reads every key, so that nothing can be offloaded
    looks_ahead: ClassVar[bool] = False  # knows layer l+1's choice in layer l, so that a copy can overlap
    own_index: ClassVar[bool] = False  # scores against an index of its own instead of the compressed keys
    waits: ClassVar[frozenset[int]] = frozenset()  # layers that choose on demand all the same

    @property
    def index_dim(self) -> int:
        """For ``own_index``: r, channels of a row of the index."""
        return 0

    @abstractmethod
    def block_scores(self, view: LayerView) -> Tensor:
        """Return [B, H, T_q, N] float32, higher is better, -inf where a block has no score."""

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Selector:
        """The same selector with its weights there; itself, where it has none."""
        return self

    def check(self, shape: Shape) -> None:  # noqa: B027
        """ValueError, with a sentence, if its weights are another model's; it may have none."""

    def made_for(self, fingerprint: str) -> bool | None:
        """Whether its weights were made for the model of this fingerprint; None: it cannot say."""
        return None

    def ahead_weights(self, layer: int) -> Tensor:
        """Rows [n * d, hidden] that foresee ``layer``'s choice from the layer before (layer 0: from itself).

        They apply to the normed attention input; the result is rotated like a query.
        """
        raise NotImplementedError(f"selector {self.name!r} does not look ahead")

    def look_ahead(self, layer: int, hidden: Tensor) -> Tensor:
        """Apply ``ahead_weights``, [B, T_q, n * d]; once rotated it is handed back as ``view.ahead``.

        layer  : the layer that will be selected for
        hidden : [B, T_q, hidden] normed attention input of the layer before (for layer 0: its own)
        """
        return torch.nn.functional.linear(hidden, self.ahead_weights(layer).to(hidden))

    def index_keys(self, layer: int, keys: Tensor) -> Tensor:
        """For ``own_index``: post-RoPE keys [B, H, t, d] -> rows of the index [B, H, t, r]."""
        raise NotImplementedError(f"selector {self.name!r} scores against the compressed keys")

    def select(self, view: LayerView) -> Tensor:
        """Choose [B, H, T_q, k] int32 as ``blocks.select_blocks`` says, streamed over queries."""
        parts = self._slices(view)
        return torch.cat([self._choose(view.at(part)) for part in parts], dim=2)

    def _choose(self, view: LayerView) -> Tensor:
        return select_topk(self.block_scores(view).contiguous(), view.positions.contiguous(), view.sparsity)

    def _slices(self, view: LayerView) -> Iterable[slice]:
        """Queries that are scored at once: on a GPU the kernels keep only block scores, and want many."""
        n_queries, pairs = view.queries.shape[2], view.queries.shape[0] * view.queries.shape[1]
        if view.queries.is_cuda and not self.needs_keys:
            step = max(1, GPU_SCORES // max(1, pairs * view.n_blocks))
            return [slice(i, min(i + step, n_queries)) for i in range(0, n_queries, step)]
        past = view.compressed if view.stored is None else view.stored
        return query_slices(n_queries, pairs * max(past.shape[2], view.n_blocks))
