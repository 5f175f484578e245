"""The checkers of chapter 01: a stub, the solution, and three wrong answers each."""

import pytest

from sparda import costs
from sparda.bounds import decode_bound
from sparda.checks import ch01
from sparda.spec import model, sparsity

OF = {"shape": model("minicpm4.1-8b"), "sparsity": sparsity("minicpm4.1-8b"), "n_tokens": 131_072}


def hidden(*, batch):
    fits = (m for m in range(97) if decode_bound(batch=batch, misses=m, **OF).limit == "memory")
    return max(fits)


def moved(*, shape, batch, misses, gb_per_s):
    return (shape.n_layers - 1) * batch * shape.n_kv_heads * misses * 32768 / (gb_per_s * 1e9)


def share(*, shape):
    return 100 * costs.forecast_parameters(shape=shape) / shape.n_parameters


SOLUTIONS = {
    "ch01_ex1": lambda *, n_layers, n_kv_heads, head_dim, dtype_bytes: (
        2 * n_layers * n_kv_heads * head_dim * dtype_bytes
    ),
    "ch01_ex2": lambda *, memory_bytes, weight_bytes, bytes_per_sequence: max(
        0, (memory_bytes - weight_bytes) // bytes_per_sequence
    ),
    "ch01_ex3": moved,
    "ch01_ex4": hidden,
    "ch01_ex5": share,
}

WRONG = [
    (
        "ch01_ex1",
        lambda **s: s["n_layers"] * s["n_kv_heads"] * s["head_dim"] * s["dtype_bytes"],
        "a key and a value",
    ),
    ("ch01_ex1", lambda **s: 2 * s["n_layers"] * s["head_dim"] * s["dtype_bytes"], "expected 2310"),
    ("ch01_ex1", lambda **s: "many", "TypeError"),
    ("ch01_ex2", lambda **s: (s["memory_bytes"] - s["weight_bytes"]) / s["bytes_per_sequence"], "whole ones"),
    ("ch01_ex2", lambda **s: (s["memory_bytes"] - s["weight_bytes"]) // s["bytes_per_sequence"], "answer 0"),
    ("ch01_ex2", lambda **s: s["memory_bytes"] // s["bytes_per_sequence"], "expected 2"),
    ("ch01_ex3", lambda **s: 32 / 31 * moved(**s), "layer 0 misses nothing"),
    ("ch01_ex3", lambda **s: moved(**s) / s["shape"].n_kv_heads, "KV heads"),
    ("ch01_ex3", lambda **s: moved(**s) * 1e9 / 2**30, "not 2**30"),
    ("ch01_ex4", lambda *, batch: 96, "the link is the limit"),
    ("ch01_ex4", lambda *, batch: 0, "hidden too"),
    ("ch01_ex4", lambda *, batch: 0.5, "whole blocks"),
    ("ch01_ex5", lambda *, shape: share(shape=shape) / 100, "in percent"),
    ("ch01_ex5", lambda *, shape: share(shape=shape) * shape.group, "one head per KV head"),
    ("ch01_ex5", lambda *, shape: share(shape=shape) * 31 / 32, "count it too"),
]


@pytest.mark.parametrize("name", sorted(SOLUTIONS))
def test_a_stub_is_still_to_do(name):
    assert getattr(ch01, name)(lambda **kwargs: ...).status == "todo"
    assert getattr(ch01, name)(...).status == "todo"


@pytest.mark.parametrize("name", sorted(SOLUTIONS))
def test_the_solution_is_accepted(name):
    assert repr(getattr(ch01, name)(SOLUTIONS[name])) == "ok"


@pytest.mark.parametrize(("name", "student", "says"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(name, student, says):
    verdict = getattr(ch01, name)(student)
    assert verdict.status == "not yet"
    assert says in verdict.hint
