"""How much attention mass a choice of blocks holds, layer by layer, on text that no one trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparda import blocks, metrics
from sparda.distill import Recipe
from sparda.spec import Sparsity
from sparda.training.backbone import Backbone, Seen
from sparda.training.student import Student

BUDGETS = (Sparsity(16, local_blocks=4), Sparsity(32, local_blocks=8))  # 12.5 and 25 % of 8192 tokens


def recall(seen: Seen, scores: Tensor, sparsity: Sparsity) -> Tensor:
    """Mass recall of each layer, [L], of block scores [L * B, H, P, N]; ``seen`` has mass for a target."""
    mass = seen.target.flatten(0, 1)
    at = seen.positions.to(mass.device).expand(len(mass), -1)
    ids = blocks.select_blocks(scores, at, sparsity)
    return metrics.mass_recall(mass, ids).unflatten(0, (len(seen.inputs), -1)).mean((1, 2, 3))


def by_student(seen: Seen, student: Student, sparsity: Sparsity) -> Tensor:
    """Block scores of a Forecast."""
    return blocks.pool_to_blocks(student.scores(seen, sparsity), seen.target.shape[-1], sparsity)


def by_query(seen: Seen, sparsity: Sparsity) -> Tensor:
    """Block scores of the layer's own queries (Sparse, which the Forecast replaces)."""
    if seen.queries is None:
        raise ValueError("the query selection needs Backbone(keep_queries=True)")
    at = seen.positions.to(seen.inputs.device)
    scores = [
        blocks.query_scores(q, k, at.expand(len(q), -1), sparsity)
        for q, k in zip(seen.queries, seen.compressed, strict=True)
    ]
    return blocks.pool_to_blocks(torch.cat(scores), seen.target.shape[-1], sparsity)


def by_oracle(seen: Seen, sparsity: Sparsity) -> Tensor:
    """Block scores of one who knows the mass."""
    return seen.target.flatten(0, 1)


@dataclass
class Validation:
    """Held-out text, observed once: recall of every student, of query selection and of the oracle.

    tokens  : [B, T] of the held-out text
    budgets : block rules that recall is measured at
    source  : where the text is from
    """

    model: Any
    tokens: Tensor
    positions: Tensor
    budgets: Sequence[Sparsity] = BUDGETS
    batch: int = 4
    source: str = "held-out text"
    last: str = ""  # of the latest ``row``, short
    _seen: Seen | None = field(default=None, repr=False)
    _bounds: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def seen(self) -> Seen:
        """The model's view of the text, on the model's device."""
        if self._seen is None:
            backbone = Backbone(self.model, self.budgets[0], Recipe(), keep_queries=True)
            parts = [
                backbone.observe(t.to(self.model.device), self.positions)
                for t in self.tokens.split(self.batch)
            ]
            self._seen = Seen.join(parts)
        return self._seen

    def digest(self) -> str:
        """Hash of all that decides what is measured: tokens, positions, block rules."""
        rules = [(s.budget_blocks, s.block_size, s.init_blocks, s.local_blocks) for s in self.budgets]
        found = hashlib.sha256(f"{list(self.tokens.shape)} {rules}".encode())
        for part in (self.tokens, self.positions):
            found.update(part.cpu().long().numpy().astype("<i8").tobytes())
        return found.hexdigest()[:32]

    @torch.no_grad()
    def layers(self, scores: Callable[[Seen, Sparsity], Tensor], sparsity: Sparsity) -> Tensor:
        """Recall of each layer, [L], of any rule ``by_...``."""
        return recall(self.seen, scores(self.seen, sparsity), sparsity)

    def bounds(self) -> dict[str, Tensor]:
        """Recall of each layer: query selection, oracle, proxy (on compressed keys); as ``query_k16``.

        A model whose queries have a bias or a norm has no proxy.
        """
        if not self._bounds:
            rules: dict[str, Callable[[Seen, Sparsity], Tensor]] = {"query": by_query, "oracle": by_oracle}
            with suppress(TypeError):
                rules["proxy"] = _by(Student.of(self.model))
            for s in self.budgets:
                for name, scores in rules.items():
                    self._bounds[f"{name}_k{s.budget_blocks}"] = self.layers(scores, s)
        return self._bounds

    def row(self, student: Student) -> dict[str, str]:
        """Recall at each budget, mean over layers 1 and up, and the gap to the oracle closed."""
        found, short = {}, []
        for s in self.budgets:
            k = s.budget_blocks
            query, oracle = (self.bounds()[f"{name}_k{k}"][1:].mean() for name in ("query", "oracle"))
            ours = self.layers(_by(student), s)[1:].mean()
            found[f"recall_k{k}"] = f"{ours:.5f}"
            found[f"gap_closed_k{k}"] = f"{(ours - query) / (oracle - query):.4f}" if oracle > query else ""
            short.append(f"k{k} {ours:.4f}")
        self.last = " ".join(short)
        return found

    def by_layer(self, students: Sequence[Student]) -> dict[str, list[float]]:
        """``bounds``, and each student's recall of each layer as ``forecast_k16_0`` and such."""
        found = dict(self.bounds())
        for s in self.budgets:
            for n, student in enumerate(students):
                found[f"forecast_k{s.budget_blocks}_{n}"] = self.layers(_by(student), s)
        return {name: [round(v, 5) for v in values.tolist()] for name, values in found.items()}


def _by(student: Student) -> Callable[[Seen, Sparsity], Tensor]:
    return lambda seen, sparsity: by_student(seen, student, sparsity)
