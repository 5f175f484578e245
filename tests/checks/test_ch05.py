"""Wrong answers of chapter 05 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

import pytest

from sparda import costs
from sparda.blocks import count_blocks, count_windows
from sparda.checks.ch05 import crossing
from sparda.spec import Sparsity, model


def step_bytes(*, shape, sparsity, n_tokens):
    key = shape.n_kv_heads * shape.head_dim * 2
    blocks = min(sparsity.budget_blocks, count_blocks(n_tokens, sparsity))
    return key * (count_windows(n_tokens, sparsity) + 2 * blocks * sparsity.block_size)


def without_compressed_keys(*, shape, sparsity, n_tokens):
    blocks = min(sparsity.budget_blocks, count_blocks(n_tokens, sparsity))
    return shape.n_kv_heads * blocks * costs.block_bytes(head_dim=shape.head_dim)


def never_short(*, shape, sparsity, n_tokens):
    key = shape.n_kv_heads * shape.head_dim * 2
    return key * (count_windows(n_tokens, sparsity) + 2 * sparsity.budget_blocks * sparsity.block_size)


def without_values(*, shape, sparsity, n_tokens):
    of = {"shape": shape, "sparsity": sparsity, "n_tokens": n_tokens}
    return step_bytes(**of) - without_compressed_keys(**of) / 2


def all_layers(*, shape, sparsity, n_tokens):
    return shape.n_layers * step_bytes(shape=shape, sparsity=sparsity, n_tokens=n_tokens)


def cross(*, budget_blocks, block_size, stride, group, selector):
    return 2 * budget_blocks * block_size * stride * (group if selector == "forecast" else 1)


def cross_by_keys(**sizes):
    return cross(**sizes) / 2


def cross_in_windows(**sizes):
    return cross(**sizes) / sizes["stride"]


def cross_alike(**sizes):
    return cross(**(sizes | {"selector": "query"}))


def amdahl(times, part, factor):
    after = {name: t / factor if name == part else t for name, t in times.items()}
    return sum(times.values()) / sum(after.values())


def amdahl_in_place(times, part, factor):
    before = sum(times.values())
    times[part] /= factor
    return before / sum(times.values())


WRONG = [
    ("ch05_ex1", without_compressed_keys, "every compressed key was read too"),
    ("ch05_ex1", never_short, "fewer than 96 blocks to read"),
    ("ch05_ex1", without_values, "attention reads keys and values"),
    ("ch05_ex1", all_layers, "this is all layers"),
    ("ch05_ex1", lambda **of: 1.1 * step_bytes(**of), "too large"),
    ("ch05_ex2", cross_by_keys, "a compressed key 2 d"),
    ("ch05_ex2", cross_in_windows, "these are windows"),
    ("ch05_ex2", cross_alike, "the Forecast scores with one head"),
    ("ch05_ex2", lambda **sizes: cross(**(sizes | {"selector": "forecast"})), "every query head scores"),
    ("ch05_ex2", lambda **sizes: 1.1 * cross(**sizes), "too large"),
    ("ch05_ex2", lambda **_: 1, "1 tokens, too small"),
    ("ch05_ex3", lambda *a: a[2], "the part's own gain"),
    ("ch05_ex3", lambda *a: 1 / amdahl(*a), "new over old"),
    ("ch05_ex3", amdahl_in_place, "work on a copy"),
    ("ch05_ex3", lambda *_: 2.0, "gave 2, too large"),
    ("ch05_ex3", lambda *a: 1.1 * amdahl(*a), "too large"),
]


@pytest.mark.parametrize("selector", ["query", "forecast"])
def test_the_crossing_is_where_the_closed_forms_meet(selector):
    shape, rule = model("minicpm4.1-8b"), Sparsity(96)
    at = crossing(budget_blocks=96, block_size=64, stride=16, group=16, selector=selector)
    dots = costs.selection_dots(shape=shape, sparsity=rule, n_tokens=int(at), selector=selector)
    scoring = 2 * shape.head_dim * dots
    attending = costs.attention_flops(shape=shape, n_attended=96 * 64)
    assert scoring == pytest.approx(attending, rel=1e-3)
