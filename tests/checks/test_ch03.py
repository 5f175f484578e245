"""Wrong answers of chapter 03 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

import pytest
import torch

from sparda import distill
from sparda.distill import Recipe
from sparda.spec import Sparsity


def mass_loss(mass, scores, free):
    outside = mass[free].sum()
    target = mass[free] / outside
    return outside * (target * (target.log() - scores[free].log_softmax(0))).sum()


def unweighted(mass, scores, free):
    return mass_loss(mass, scores, free) / mass[free].sum()


def with_forced(mass, scores, _free):
    return mass_loss(mass, scores, torch.ones(len(mass), dtype=torch.bool))


def not_normalised(mass, scores, free):
    p, outside = scores[free].softmax(0), mass[free].sum()
    return outside * (mass[free] * (mass[free] / p).log()).sum()


def reversed_kl(mass, scores, free):
    p, outside = scores[free].softmax(0), mass[free].sum()
    return outside * (p * (p / (mass[free] / outside)).log()).sum()


def softmax_of_all(mass, scores, free):
    p, outside = scores.softmax(0)[free], mass[free].sum()
    return outside * (mass[free] / outside * (mass[free] / outside / p).log()).sum()


def added(*, n_layers, hidden, n_heads, n_kv_heads, head_dim):
    return n_layers * hidden * n_kv_heads * head_dim


def with_the_last(*, n_layers, **sizes):
    return added(n_layers=n_layers + 1, **sizes)


def without_the_first(*, n_layers, **sizes):
    return added(n_layers=n_layers - 1, **sizes)


def for_query_heads(**sizes):
    return added(**(sizes | {"n_kv_heads": sizes["n_heads"]}))


def one_head(**sizes):
    return added(**(sizes | {"n_kv_heads": 1}))


def closed(ours, query, oracle):
    a, b, c = (sum(values[1:]) / (len(values) - 1) for values in (ours, query, oracle))
    return (a - b) / (c - b)


def won(ours, query):
    return sum(a - b for a, b in list(zip(ours, query, strict=True))[1:]) / (len(ours) - 1)


def with_layer_0(*recalls):
    return closed(*([0.0, *values] for values in recalls))


def mean_of_ratios(*recalls):
    ratios = [(a - b) / (c - b) for a, b, c in list(zip(*recalls, strict=True))[1:]]
    return sum(ratios) / len(ratios)


WRONG = [
    ("ch03_ex1", unweighted, "weigh it with the mass outside"),
    ("ch03_ex1", with_forced, "leave them out of both sides"),
    ("ch03_ex1", not_normalised, "make the target a distribution"),
    ("ch03_ex1", reversed_kl, "the other way round"),
    ("ch03_ex1", softmax_of_all, "the softmax runs over the free blocks only"),
    ("ch03_ex1", lambda *_: 0.0, "too small"),
    ("ch03_ex2", with_the_last, "one projection too many"),
    ("ch03_ex2", without_the_first, "one is missing"),
    ("ch03_ex2", for_query_heads, "not for every query head"),
    ("ch03_ex2", one_head, "every KV head has a head of its own"),
    ("ch03_ex2", lambda **_: 1, "gave 1, too small"),
    ("ch03_ex3", with_layer_0, "leave it out"),
    ("ch03_ex3", mean_of_ratios, "take means first"),
    ("ch03_ex3", lambda *a: 1 - closed(*a), "left open"),
    ("ch03_ex3", lambda *a: won(*a[:2]), "divide it by what there was to win"),
    ("ch03_ex3", lambda *_: 99.0, "99, too large"),
]


def test_the_exercises_loss_is_the_librarys():
    rule = Sparsity(4, block_size=16, local_blocks=0)
    position, g = torch.tensor([5 * 16 + 3]), torch.Generator().manual_seed(0)
    mass = torch.rand(6, generator=g).softmax(0)
    windows = torch.randn(4, generator=g)  # one for each block but the last two: they are not complete
    scores = torch.tensor([max(windows[max(0, b - 1) : b + 1].tolist(), default=-9.0) for b in range(6)])
    free = torch.tensor([False, True, True, True, True, False])
    lost = distill.loss(windows[None, None, None], mass[None, None, None], position, rule, Recipe())
    assert float(mass_loss(mass, scores, free)) == pytest.approx(float(lost), rel=1e-4)
