"""Checks of chapter 03: the loss of one query, weights that a Forecast adds, the gap that it closes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparda import costs
from sparda.checks import Verdict, checker
from sparda.distill import divergence
from sparda.figures.forecast import gap_closed
from sparda.spec import model


def _close(got: float, want: float, rel_tol: float = 1e-4) -> bool:
    return math.isclose(got, want, rel_tol=rel_tol, abs_tol=1e-7)


def _mass_loss_slips(mass: Tensor, scores: Tensor, free: Tensor) -> dict[str, float]:
    """Answers that a wrong loss gives, by hint."""
    every = torch.ones_like(free)
    inside, outside = divergence(mass, scores, free), float(mass[free].sum())
    p = scores[free].softmax(0)
    target = mass[free] / outside
    return {
        "that is each query's loss; weigh it with the mass outside the forced blocks": float(inside),
        "forced blocks are read anyway: leave them out of both sides": float(divergence(mass, scores, every)),
        "make the target a distribution: divide by the mass outside the forced blocks": float(
            outside * (mass[free] * (mass[free] / p).log()).sum()
        ),
        "KL(target || prediction) has the target in front; this is the other way round": float(
            outside * (p * (p / target).log()).sum()
        ),
        "the softmax runs over the free blocks only": float(
            outside * (target * (target / scores.softmax(0)[free]).log()).sum()
        ),
    }


@checker
def ch03_ex1(student) -> Verdict:
    """student(mass, scores, free) -> our loss of one query, a number.

    mass [N] true attention of the blocks, scores [N] of the Forecast, free [N] bool: past and not forced
    """
    cases = [
        ([0.2, 0.3, 0.1, 0.4], [1.0, -1.0, 2.0, 0.5], [False, True, True, False]),
        ([0.5, 0.05, 0.2, 0.05, 0.2], [0.3, 0.2, 0.9, -0.4, 3.0], [False, True, True, True, False]),
    ]
    for given in cases:
        mass, scores, free = map(torch.tensor, given)
        got = float(student(mass.clone(), scores.clone(), free.clone()))
        want = float(mass[free].sum() * divergence(mass, scores, free))
        if _close(got, want):
            continue
        for hint, slip in _mass_loss_slips(mass, scores, free).items():
            if _close(got, slip):
                return Verdict("not yet", hint)
        return Verdict("not yet", f"mass {given[0]}, scores {given[1]}: {got:.5g}, expected {want:.5g}")
    return Verdict("ok")


@checker
def ch03_ex2(student) -> Verdict:
    """student(*, n_layers, hidden, n_heads, n_kv_heads, head_dim) -> weights that SparDA adds to a model."""
    for name in ("smollm2-135m", "llama-3-70b"):
        shape = model(name)
        sizes = ("n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim")
        got = student(**{size: getattr(shape, size) for size in sizes})
        want, one = costs.forecast_parameters(shape=shape), shape.hidden * shape.n_kv_heads * shape.head_dim
        slips = {
            want + one: "one projection too many: the last layer's Forecast would predict nothing",
            want - one: "one is missing: layer 0 has no layer before it, so it has a projection of its own",
            want * shape.n_heads // shape.n_kv_heads: "one head for a KV head, not for every query head",
            want // shape.n_kv_heads: "every KV head has a head of its own",
        }
        if got == want:
            continue
        hint = slips.get(got, f"{name} gave {got}, expected {want}")
        return Verdict("not yet", hint)
    return Verdict("ok")


@checker
def ch03_ex3(student) -> Verdict:
    """student(ours, query, oracle) -> gap closed, from lists of recall by layer, layer 0 first."""
    ours, query, oracle = [0.60, 0.80, 0.95, 0.70], [0.70, 0.70, 0.96, 0.60], [0.75, 0.90, 0.97, 0.90]
    means = [sum(values[1:]) / 3 for values in (ours, query, oracle)]
    every = [sum(values) / 4 for values in (ours, query, oracle)]
    ratios = [gap_closed(*at) for at in zip(ours[1:], query[1:], oracle[1:], strict=True)]
    want = gap_closed(*means)
    slips = {
        gap_closed(*every): "layer 0's blocks stay on the GPU: leave it out",
        sum(ratios) / 3: "take means first, then one ratio: else a layer with hardly a gap decides",
        1 - want: "this is the share that is left open",
        means[0] - means[1]: "this is what was won; divide it by what there was to win",
    }
    got = float(student(list(ours), list(query), list(oracle)))
    if _close(got, want):
        return Verdict("ok")
    for slip, hint in slips.items():
        if _close(got, slip):
            return Verdict("not yet", hint)
    return Verdict("not yet", f"three layers gave {got:.4g}, expected {want:.4g}")
