"""What a Forecast is taught: the teacher, its prediction, and how far apart they are (spec: training).

Two recipes. The paper's: the query's own scores of compressed keys are the teacher, the windows of its best
blocks and one bucket for all the rest are compared. Ours: the exact attention mass of every block is the
teacher, and block scores, pooled as at inference, are compared over all blocks that are not forced. A second
phase can then lower what is to be low in the end, the mass that a (softened) choice misses.

    loss of one query = w * KL(target || softmax(prediction))         float32, mean over heads and queries
                      = mass of free blocks that are not chosen       objective "recall"

Everything works on any leading dimension [X, H, ...]: layers and sequences lie side by side. Nothing is ever
T x T: few queries are looked at, a slice at a time. Gradients reach the prediction only.

Check value: blocks 1 and 2 hold 3/4 and 1/4 of the mass, both are scored alike: KL = ln 2 - H = 0.1308.

>>> target, scores = torch.tensor([0.0, 0.75, 0.25, 0.0]), torch.zeros(4)
>>> round(divergence(target, scores, torch.tensor([False, True, True, False])).item(), 4)
0.1308
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparda import blocks, kernels
from sparda.attention import query_slices
from sparda.soft_topk import soft_topk
from sparda.spec import Sparsity

Teacher = Literal["mass", "fine", "coarse"]
KNOWN = {
    "teacher": ("mass", "fine", "coarse"),
    "pooling": ("exact", "released"),
    "objective": ("divergence", "recall"),
}
NEG_INF = float("-inf")


@dataclass(frozen=True)
class Recipe:
    """How to teach.

    teacher  : "mass", exact attention mass of blocks; "coarse", the query's softmax over compressed keys;
               "fine", over means of 2 neighbouring keys, pooled to the grid of compressed keys (the paper)
    pooling  : of "fine": "exact", over the means inside a window; "released", as the authors' code does
    rest     : with "fine" and "coarse": one more entry holds all mass outside the teacher's blocks
    entries  : with "fine" and "coarse": entries a block has, its windows (4) or their sum (1)
    weighted : with "mass": a query counts as much as its mass outside the forced blocks
    objective: with "mass": "divergence", or "recall", the mass missed at k and at 2 k blocks
    softness : of "recall": width of the edge between chosen and not, in units of the score
    """

    teacher: Teacher = "mass"
    pooling: Literal["exact", "released"] = "exact"
    rest: bool = True
    entries: int = 4
    weighted: bool = True
    objective: Literal["divergence", "recall"] = "divergence"
    softness: float = 1.0

    def __post_init__(self):
        for name, known in KNOWN.items():
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; choose from {', '.join(known)}")
        if self.objective == "recall" and (self.teacher != "mass" or self.softness <= 0):
            raise ValueError("objective recall needs teacher mass and a softness above 0")


PAPER = Recipe(teacher="fine")


def teach(q: Tensor, k: Tensor, positions: Tensor, sparsity: Sparsity, recipe: Recipe) -> Tensor:
    """The teacher's target, streamed over queries.

    q [X, H_q, P, d] and k [X, H, T, d] post-RoPE, positions [P] on the CPU, ascending
    returns float32: [X, H, P, N] mass of blocks, or [X, H, P, N_c] shares of compressed keys; rows sum to 1
    """
    if recipe.teacher == "mass":
        at = positions.to(q.device).expand(len(q), -1)
        return kernels.block_mass(q, k, at, block_size=sparsity.block_size)
    parts = []
    for part in query_slices(q.shape[2], q.shape[0] * q.shape[1] * k.shape[2]):
        at = positions[part]  # on the CPU: how many keys a slice sees is known without waiting for a GPU
        parts.append(_window_shares(q[:, :, part], k, at, sparsity, recipe))
    width = blocks.count_windows(k.shape[2], sparsity)
    return torch.cat([pad(p, (0, width - p.shape[-1])) for p in parts], 2)


def _hide_future(logits: Tensor, at: Tensor, ahead: int = 0) -> Tensor:
    """Mask, in place, what lies after a query; column j holds key j + ``ahead``; ``at`` ascends."""
    first = max(0, int(at[0]) + 1 - ahead)  # columns before it are seen by every query of the slice
    key = torch.arange(first + ahead, logits.shape[-1] + ahead, device=logits.device)
    logits[..., first:].masked_fill_(key > at.to(logits.device)[:, None], NEG_INF)
    return logits


def _window_shares(q: Tensor, k: Tensor, at: Tensor, sparsity: Sparsity, recipe: Recipe) -> Tensor:
    """The query's shares of compressed keys, summed over the G heads and normalised: [X, H, p, N_c]."""
    n_windows, there = blocks.count_windows(k.shape[2], sparsity), at.to(q.device)
    if recipe.teacher == "coarse":
        scores = blocks.query_scores(q, blocks.compress_keys(k, sparsity), there.expand(len(q), -1), sparsity)
    else:
        fine = (k[:, :, 1:].float() + k[:, :, :-1].float()) / 2
        logits = _hide_future(_logits(q, fine, q.shape[-1] ** -0.5), at, ahead=1)
        shares = logits.softmax(-1).nan_to_num().sum(2)  # [X, H, p, T - 1]; nothing is visible at position 0
        width, shift = (sparsity.window - 1, 0) if recipe.pooling == "exact" else (sparsity.stride + 1, 1)
        need = (n_windows - 1) * sparsity.stride + width
        shares = pad(shares, (shift, need - shift - shares.shape[-1]))
        scores = shares.unfold(-1, width, sparsity.stride).amax(-1)
        scores = scores.masked_fill(~_visible(there, n_windows, sparsity), NEG_INF)
    scores = scores.masked_fill(scores == NEG_INF, 0.0)
    return scores / scores.sum(-1, keepdim=True).clamp(min=1e-30)


def _logits(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """[X, H_q, p, d] and [X, H, t, d] -> [X, H, G, p, t] float32."""
    rows = q.float().mul(scale).unflatten(1, (k.shape[1], -1))  # [X, H, G, p, d]
    flat = rows.flatten(2, 3) @ k.float().transpose(-1, -2)
    return flat.unflatten(2, rows.shape[2:4])


def _visible(at: Tensor, n_windows: int, sparsity: Sparsity) -> Tensor:
    return blocks.visible_windows(at[None], n_windows, sparsity)[0]  # [p, N_c]


def predict(forecast: Tensor, compressed: Tensor, positions: Tensor, sparsity: Sparsity) -> Tensor:
    """Log scores of compressed keys, float32, -inf where not visible.

    forecast [X, H * n, P, d] with n heads a KV head, compressed [X, H, N_c, d], positions [P]
    returns [X, H, P, N_c]: F . k~ / sqrt(d) for n = 1; for more heads the log of their summed softmax
    """
    at = positions.to(forecast.device)
    hidden = ~_visible(at, compressed.shape[2], sparsity)
    logits = _logits(forecast, compressed, forecast.shape[-1] ** -0.5)  # [X, H, n, P, N_c]
    logits = logits.masked_fill(hidden, NEG_INF)
    if logits.shape[2] == 1:
        return logits[:, :, 0]
    shares = logits.log_softmax(-1).masked_fill(hidden, 0.0)  # finite: a sum of nothing has no gradient
    return shares.logsumexp(2).masked_fill(hidden, NEG_INF)


def loss(prediction: Tensor, target: Tensor, positions: Tensor, sparsity: Sparsity, recipe: Recipe) -> Tensor:
    """Loss of every query, [X, H, P] float32, of ``predict`` against ``teach``."""
    at = positions.to(prediction.device)
    if recipe.teacher != "mass":
        return _window_loss(prediction, target, at, sparsity, recipe)
    n_blocks = target.shape[-1]
    scores = blocks.pool_to_blocks(prediction, n_blocks, sparsity)  # [X, H, P, N]
    if recipe.objective == "recall":
        missed = [_missed(scores, target, at, rule, recipe.softness) for rule in budgets(sparsity)]
        return torch.stack(missed).mean(0)
    free = _free(at, n_blocks, sparsity)
    outside = target.masked_fill(~free, 0.0).sum(-1)
    lost = divergence(target, scores, free)
    return lost * outside if recipe.weighted else lost


def divergence(target: Tensor, scores: Tensor, where: Tensor) -> Tensor:
    """KL(target || softmax(scores)) over the entries that ``where`` marks, both normalised there: [...]."""
    wanted = target.masked_fill(~where, 0.0)
    wanted = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-30)
    log_p = scores.masked_fill(~where, NEG_INF).log_softmax(-1).masked_fill(~where, 0.0)
    return (torch.xlogy(wanted, wanted) - wanted * log_p).sum(-1)


def budgets(sparsity: Sparsity) -> list[Sparsity]:
    """What one Forecast serves: k blocks, and 2 k with twice the local ones."""
    k, local = sparsity.budget_blocks, sparsity.local_blocks
    return [sparsity, replace(sparsity, budget_blocks=2 * k, local_blocks=2 * local)]


def _missed(scores: Tensor, target: Tensor, at: Tensor, sparsity: Sparsity, softness: float) -> Tensor:
    """Mass of the free blocks that are not chosen, [X, H, P]."""
    free = _free(at, target.shape[-1], sparsity)
    forced = blocks.forced_blocks(at[None], target.shape[-1], sparsity)[0].sum(-1)
    chosen = soft_topk(scores.masked_fill(~free, NEG_INF), sparsity.budget_blocks - forced, softness)
    return (target * free * (1 - chosen)).sum(-1)


def _free(at: Tensor, n_blocks: int, sparsity: Sparsity) -> Tensor:
    """Blocks that a query may choose: past, and not forced; [P, N]."""
    past = torch.arange(n_blocks, device=at.device) < (at // sparsity.block_size)[:, None]
    return past & ~blocks.forced_blocks(at[None], n_blocks, sparsity)[0]


def _window_loss(
    log_scores: Tensor, target: Tensor, at: Tensor, sparsity: Sparsity, recipe: Recipe
) -> Tensor:
    """The paper's: windows of the teacher's learned blocks, and one bucket for all the rest."""
    per_block = sparsity.block_size // sparsity.stride
    n_windows = target.shape[-1]
    n_blocks = -(-n_windows // per_block) + 1
    scores = target.masked_fill(~_visible(at, n_windows, sparsity), NEG_INF)
    pooled = blocks.pool_to_blocks(scores, max(n_blocks, int(at.max()) // sparsity.block_size + 1), sparsity)
    ids = blocks.select_blocks(pooled, at.expand(len(target), -1), sparsity)
    learned = blocks.block_mask(ids, pooled.shape[-1]) & _free(at, pooled.shape[-1], sparsity)
    kept = learned.repeat_interleave(per_block, -1)[..., :n_windows] & _visible(at, n_windows, sparsity)
    log_p = log_scores.log_softmax(-1)
    shares, entries = target, log_p
    rest = (target.masked_fill(kept, 0.0).sum(-1), log_p.masked_fill(kept, NEG_INF).logsumexp(-1))
    if recipe.entries == 1:
        shares, entries, kept = _per_block(target, log_p, kept, per_block)
    if not recipe.rest:
        return divergence(shares, entries, kept)
    every = torch.cat([kept, torch.ones_like(kept[..., :1])], -1)
    target = torch.cat([shares, rest[0][..., None]], -1)
    return divergence(target, torch.cat([entries, rest[1][..., None]], -1), every)


def _per_block(shares: Tensor, log_p: Tensor, kept: Tensor, per_block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Windows 4b .. 4b+3 of a block as one entry."""
    fill = (0, -shares.shape[-1] % per_block)
    share, log_share, mask = (pad(x, fill).unflatten(-1, (-1, per_block)) for x in (shares, log_p, kept))
    log_share = log_share.masked_fill(~mask, -1e9)  # finite: the gradient of a sum of nothing is not
    return share.masked_fill(~mask, 0.0).sum(-1), log_share.logsumexp(-1), mask.any(-1)
