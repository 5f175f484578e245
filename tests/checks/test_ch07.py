"""Wrong answers of chapter 07 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

from math import ceil, comb

import pytest

from sparda import costs
from sparda.blocks import count_windows
from sparda.checks.ch07 import index_bytes
from sparda.evaluation.statistics import Z, wilson
from sparda.spec import Sparsity, model


def samples(share, half):
    n = 1
    while wilson(share * n, n)[1] - wilson(share * n, n)[0] > 2 * half:
        n += 1
    return n


def samples_by_wald(share, half):
    return ceil(Z**2 * share * (1 - share) / half**2)


def sign(ours, theirs, *, sides=2, ties=False, ends=True, swapped=False):
    wins = sum(a > b for a, b in zip(ours, theirs, strict=True))
    losses = sum(a < b for a, b in zip(ours, theirs, strict=True))
    tied = len(ours) - wins - losses if ties else 0
    n = wins + losses + 2 * tied
    tail = sum(comb(n, i) for i in range(min(wins, losses) + tied + 1)) / 2**n
    p = min(1.0, sides * tail) if ends else sides * tail
    return (losses, wins, p) if swapped else (wins, losses, p)


def index(*, shape, sparsity, n_tokens, method, channels=4, heads=None, layers=None, size=2):
    rows = count_windows(n_tokens, sparsity) if method == "sparda" else n_tokens
    width = shape.head_dim if method == "sparda" else shape.head_dim // channels
    return (layers or shape.n_layers) * (heads or shape.n_kv_heads) * rows * width * size


WRONG = [
    ("ch07_ex1", samples_by_wald, "use Wilson's"),
    ("ch07_ex1", lambda p, h: samples(p, h / 2), "half of the width"),
    ("ch07_ex1", lambda p, h: samples(p, h) - 1, "yours is still wider"),
    ("ch07_ex1", lambda *_: 100, "gave 100, too small"),
    ("ch07_ex2", lambda a, b: sign(a, b, sides=1), "both sides"),
    ("ch07_ex2", lambda a, b: sign(a, b, ties=True), "leave them out"),
    ("ch07_ex2", lambda a, b: sign(a, b, ends=False), "no probability"),
    ("ch07_ex2", lambda a, b: sign(a, b, swapped=True), "swapped"),
    ("ch07_ex2", lambda a, b: sign(a, b)[2:], "return wins, losses and p; got 1 values"),
    ("ch07_ex2", lambda a, b: (sum(a), sum(b), 0.5), "count where only one is right"),
    ("ch07_ex2", lambda a, b: (*sign(a, b)[:2], 0.01), "gave p = 0.01, too small"),
    ("ch07_ex2", lambda a, b: (*sign(a, b)[:2], float("nan")), "p = nan, which is no number"),
    ("ch07_ex3", lambda **of: index(**of, channels=1), "a quarter of the channels"),
    ("ch07_ex3", lambda **of: index(**of, layers=1), "this is one layer"),
    ("ch07_ex3", lambda **of: index(**of, heads=of["shape"].n_heads), "KV heads"),
    ("ch07_ex3", lambda **of: index(**of, size=4), "values are not scored"),
    ("ch07_ex3", lambda **of: index(**of, size=1), "2 bytes"),
    ("ch07_ex3", lambda *, method, **of: index(method="infinigen", **of), "gave"),
    ("ch07_ex3", lambda **_: 1, "gave 1 bytes, too small"),
]


def test_the_index_of_a_quarter_of_the_channels_is_four_times_the_compressed_keys():
    shape, rule = model("minicpm4.1-8b"), Sparsity(96)
    ours, theirs = (
        index_bytes(shape=shape, sparsity=rule, n_tokens=131_072, method=method)
        for method in ("sparda", "infinigen")
    )
    assert theirs / ours == pytest.approx(4, rel=1e-3)
    assert 8 * theirs == costs.kv_bytes(shape=shape, n_tokens=131_072)
