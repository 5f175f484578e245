"""What a checker compares with is no answer, nor is a function of the library that is the whole task."""

from __future__ import annotations

import pytest
import torch

from sparda import blocks, costs, distill, kernels
from sparda.checks import ch00, ch01, ch02, ch03, ch04, ch05, ch06, ch07
from sparda.evaluation.statistics import sign_test
from sparda.layer_work import decode_work
from sparda.metrics import hit_rate, mass_recall
from sparda.simulate import decode_step
from sparda.spec import Sparsity, sparsity

RULE = sparsity("minicpm4.1-8b")


def hit(before, now):
    return hit_rate(torch.tensor([[before]]), torch.tensor([[now]])).item()


def miss_seconds(*, shape, batch, misses, gb_per_s):
    return costs.miss_bytes(shape=shape, sparsity=RULE, misses=misses, batch=batch) / (gb_per_s * 1e9)


def percent(*, shape):
    return 100 * costs.forecast_parameters(shape=shape) / shape.n_parameters


def visible(position):
    return int(blocks.visible_windows(torch.tensor([[position]]), 200, RULE).sum())


def select(scores, own, budget):
    ranked = torch.tensor(scores).float()[None, None, None]
    ids = blocks.select_blocks(ranked, torch.tensor([[64 * own]]), Sparsity(budget, local_blocks=1)).flatten()
    return ids[ids >= 0].tolist()


def step_bytes(*, shape, sparsity, n_tokens):
    of = {"shape": shape, "sparsity": sparsity, "n_tokens": n_tokens, "batch": 1, "selector": "forecast"}
    return sum(part.kv_bytes for part in decode_work(**of).values())


def signs(ours, theirs):
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    return gaps.count(1), gaps.count(-1), sign_test(gaps)


BORROWED = [
    (ch00.ch00_ex3, hit, "hit_rate"),
    (ch01.ch01_ex3, miss_seconds, "miss_bytes"),
    (ch01.ch01_ex5, percent, "forecast_parameters"),
    (ch02.ch02_ex1, visible, "visible_windows"),
    (ch02.ch02_ex3, lambda scores, n: blocks.pool_to_blocks(scores, n, ch02.RULE), "pool_to_blocks"),
    (ch02.ch02_ex4, select, "select_blocks"),
    (ch02.ch02_ex5, lambda mass, ids: mass_recall(mass[None, None], ids[None, None]), "mass_recall"),
    (ch03.ch03_ex1, lambda mass, s, free: mass[free].sum() * distill.divergence(mass, s, free), "divergence"),
    (ch03.ch03_ex2, lambda **sizes: costs.forecast_parameters(shape=ch06.OF["shape"]), "forecast_parameters"),
    (ch04.ch04_ex1, kernels.gather_misses, "gather_misses"),
    (ch04.ch04_ex2, lambda tasks: decode_step(ch04.COSTS, ch04.LAYERS), "decode_step"),
    (ch04.ch04_ex3, lambda link, n, us: link.best_ctas(n_bytes=n, compute_us=us), "best_ctas"),
    (ch05.ch05_ex1, step_bytes, "decode_work"),
    (ch05.ch05_ex2, ch05.crossing, "crossing"),
    (ch06.ch06_ex3, ch06.misses_of, "misses_of"),
    (ch07.ch07_ex1, ch07.samples_needed, "samples_needed"),
    (ch07.ch07_ex2, signs, "sign_test"),
    (ch07.ch07_ex3, ch07.index_bytes, "index_bytes"),
]


@pytest.mark.parametrize(
    ("check", "answer", "name"), BORROWED, ids=lambda value: getattr(value, "__name__", "")
)
def test_an_answer_that_calls_the_answer_is_told_to_write_it(check, answer, name):
    verdict = check(answer)
    assert verdict.status == "not yet"
    assert verdict.hint == f"it calls {name}, which is the answer; write it yourself"
