"""Each checker of chapter 05 against its stub, its solution and wrong answers."""

from __future__ import annotations

import pytest

from sparda import costs
from sparda.blocks import count_blocks, count_windows
from sparda.checks.ch05 import ch05_ex1, ch05_ex2, ch05_ex3, crossing
from sparda.spec import Sparsity, model


def stub(*_args, **_keywords):
    return ...


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


CASES = [
    (ch05_ex1, step_bytes, [without_compressed_keys, never_short, without_values, all_layers]),
    (ch05_ex2, cross, [cross_by_keys, cross_in_windows, cross_alike, lambda **_: 1]),
    (ch05_ex3, amdahl, [lambda *a: a[2], lambda *a: 1 / amdahl(*a), amdahl_in_place, lambda *_: 2.0]),
]


@pytest.mark.parametrize(("check", "solution", "wrong"), CASES)
def test_a_stub_is_to_do_the_solution_is_ok_and_wrong_answers_get_a_hint(
    check, solution, wrong, answers_back
):
    answers_back(check, stub, solution, wrong)


@pytest.mark.parametrize("selector", ["query", "forecast"])
def test_the_crossing_is_where_the_closed_forms_meet(selector):
    shape, rule = model("minicpm4.1-8b"), Sparsity(96)
    at = crossing(budget_blocks=96, block_size=64, stride=16, group=16, selector=selector)
    dots = costs.selection_dots(shape=shape, sparsity=rule, n_tokens=int(at), selector=selector)
    scoring = 2 * shape.head_dim * dots
    attending = costs.attention_flops(shape=shape, n_attended=96 * 64)
    assert scoring == pytest.approx(attending, rel=1e-3)
