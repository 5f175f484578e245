"""What defines a run: written beside the weights, and compared before a run is resumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparda.blocks import count_blocks
from sparda.distill import Recipe
from sparda.spec import Sparsity


def weights_file(seed: int, seeds: Sequence[int]) -> str:
    """Name of a seed's weights in a run's folder; the first seed's are the ones to use."""
    return "forecast.safetensors" if seed == seeds[0] else f"forecast-seed{seed}.safetensors"


@dataclass(frozen=True)
class Plan:
    """A round observes ``sequences`` sequences, and then takes steps over their sampled queries.

    sparsity  : block rule; its k is the smaller budget that recall is reported at
    length    : T, tokens of a sequence
    rounds    : observations in all
    sequences : sequences of a round, of all processes together
    positions : sampled queries of a sequence, P; 0 looks at all
    tail      : last queries of a sequence, always sampled: there questions are asked and answered; at most
                half of ``positions``
    step_sequences, step_positions : what of a round one optimiser step sees, of all processes together
    passes    : how often a round's queries are used
    lr, warmup (steps), weight_decay, clip (gradient norm, 0: none): AdamW (0.9, 0.95), cosine to 2 %
    init      : "query", "random" or the folder of a run that this one goes on from
    noise     : random share added to "query", so that seeds differ
    heads     : Forecast heads a KV head; only 1 is what inference reads
    """

    sparsity: Sparsity = field(default_factory=lambda: Sparsity(16, local_blocks=4))
    recipe: Recipe = field(default_factory=Recipe)
    length: int = 8192
    rounds: int = 16
    sequences: int = 320
    positions: int = 512
    tail: int = 32
    step_sequences: int = 32
    step_positions: int = 32
    passes: int = 4
    lr: float = 5e-3
    warmup: int = 20
    weight_decay: float = 0.0
    clip: float = 0.0
    init: str = "query"
    noise: float = 0.01
    heads: int = 1

    def __post_init__(self):
        if found := list(self._problems()):
            raise ValueError("\n".join(found))

    def _problems(self) -> Iterator[str]:
        """What cannot be or does not fit together: a sentence each, with the remedy."""
        options = {f.name: (f"--{f.name.replace('_', '-')}", getattr(self, f.name)) for f in fields(self)}
        ints = [f.name for f in fields(self) if f.type == "int"]
        least = {name: int(name not in ("positions", "tail", "warmup")) for name in ints}
        least |= dict.fromkeys(("weight_decay", "clip", "noise"), 0)
        for name, bound in least.items():
            option, value = options[name]
            if not bound <= value < math.inf:
                yield f"{option} must be at least {bound}, got {value}"
        if not 0 < self.lr < math.inf:
            yield f"--lr must be a number above 0, got {self.lr}"
        if self.step_sequences > 0 and self.sequences % self.step_sequences:
            yield (
                f"a round's {self.sequences} sequences are no multiple of a step's {self.step_sequences}; "
                "change --sequences or --step-sequences"
            )
        if self.least >= self.length - self.tail:
            yield (
                f"{self.length} tokens hold no query that has a block to choose, beside "
                f"{self.sparsity.forced_blocks} forced ones and a --tail of {self.tail}; raise --length over "
                f"{self.least + self.tail}"
            )
        elif (k := self.sparsity.budget_blocks) >= (every := count_blocks(self.length, self.sparsity)):
            yield (
                f"every block is kept at k = {k} of {every} blocks, so there is nothing to learn; raise "
                f"--length over {k * self.sparsity.block_size}, or lower --budget"
            )

    @property
    def init_folder(self) -> Path | None:
        """Folder of the run that this one goes on from, if any."""
        return self.folder_of(self.init)

    @staticmethod
    def folder_of(init: str) -> Path | None:
        """The folder that an ``init`` names, if it names one."""
        return None if init in ("query", "random") else Path(init).expanduser()

    @property
    def least(self) -> int:
        """First position that is sampled: from here on there is something to choose."""
        return self.sparsity.forced_blocks * self.sparsity.block_size

    @property
    def steps_per_round(self) -> int:
        groups = self.sequences // self.step_sequences
        return self.passes * groups * -(-len(self.sample(0)) // self.step_positions)

    def sample(self, round_: int) -> Tensor:
        """Positions of a round, ascending, [P] int64; the same in every process and after a restart."""
        every = np.arange(self.least, self.length)
        if not 0 < self.positions < len(every):
            return torch.from_numpy(every)
        tail = min(self.tail, self.positions // 2)
        rng = np.random.default_rng((1, round_))
        drawn = rng.choice(every[: len(every) - tail], self.positions - tail, replace=False)
        return torch.from_numpy(np.sort(np.concatenate([drawn, every[len(every) - tail :]])))

    def draw(self, round_: int, n: int) -> np.ndarray:
        """Which of ``n`` sequences a round observes: every one once before any comes again."""
        first = round_ * self.sequences
        epochs = range(first // n, (first + self.sequences - 1) // n + 1)
        order = np.concatenate([np.random.default_rng((2, e)).permutation(n) for e in epochs])
        return order[first - epochs[0] * n :][: self.sequences]

    def steps(self, round_: int, seed: int) -> Iterator[tuple[int, Tensor]]:
        """What each step of a round sees: a group of its sequences, and indices of sampled positions."""
        groups, n = self.sequences // self.step_sequences, len(self.sample(round_))
        for p in range(self.passes):
            rng = np.random.default_rng((3, seed, round_, p))
            parts = [torch.from_numpy(rng.permutation(n)).split(self.step_positions) for _ in range(groups)]
            every = [(group, part.sort().values) for group in range(groups) for part in parts[group]]
            yield from (every[i] for i in rng.permutation(len(every)))

    def rate(self, step: int) -> float:
        """Learning rate of a step: warm-up, then half a cosine."""
        total = self.rounds * self.steps_per_round
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        return self.lr * rise * (0.02 + 0.49 * (1 + math.cos(math.pi * min(step, total) / total)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the run card, and what a checkpoint compares."""
        return asdict(self)
