"""Checks of chapter 03: the loss of one query, weights that a Forecast adds, the gap that it closes."""

from __future__ import annotations

import torch
from torch import Tensor

from sparda import costs, distill
from sparda.checks import Random, Verdict, checker, close, off
from sparda.checks.shapes import a_shape
from sparda.distill import divergence
from sparda.figures.forecast import gap_closed
from sparda.spec import model


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


def _a_query(draw: Random) -> tuple[list[float], list[float], list[bool]]:
    """Mass, scores and free blocks of a query, drawn."""
    n = draw.randrange(5, 9)
    weights = [draw.uniform(0.1, 1) for _ in range(n)]
    mass = [w / sum(weights) for w in weights]
    scores = [draw.gauss(2 * (i % 2), 1) for i in range(n)]  # never like the mass: the loss is not near 0
    return mass, scores, [False, *[True] * (n - 2), False]


@checker(without=[divergence, distill.loss])
def ch03_ex1(student) -> Verdict:
    """student(mass, scores, free) -> our loss of one query, a number.

    mass [N] true attention of the blocks, scores [N] of the Forecast, free [N] bool: past and not forced
    """
    draw = Random()
    cases = [
        ([0.2, 0.3, 0.1, 0.4], [1.0, -1.0, 2.0, 0.5], [False, True, True, False]),
        ([0.5, 0.05, 0.2, 0.05, 0.2], [0.3, 0.2, 0.9, -0.4, 3.0], [False, True, True, True, False]),
        *(_a_query(draw) for _ in range(2)),
    ]
    for given in cases:
        mass, scores, free = map(torch.tensor, given)
        got = float(student(mass.clone(), scores.clone(), free.clone()))
        want = float(mass[free].sum() * divergence(mass, scores, free))
        if close(got, want, 1e-4):
            continue
        for hint, slip in _mass_loss_slips(mass, scores, free).items():
            if close(got, slip, 1e-4):
                return Verdict("not yet", hint)
        shown = [[round(x, 3) for x in values] for values in given[:2]]
        hint = f"mass {shown[0]}, scores {shown[1]}, free {given[2]}: {got:.5g}, {off(got, want)}"
        return Verdict("not yet", hint)
    return Verdict("ok")


@checker(without=[costs.forecast_parameters])
def ch03_ex2(student) -> Verdict:
    """student(*, n_layers, hidden, n_heads, n_kv_heads, head_dim) -> weights that SparDA adds to a model."""
    for shape in (model("smollm2-135m"), model("llama-3-70b"), a_shape(Random())):
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
        return Verdict("not yet", slips.get(got, f"{shape.name} gave {got}, {off(got, want)}"))
    return Verdict("ok")


@checker
def ch03_ex3(student) -> Verdict:
    """student(ours, query, oracle) -> gap closed, from lists of recall by layer, layer 0 first."""
    draw = Random()
    fresh = [[round(draw.uniform(low, low + 0.2), 2) for _ in range(6)] for low in (0.5, 0.3, 0.75)]
    for ours, query, oracle in (
        ([0.60, 0.80, 0.95, 0.70], [0.70, 0.70, 0.96, 0.60], [0.75, 0.90, 0.97, 0.90]),
        fresh,
    ):
        three, n = (ours, query, oracle), len(ours)
        means = [sum(values[1:]) / (n - 1) for values in three]
        every = [sum(values) / n for values in three]
        ratios = [gap_closed(*at) for at in zip(ours[1:], query[1:], oracle[1:], strict=True)]
        want = gap_closed(*means)
        slips = {
            gap_closed(*every): "layer 0's blocks stay on the GPU: leave it out",
            sum(ratios) / (n - 1): "take means first, then one ratio: else a layer with hardly a gap decides",
            1 - want: "this is the share that is left open",
            means[0] - means[1]: "this is what was won; divide it by what there was to win",
        }
        got = float(student(list(ours), list(query), list(oracle)))
        if close(got, want, 1e-4):
            continue
        for slip, hint in slips.items():
            if close(got, slip, 1e-4):
                return Verdict("not yet", hint)
        return Verdict("not yet", f"ours {ours}, query {query}, oracle {oracle}: {got:.4g}, {off(got, want)}")
    return Verdict("ok")
