"""Top-k with a gradient: how much of each entry a softened choice of m entries takes.

An entry gets sigmoid((score - edge) / softness), and the edge lies where the shares add up to m. It moves
with the scores, so raising all of them alike changes nothing, as with top-k; with softness -> 0 it is top-k.

>>> scores = torch.tensor([[0.0, 4.0, 3.0, -1.0]])
>>> soft_topk(scores, torch.tensor([2]), softness=0.1).round().tolist()
[[0.0, 1.0, 1.0, 0.0]]
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 20  # of the bisection; Newton's step at the end squares what error is left
REACH = 8.0  # sigmoid(8) is 1 within 4e-4: no edge lies farther outside the scores


def soft_topk(scores: Tensor, places: Tensor, softness: float) -> Tensor:
    """Shares in 0..1, [..., P, N], of scores [..., P, N]; those of a row sum to its places [P].

    A score of -inf gets nothing. Where no more entries than places are left, each gets 1.
    """
    scores, m = scores / softness, places[:, None]
    there = scores > float("-inf")
    edge = _edge(scores.detach(), there, m)
    soft = (scores - edge).sigmoid()
    slope = (soft * (1 - soft)).detach().sum(-1, keepdim=True).clamp(min=1e-6)
    edge = edge + (soft.sum(-1, keepdim=True) - m) / slope  # its gradient is that of the exact edge
    shares = (scores - edge).sigmoid()
    return torch.where(there.sum(-1, keepdim=True) <= m, there.to(shares), shares)


def _edge(scores: Tensor, there: Tensor, m: Tensor) -> Tensor:
    """Where the shares add up to m, [..., P, 1], by bisection."""
    low = scores.masked_fill(~there, float("inf")).amin(-1, keepdim=True).nan_to_num(posinf=0.0) - REACH
    high = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0) + REACH
    for _ in range(STEPS):
        middle = (low + high) / 2
        many = (scores - middle).sigmoid().sum(-1, keepdim=True) > m
        low, high = torch.where(many, middle, low), torch.where(many, high, middle)
    return (low + high) / 2
