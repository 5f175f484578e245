"""Each checker of chapter 07 against its stub, its solution and wrong answers."""

from __future__ import annotations

from math import ceil, comb

import pytest

from sparda import costs
from sparda.blocks import count_windows
from sparda.checks.ch07 import ch07_ex1, ch07_ex2, ch07_ex3, index_bytes
from sparda.evaluation.statistics import Z, wilson
from sparda.spec import Sparsity, model


def stub(*_args, **_keywords):
    return ...


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


CASES = [
    (
        ch07_ex1,
        samples,
        [samples_by_wald, lambda p, h: samples(p, h / 2), lambda p, h: samples(p, h) - 1, lambda *_: 100],
    ),
    (
        ch07_ex2,
        sign,
        [
            lambda a, b: sign(a, b, sides=1),
            lambda a, b: sign(a, b, ties=True),
            lambda a, b: sign(a, b, ends=False),
            lambda a, b: sign(a, b, swapped=True),
            lambda a, b: sign(a, b)[2:],
            lambda a, b: (sum(a), sum(b), 0.5),
            lambda a, b: (*sign(a, b)[:2], 0.5),
        ],
    ),
    (
        ch07_ex3,
        index,
        [
            lambda **of: index(**of, channels=1),
            lambda **of: index(**of, layers=1),
            lambda **of: index(**of, heads=of["shape"].n_heads),
            lambda **of: index(**of, size=4),
            lambda **of: index(**of, size=1),
            lambda *, method, **of: index(method="infinigen", **of),
            lambda **_: 1,
        ],
    ),
]


@pytest.mark.parametrize(("check", "solution", "wrong"), CASES)
def test_a_stub_is_to_do_the_solution_is_ok_and_wrong_answers_get_a_hint(
    check, solution, wrong, answers_back
):
    answers_back(check, stub, solution, wrong)


@pytest.mark.parametrize(
    ("check", "answer", "part"),
    [
        (ch07_ex1, samples_by_wald, "use Wilson's"),
        (ch07_ex1, lambda p, h: samples(p, h / 2), "half of the width"),
        (ch07_ex2, lambda a, b: sign(a, b, sides=1), "both sides"),
        (ch07_ex2, lambda a, b: sign(a, b, ties=True), "leave them out"),
        (ch07_ex2, lambda a, b: sign(a, b, ends=False), "no probability"),
        (ch07_ex2, lambda a, b: sign(a, b, swapped=True), "swapped"),
        (ch07_ex3, lambda **of: index(**of, channels=1), "a quarter of the channels"),
        (ch07_ex3, lambda **of: index(**of, heads=of["shape"].n_heads), "KV heads"),
    ],
)
def test_the_hint_names_the_slip(check, answer, part):
    assert part in check(answer).hint


def test_the_index_of_a_quarter_of_the_channels_is_four_times_the_compressed_keys():
    shape, rule = model("minicpm4.1-8b"), Sparsity(96)
    ours, theirs = (
        index_bytes(shape=shape, sparsity=rule, n_tokens=131_072, method=method)
        for method in ("sparda", "infinigen")
    )
    assert theirs / ours == pytest.approx(4, rel=1e-3)
    assert 8 * theirs == costs.kv_bytes(shape=shape, n_tokens=131_072)
