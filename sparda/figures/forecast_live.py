"""What chapter 03 computes while you wait: a Forecast of few layers trained, and choices compared on a text.

Nothing here trains or measures by itself: observing is ``sparda.training.backbone``, steps are
``sparda.training.loop``, recall is ``sparda.training.validate`` and ``sparda.metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparda import blocks, metrics
from sparda.distill import Recipe
from sparda.evaluation import methods
from sparda.forecast import Forecast
from sparda.spec import Sparsity
from sparda.training import validate
from sparda.training.backbone import Backbone, Seen
from sparda.training.loop import Learner
from sparda.training.plan import Plan
from sparda.training.student import Student

COLUMNS = ["series", "layer", "head", "mass_recall", "agreement"]


def rule(n_tokens: int, block_size: int, share: float = 0.25) -> Sparsity:
    """The rule of all evaluations (``sparda.evaluation.methods``), in blocks of another size.

    >>> rule(512, 16).budget_blocks, rule(512, 16).local_blocks
    (8, 2)
    """
    return replace(methods.rule(n_tokens // block_size * 64, share), block_size=block_size)


def sequences(tokenizer: Any, text: str, n_tokens: int, starts: Sequence[float]) -> Tensor:
    """Parts of a text that begin at a share of it: tokens [len(starts), n_tokens]; ValueError: too short."""
    parts = []
    for start in starts:
        first = int(start * len(text))
        piece = tokenizer(text[first : first + 12 * n_tokens], add_special_tokens=False, verbose=False)
        parts.append(piece["input_ids"][:n_tokens])
    if min(map(len, parts)) < n_tokens:
        raise ValueError(f"the text ends before {n_tokens} tokens; begin earlier, or ask for fewer")
    return torch.tensor(parts)


def observe(
    model: Any, tokens: Tensor, positions: Tensor, sparsity: Sparsity, layers: Sequence[int] | None = None
) -> Seen:
    """What training and every selection need of tokens [B, T]: of all layers, or of some of them.

    Nothing after the last of ``layers`` is computed. The target is the exact mass of every block.
    """
    backbone = Backbone(model, sparsity, Recipe(), keep_queries=True)
    with _first_layers(model, 1 + max(layers) if layers else len(backbone.layers)):
        parts = [backbone.observe(one[None].to(model.device), positions) for one in tokens]
    seen = Seen.join(parts)
    return at_layers(seen, layers) if layers else seen


@contextmanager
def _first_layers(model: Any, n: int) -> Iterator[None]:
    before = model.config.num_hidden_layers
    model.config.num_hidden_layers = n  # a decoder runs as many of its layers as this says
    try:
        yield
    finally:
        model.config.num_hidden_layers = before


def at_layers(seen: Seen, layers: Sequence[int]) -> Seen:
    """Some rows of ``Seen``."""
    names = ("inputs", "compressed", "target", "queries")
    rows = {name: getattr(seen, name)[list(layers)] for name in names if getattr(seen, name) is not None}
    return replace(seen, **rows)


def student(model: Any, plan: Plan, layers: Sequence[int] | None = None, seed: int = 0) -> Student:
    """An untrained Forecast of some layers, begun as the plan says; noise 0 gives the proxy."""
    whole = Student.of(model, plan.init, plan.heads, seed, plan.noise)
    rows = list(layers) if layers else slice(None)
    return Student(whole.weight[rows], whole.n_kv_heads, whole.head_dim)


def student_of(weights: Forecast, like: Student, layers: Sequence[int] | None = None) -> Student:
    """Trained weights as a student, so that it can be scored beside the others."""
    rows = range(len(weights.future) + 1) if layers is None else layers
    stacked = torch.stack([weights.weight(layer) for layer in rows]).to(like.weight.device)
    return Student(stacked, like.n_kv_heads, like.head_dim)


def train(
    ours: Student, seen: Seen, plan: Plan, held_out: Seen, *, layers: Sequence[int], every: int = 4
) -> tuple[list[tuple[int, float]], Any]:
    """Take the steps of the plan's first round with the trainer of ``sparda train``.

    ours is changed; seen are its texts, held_out others, both at ``layers``
    returns (step, loss) of every step, and a table step, layer, mass_recall of the Forecast on held_out
    """
    import pandas as pd
    from accelerate import Accelerator

    learner, rows = Learner(0, ours, plan), []

    def watch() -> None:
        if learner.steps % every == 0:
            recalls = recall_of(held_out, ours, plan.sparsity).mean(1).tolist()
            rows.extend((learner.steps, layer, value) for layer, value in zip(layers, recalls, strict=True))

    watch()
    losses = learner.learn(seen, 0, Accelerator(), watch).mean(1).tolist()
    table = pd.DataFrame(rows, columns=["step", "layer", "mass_recall"])
    return list(enumerate(losses)), table


@torch.no_grad()
def recall_of(seen: Seen, chooser: Student | Callable, sparsity: Sparsity) -> Tensor:
    """Mass recall of a choice, mean over sequences and queries: [L, H]."""
    ids = choose(seen, chooser, sparsity)
    recalls = metrics.mass_recall(seen.target.flatten(0, 1), ids)
    return recalls.unflatten(0, (len(seen.inputs), -1)).mean((1, 3))


@torch.no_grad()
def choose(seen: Seen, chooser: Student | Callable, sparsity: Sparsity) -> Tensor:
    """Block ids [L * B, H, P, k] of a student, or of a rule ``by_...`` of ``sparda.training.validate``."""
    if isinstance(chooser, Student):
        scores = validate.by_student(seen, chooser, sparsity)
    else:
        scores = chooser(seen, sparsity)
    at = seen.positions.to(scores.device).expand(len(scores), -1)
    return blocks.select_blocks(scores, at, sparsity)


@torch.no_grad()
def compare(
    seen: Seen, choosers: Mapping[str, Student | Callable], sparsity: Sparsity,
    layers: Sequence[int] | None = None,
):  # fmt: skip
    """Mass recall and agreement with the query's choice: columns series, layer, head, mass_recall, agreement.

    Every row is a mean over sequences and queries; ``layers`` names the rows of ``seen``.
    """
    import pandas as pd

    rows, mass = [], seen.target.flatten(0, 1)
    at = seen.positions.to(mass.device).expand(len(mass), -1)
    theirs = choose(seen, validate.by_query, sparsity)
    numbers = list(layers) if layers else list(range(len(seen.inputs)))
    for name, chooser in choosers.items():
        ids = choose(seen, chooser, sparsity)
        same = metrics.agreement(ids, theirs, at, mass.shape[-1], sparsity)
        both = [metrics.mass_recall(mass, ids), same]
        recalls, same = (x.unflatten(0, (len(numbers), -1)).transpose(1, 2).flatten(2) for x in both)
        for i, layer in enumerate(numbers):
            for head in range(recalls.shape[1]):
                pair = (recalls[i, head].mean().item(), same[i, head].nanmean().item())
                rows.append((name, layer, head, *pair))
    return pd.DataFrame(rows, columns=COLUMNS)
