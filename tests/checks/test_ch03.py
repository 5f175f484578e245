"""Each checker of chapter 03 against its stub, its solution and wrong answers."""

from __future__ import annotations

import pytest
import torch

from sparda import distill
from sparda.checks.ch03 import ch03_ex1, ch03_ex2, ch03_ex3
from sparda.distill import Recipe
from sparda.spec import Sparsity


def stub(*_args, **_keywords):
    return ...


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


def with_layer_0(*recalls):
    return closed(*([0.0, *values] for values in recalls))


def mean_of_ratios(*recalls):
    ratios = [(a - b) / (c - b) for a, b, c in list(zip(*recalls, strict=True))[1:]]
    return sum(ratios) / len(ratios)


CASES = [
    (ch03_ex1, mass_loss, [unweighted, with_forced, not_normalised, reversed_kl, softmax_of_all]),
    (ch03_ex2, added, [with_the_last, without_the_first, for_query_heads, one_head, lambda **_: 1]),
    (ch03_ex3, closed, [with_layer_0, mean_of_ratios, lambda *a: 1 - closed(*a), lambda *_: 0.5]),
]


@pytest.mark.parametrize(("check", "solution", "wrong"), CASES)
def test_a_stub_is_to_do_the_solution_is_ok_and_wrong_answers_get_a_hint(
    check, solution, wrong, answers_back
):
    answers_back(check, stub, solution, wrong)


def test_the_exercises_loss_is_the_librarys():
    rule = Sparsity(4, block_size=16, local_blocks=0)
    position, g = torch.tensor([5 * 16 + 3]), torch.Generator().manual_seed(0)
    mass = torch.rand(6, generator=g).softmax(0)
    windows = torch.randn(4, generator=g)  # one for each block but the last two: they are not complete
    scores = torch.tensor([max(windows[max(0, b - 1) : b + 1].tolist(), default=-9.0) for b in range(6)])
    free = torch.tensor([False, True, True, True, True, False])
    lost = distill.loss(windows[None, None, None], mass[None, None, None], position, rule, Recipe())
    assert float(mass_loss(mass, scores, free)) == pytest.approx(float(lost), rel=1e-4)
