"""Another selector's work with a given temporal hit rate: for benchmarks, whose weights are random."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparda.bounds import misses_at
from sparda.selectors.base import LayerView
from sparda.selectors.wrapped import Wrapped
from sparda.spec import Sparsity


@dataclass(frozen=True)
class Override(Wrapped):
    """Does all of ``inner``'s scoring and overwrites the scores of decode steps.

    Layer 0, whose blocks stay on the GPU, is left alone, and so is the choice for a prompt.
    """

    def block_scores(self, view: LayerView) -> Tensor:
        scores = self.inner.block_scores(view)
        if view.layer == 0 or scores.shape[2] != 1:
            return scores
        flat = scores[:, :, 0].contiguous()
        self.overwrite(view, flat)
        return flat[:, :, None]

    @abstractmethod
    def overwrite(self, view: LayerView, scores: Tensor) -> None:
        """Replace the scores [B, H, N] of one step, in place; from the second step on it is captured."""


@dataclass(frozen=True)
class Replay(Override):
    """A random choice with exactly the misses of a hit rate.

    Of a random ring of the blocks that may be learned, one ring for each (layer, sequence, KV head), a window
    is wanted that moves on by as many blocks a token as must be missed: with a cache of exactly k slots every
    step after the first misses that many a head. A block missed now comes round again only after the ring.

    hit_rate : share of the k chosen blocks, forced ones counted, that the step before chose too
    past     : tokens that every sequence holds at least while it replays: they decide what may be learned
    """

    hit_rate: float
    past: int
    seed: int = 0
    _ranks: dict[tuple, Tensor] = field(default_factory=dict, repr=False, compare=False)
    name = "replay"

    def overwrite(self, view: LayerView, scores: Tensor) -> None:
        from sparda.kernels import replay_scores

        misses, learned, pool = self.ring(view.sparsity)
        ranks = self._rank(view.layer, scores, view.sparsity)
        positions = view.positions[:, 0].contiguous()
        replay_scores(scores, ranks, positions, misses=misses, learned=learned, pool=pool)

    def ring(self, sparsity: Sparsity) -> tuple[int, int, int]:
        """Misses a head and step, blocks of the window, of the ring; ValueError where they do not fit."""
        misses = misses_at(hit_rate=self.hit_rate, budget_blocks=sparsity.budget_blocks)
        learned = sparsity.budget_blocks - sparsity.forced_blocks
        pool = self.past // sparsity.block_size - sparsity.local_blocks - sparsity.init_blocks
        if misses > learned:
            raise ValueError(
                f"a hit rate of {self.hit_rate} means {misses} misses, but only {learned} of the "
                f"{sparsity.budget_blocks} blocks are not forced; take a higher hit rate or budget"
            )
        if misses + learned > pool:
            raise ValueError(
                f"{self.past} tokens leave {pool} blocks to learn from, but {learned} wanted and {misses} "
                "new ones a step need more; take a longer context, a higher hit rate or a lower budget"
            )
        return misses, learned, pool

    def _rank(self, layer: int, scores: Tensor, sparsity: Sparsity) -> Tensor:
        """Places in the ring, [B, H, N] int32, -1 outside; made at the first step, which is not captured."""
        key = (layer, tuple(scores.shape), scores.device)
        if key not in self._ranks:
            batch, heads, n_blocks = scores.shape
            pool, first = self.ring(sparsity)[2], sparsity.init_blocks
            generator = torch.Generator(scores.device).manual_seed(self.seed + layer)
            order = torch.rand(batch, heads, pool, generator=generator, device=scores.device).argsort(-1)
            ranks = torch.full((batch, heads, n_blocks), -1, dtype=torch.int32, device=scores.device)
            ranks[:, :, first : first + pool] = order.int()
            self._ranks[key] = ranks
        return self._ranks[key]
