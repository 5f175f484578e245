"""Intervals against values worked out elsewhere, and their properties."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda.evaluation.statistics import mean_interval, paired_interval, sign_test, wilson


def test_wilson_at_the_ends_and_in_the_middle():
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.72247, 1.0), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.40383, 0.59617), abs=1e-4)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_mirrors(case):
    correct, n = case
    low, high = wilson(correct, n)
    assert 0 <= low <= correct / n <= high <= 1
    assert wilson(n - correct, n) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(("correct", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_cannot_be(correct, n):
    with pytest.raises(ValueError, match="must lie in"):
        wilson(correct, n)


def test_the_sign_test_is_mcnemars_exact_test_on_right_and_wrong():
    assert sign_test([1] * 9 + [-1] + [0] * 50) == pytest.approx(0.021484, abs=1e-6)
    assert sign_test([1, -1]) == 1.0
    assert sign_test([0.0, 0.0]) == 1.0


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=60))
def test_a_paired_interval_turns_round_with_the_methods_and_has_a_width(differences):
    mean, low, high = paired_interval([differences])
    assert mean == pytest.approx(sum(differences) / len(differences))
    assert low < high
    swapped = paired_interval([[-d for d in differences]])
    assert swapped == pytest.approx((-mean, -high, -low))


def test_a_paired_interval_covers_the_truth_about_19_times_in_20():
    rng, hits = random.Random(1), 0
    for _ in range(600):
        tasks = [rng.choices([1, 0, -1], (0.10, 0.85, 0.05), k=100) for _ in range(3)]
        _, low, high = paired_interval(tasks)
        hits += low <= 0.05 <= high
    assert 0.925 <= hits / 600 <= 0.985


def test_the_average_of_tasks_weighs_them_equally():
    assert paired_interval([[1.0] * 10, [0.0] * 90])[0] == 0.5
    with pytest.raises(ValueError, match="at least one sample"):
        paired_interval([[1.0], []])


def test_a_mean_has_students_interval():
    mean, low, high = mean_interval([float(x) for x in range(16)])
    half = 2.1314 * (sum((x - 7.5) ** 2 for x in range(16)) / 15) ** 0.5 / 4
    assert (mean, low, high) == pytest.approx((7.5, 7.5 - half, 7.5 + half), abs=2e-3)
    assert mean_interval([3.0])[1] != mean_interval([3.0])[1]  # NaN: one value says nothing of its spread
