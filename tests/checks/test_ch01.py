"""The checkers of chapter 01: a stub, the published solution, and three wrong answers each."""

import runpy
from pathlib import Path

import pytest

from sparda.checks import ch01

SOLVED = runpy.run_path(str(Path(__file__).parents[2] / "notebooks" / "solutions" / "01_kv_math.py"))
SOLUTIONS = {
    "ch01_ex1": SOLVED["ex1_bytes_per_token"],
    "ch01_ex2": SOLVED["ex2_sequences_that_fit"],
    "ch01_ex3": SOLVED["ex3_miss_seconds"],
    "ch01_ex4": SOLVED["ex4_most_hidden_misses"],
    "ch01_ex5": SOLVED["ex5_forecast_percent"],
}
moved, share = SOLUTIONS["ch01_ex3"], SOLUTIONS["ch01_ex5"]


def layers(answer):
    return answer["shape"].n_layers


WRONG = [
    (
        "ch01_ex1",
        lambda **s: s["n_layers"] * s["n_kv_heads"] * s["head_dim"] * s["dtype_bytes"],
        "a key and a value",
    ),
    ("ch01_ex1", lambda **s: 2 * s["n_layers"] * s["head_dim"] * s["dtype_bytes"], "expected 2310"),
    ("ch01_ex1", lambda **s: 2 * s["n_layers"] * s["n_kv_heads"] * s["head_dim"], "expected 2310"),
    ("ch01_ex2", lambda **s: (s["memory_bytes"] - s["weight_bytes"]) / s["bytes_per_sequence"], "whole ones"),
    ("ch01_ex2", lambda **s: (s["memory_bytes"] - s["weight_bytes"]) // s["bytes_per_sequence"], "answer 0"),
    ("ch01_ex2", lambda **s: s["memory_bytes"] // s["bytes_per_sequence"], "expected 2"),
    (
        "ch01_ex2",
        lambda **s: int((s["memory_bytes"] - s["weight_bytes"]) / s["bytes_per_sequence"]),
        "-3 sequences",  # int() rounds towards zero, which hides the sign only just below it
    ),
    ("ch01_ex3", lambda **s: moved(**s) * layers(s) / (layers(s) - 1), "layer 0 misses nothing"),
    ("ch01_ex3", lambda **s: moved(**s) / s["shape"].n_kv_heads, "KV heads"),
    ("ch01_ex3", lambda **s: moved(**s) * 1e9 / 2**30, "not 2**30"),
    ("ch01_ex4", lambda *, batch: 96, "the link is the limit"),
    ("ch01_ex4", lambda *, batch: 0, "hidden too"),
    ("ch01_ex4", lambda *, batch: 0.5, "whole blocks"),
    ("ch01_ex5", lambda *, shape: share(shape=shape) / 100, "in percent"),
    ("ch01_ex5", lambda *, shape: share(shape=shape) * shape.group, "one head per KV head"),
    ("ch01_ex5", lambda *, shape: share(shape=shape) * (1 - 1 / shape.n_layers), "count it too"),
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


def test_an_answer_of_another_kind_is_told_so_and_raises_nothing():
    assert "TypeError" in ch01.ch01_ex1(lambda **s: "many").hint
