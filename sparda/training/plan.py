"""What defines a run: written beside the weights, and compared before a run is resumed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparda.distill import Recipe
from sparda.spec import Sparsity


@dataclass(frozen=True)
class Plan:
    """A round observes ``sequences`` sequences, and then takes steps over their sampled queries.

    sparsity  : block rule; its k is the smaller budget that recall is reported at
    length    : T, tokens of a sequence
    rounds    : observations in all
    sequences : sequences of a round, of all processes together
    positions : sampled queries of a sequence, P; 0 looks at all
    step_positions : of those, how many of every sequence one optimiser step sees
    passes    : how often a round's queries are used
    lr, warmup (steps), weight_decay, clip (gradient norm, 0: none): AdamW (0.9, 0.95), cosine to 2 %
    init      : "query" or "random"; noise: random share added to "query", so that seeds differ
    damping   : of the inputs' whitening, a share of their mean variance; 0 leaves them as they are
    """

    sparsity: Sparsity = field(default_factory=lambda: Sparsity(16, local_blocks=4))
    recipe: Recipe = field(default_factory=Recipe)
    length: int = 8192
    rounds: int = 100
    sequences: int = 16
    positions: int = 512
    step_positions: int = 64
    passes: int = 1
    lr: float = 1e-3
    warmup: int = 20
    weight_decay: float = 0.0
    clip: float = 0.0
    init: str = "query"
    noise: float = 0.01
    damping: float = 0.01
    heads: int = 1

    def __post_init__(self):
        if self.least >= self.length - self.tail:
            raise ValueError(
                f"{self.length} tokens hold no query with more than {self.sparsity.budget_blocks} blocks "
                f"before it; raise --length over {self.least + self.tail}"
            )
        small = [f.name for f in fields(self) if f.type == "int" and getattr(self, f.name) < 1]
        if wrong := set(small) - {"positions", "warmup"}:
            raise ValueError(f"{', '.join(sorted(wrong))} must be at least 1")

    @property
    def least(self) -> int:
        """First position that is sampled: from here on there is something to choose."""
        return self.sparsity.budget_blocks * self.sparsity.block_size

    @property
    def tail(self) -> int:
        """Last positions of a sequence, always sampled: there a question is asked."""
        return self.sparsity.block_size // 2

    @property
    def steps_per_round(self) -> int:
        return self.passes * -(-len(self.sample(0)) // self.step_positions)

    def sample(self, round_: int) -> Tensor:
        """Positions of a round, ascending, [P] int64; the same in every process and after a restart."""
        every = np.arange(self.least, self.length)
        if not 0 < self.positions < len(every):
            return torch.from_numpy(every)
        tail = min(self.tail, self.positions // 4)
        rng = np.random.default_rng((1, round_))
        drawn = rng.choice(every[: len(every) - tail], self.positions - tail, replace=False)
        return torch.from_numpy(np.sort(np.concatenate([drawn, every[len(every) - tail :]])))

    def draw(self, round_: int, n: int) -> np.ndarray:
        """Which of ``n`` sequences a round observes: every one once before any comes again."""
        first = round_ * self.sequences
        epochs = range(first // n, (first + self.sequences - 1) // n + 1)
        order = np.concatenate([np.random.default_rng((2, e)).permutation(n) for e in epochs])
        return order[first - epochs[0] * n :][: self.sequences]

    def chunks(self, round_: int, seed: int) -> list[Tensor]:
        """For each step of a round, which of its sampled positions it sees (indices, ascending)."""
        n = len(self.sample(round_))
        parts = []
        for p in range(self.passes):
            order = torch.from_numpy(np.random.default_rng((3, seed, round_, p)).permutation(n))
            parts += [part.sort().values for part in order.split(self.step_positions)]
        return parts

    def rate(self, step: int) -> float:
        """Learning rate of a step: warm-up, then half a cosine."""
        total = self.rounds * self.steps_per_round
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        return self.lr * rise * (0.02 + 0.49 * (1 + math.cos(math.pi * min(step, total) / total)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the run card; what ``from_dict`` reads."""
        return asdict(self)
