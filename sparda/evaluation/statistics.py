"""Intervals (95 % unless told otherwise), in closed form and never of width zero."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt
from statistics import NormalDist, fmean, stdev

Z = NormalDist().inv_cdf(0.975)


def wilson(correct: float, n: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a share.

    ``correct`` may be a sum of shares between 0 and 1: they vary less than right and wrong do, so that the
    interval is then too wide rather than too narrow.

    >>> [round(x, 3) for x in wilson(9, 10)]
    [0.596, 0.982]
    """
    if n < 1 or not 0 <= correct <= n:
        raise ValueError(f"correct must lie in 0..n with n >= 1, got {correct} of {n}")
    p, spread = correct / n, z * z / n
    centre = (p + spread / 2) / (1 + spread)
    half = sqrt(p * (1 - p) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def paired_interval(differences: Sequence[Sequence[float]], z: float = Z) -> tuple[float, float, float]:
    """Mean difference of two methods on the same samples, and its interval.

    differences : ours minus theirs, -1 to 1, sample by sample, one list a task; the mean over tasks counts

    Agresti and Min's adjustment (2005): each task gets two more samples, as if half a sample had gone to each
    of the four outcomes. So many equal scores give a narrow interval, but no certainty.

    >>> [round(x, 3) for x in paired_interval([[0.0] * 198])]
    [0.0, -0.01, 0.01]
    """
    if not differences or min(map(len, differences)) < 1:
        raise ValueError("a paired difference needs at least one sample of each task")
    centres, variances = [], []
    for task in differences:
        n = len(task) + 2
        centres.append(sum(task) / n)
        variances.append((sum(d * d for d in task) + 1) / n / n - centres[-1] ** 2 / n)
    centre, half = fmean(centres), z * sqrt(sum(variances)) / len(differences)
    return fmean(map(fmean, differences)), max(-1.0, centre - half), min(1.0, centre + half)


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided p-value of as many wins and losses, ties left out; for right and wrong McNemar's exact test.

    >>> sign_test([1, 1, 1, 1, 1, 0, 0])
    0.0625
    """
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n = wins + losses
    return min(1.0, 2 * sum(comb(n, i) for i in range(min(wins, losses) + 1)) / 2**n)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of independent values and Student's interval; unknown (NaN) from a single value.

    >>> [round(x, 2) for x in mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])]
    [3.0, 1.04, 4.96]
    """
    n, mean = len(values), fmean(values)
    if n < 2:
        return mean, float("nan"), float("nan")
    half = _student(n - 1) * stdev(values) / sqrt(n)
    return mean, mean - half, mean + half


_EXACT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # for 1 to 8 degrees of freedom


def _student(freedom: int) -> float:
    """The 97.5 % quantile: exact values, then two terms of Cornish and Fisher's expansion (to 0.001)."""
    if freedom <= len(_EXACT):
        return _EXACT[freedom - 1]
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
