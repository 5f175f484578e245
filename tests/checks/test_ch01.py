"""Wrong answers of chapter 01 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

import runpy
from pathlib import Path

from sparda.checks import ch01

SOLVED = runpy.run_path(str(Path(__file__).parents[2] / "notebooks" / "solutions" / "01_kv_math.py"))
moved, share = SOLVED["ex3_miss_seconds"], SOLVED["ex5_forecast_percent"]


def layers(answer):
    return answer["shape"].n_layers


WRONG = [
    (
        "ch01_ex1",
        lambda **s: s["n_layers"] * s["n_kv_heads"] * s["head_dim"] * s["dtype_bytes"],
        "a key and a value",
    ),
    ("ch01_ex1", lambda **s: 2 * s["n_layers"] * s["head_dim"] * s["dtype_bytes"], "gave 462, too small"),
    ("ch01_ex1", lambda **s: 2 * s["n_layers"] * s["n_kv_heads"] * s["head_dim"], "gave 210, too small"),
    ("ch01_ex2", lambda **s: (s["memory_bytes"] - s["weight_bytes"]) / s["bytes_per_sequence"], "whole ones"),
    ("ch01_ex2", lambda **s: (s["memory_bytes"] - s["weight_bytes"]) // s["bytes_per_sequence"], "answer 0"),
    ("ch01_ex2", lambda **s: s["memory_bytes"] // s["bytes_per_sequence"], "30 each gave 3, too large"),
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


def test_an_answer_of_another_kind_is_told_so_and_raises_nothing():
    assert "TypeError" in ch01.ch01_ex1(lambda **s: "many").hint
