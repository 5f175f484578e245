"""Which blocks may a query read? The whole rule, once (InfLLM-V2 block selection, which SparDA keeps).

    keys --compress--> compressed keys --score--> window scores --pool--> block scores
         --force, top-k--> block ids

Everything is plain torch and runs on any device. A key's index along its axis is its position in the
sequence: sequences of a batch start at index 0 and may end anywhere, because nothing after a query's own
position is ever visible to it. Queries are independent, so long prompts are streamed over them.

Shapes: keys [B, H, T, d]; queries [B, H_q, T_q, d] with H_q = G * H, the G heads of a group adjacent;
positions [B, T_q] int64; N_c windows; N blocks.

Check values: 131,072 tokens give 8,191 compressed keys; the query at 2,176 is the first that is not forced
to read block 1.

>>> from sparda.spec import SPARSITY
>>> count_windows(131_072, SPARSITY["minicpm4.1-8b"])
8191
>>> forced = forced_blocks(torch.tensor([[2176]]), 40, SPARSITY["minicpm4.1-8b"])[0, 0]
>>> forced.nonzero().flatten()[:3].tolist()
[0, 2, 3]
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparda.spec import Sparsity

NEG_INF = float("-inf")


def count_windows(n_tokens: int, sparsity: Sparsity) -> int:
    """Complete compression windows in a sequence: N_c = floor((T - window) / stride) + 1, or 0.

    >>> [count_windows(t, Sparsity(96)) for t in (31, 32, 64, 128, 200, 1024, 32768)]
    [0, 1, 3, 7, 11, 63, 2047]
    """
    return max(0, (n_tokens - sparsity.window) // sparsity.stride + 1)


def count_blocks(n_tokens: int, sparsity: Sparsity) -> int:
    """Blocks that hold a sequence, the last one possibly part-filled: N = ceil(T / S)."""
    return -(-n_tokens // sparsity.block_size)


def compress_keys(keys: Tensor, sparsity: Sparsity) -> Tensor:
    """Mean of every complete window of post-RoPE keys.

    keys   : [B, H, T, d]
    returns: [B, H, N_c, d] in the dtype of keys, averaged in float32
    """
    if keys.dim() != 4:
        raise ValueError(f"keys must be [B, H, T, d], got shape {list(keys.shape)}")
    batch, heads, n_tokens, dim = keys.shape
    if count_windows(n_tokens, sparsity) == 0:
        return keys.new_zeros(batch, heads, 0, dim)
    windows = keys.unfold(2, sparsity.window, sparsity.stride)  # [B, H, N_c, d, window]
    return windows.float().mean(-1).to(keys.dtype)  # [B, H, N_c, d]


def visible_windows(positions: Tensor, n_windows: int, sparsity: Sparsity) -> Tensor:
    """Windows that a query at each position may use: bool [B, T_q, N_c].

    Window j covers tokens stride*j .. stride*j + window - 1 and is visible when its end (or, with
    visibility "start", its beginning) is not after the query.
    """
    reach = sparsity.window - 1 if sparsity.visibility == "end" else 0
    edges = torch.arange(n_windows, device=positions.device) * sparsity.stride + reach  # [N_c]
    return edges <= positions[..., None]  # [B, T_q, N_c]


def query_scores(
    queries: Tensor, compressed: Tensor, positions: Tensor, sparsity: Sparsity, *, scale: float | None = None
) -> Tensor:
    """Query-driven window scores (InfLLM-V2): softmax per query head over visible windows, summed over G.

    s[h, t, j] = sum_g softmax_j(q[h, g, t] . k~[h, j] / sqrt(d))

    queries [B, H_q, T_q, d], compressed [B, H, N_c, d], positions [B, T_q]; scale replaces 1 / sqrt(d)
    returns [B, H, T_q, N_c] float32, -inf where the window is not visible
    """
    grouped = _group_heads(queries, compressed.shape[1])  # [B, H, G, T_q, d]
    logits = torch.einsum("bhgtd,bhjd->bhgtj", grouped.float(), compressed.float())
    logits = logits * (queries.shape[-1] ** -0.5 if scale is None else scale)  # [B, H, G, T_q, N_c]
    hidden = ~visible_windows(positions, compressed.shape[2], sparsity)[:, None]  # [B, 1, T_q, N_c]
    weights = logits.masked_fill(hidden[:, :, None], NEG_INF).softmax(-1)  # NaN where nothing is visible
    return weights.sum(2).masked_fill(hidden, NEG_INF)  # [B, H, T_q, N_c]


def forecast_scores(forecast: Tensor, compressed: Tensor, positions: Tensor, sparsity: Sparsity) -> Tensor:
    """Forecast-driven window scores (SparDA): one head per GQA group, no softmax, no scale, no sum.

    r[h, t, j] = F[h, t] . k~[h, j]

    forecast [B, H, T_q, d], compressed [B, H, N_c, d], positions [B, T_q]
    returns [B, H, T_q, N_c] float32, -inf where the window is not visible
    """
    if forecast.shape[1] != compressed.shape[1]:
        raise ValueError(
            f"a Forecast has one head per KV head: got {forecast.shape[1]} for {compressed.shape[1]} KV heads"
        )
    scores = forecast.float() @ compressed.float().transpose(-1, -2)  # [B, H, T_q, N_c]
    hidden = ~visible_windows(positions, compressed.shape[2], sparsity)[:, None]
    return scores.masked_fill(hidden, NEG_INF)


def pool_to_blocks(scores: Tensor, n_blocks: int, sparsity: Sparsity) -> Tensor:
    """Best window of each block: a block is scored by every window that overlaps it.

    With r = S / stride and window = 2 * stride, block b takes max(scores[j] for j in r*b - 1 .. r*b + r - 1),
    clipped to existing windows; -inf where there is none.

    scores [..., N_c] -> [..., n_blocks]

    >>> pool_to_blocks(torch.arange(11.0), 3, Sparsity(96)).tolist()
    [3.0, 7.0, 10.0]
    """
    per_block = sparsity.block_size // sparsity.stride
    before = sparsity.window // sparsity.stride - 1  # windows that start earlier and reach into the block
    wanted = before + n_blocks * per_block
    scores = torch.nn.functional.pad(scores[..., : n_blocks * per_block], (before, 0), value=NEG_INF)
    scores = torch.nn.functional.pad(scores, (0, wanted - scores.shape[-1]), value=NEG_INF)
    return scores.unfold(-1, before + per_block, per_block).amax(-1)  # [..., n_blocks]


def forced_blocks(positions: Tensor, n_blocks: int, sparsity: Sparsity) -> Tensor:
    """Blocks that every query reads: the init blocks, W local ones and its own; bool [B, T_q, N]."""
    block = torch.arange(n_blocks, device=positions.device)  # [N]
    own = (positions // sparsity.block_size)[..., None]  # [B, T_q, 1]
    local = block >= own - sparsity.local_blocks
    return ((block < sparsity.init_blocks) | local) & (block <= own)  # [B, T_q, N]


def select_blocks(block_scores: Tensor, positions: Tensor, sparsity: Sparsity) -> Tensor:
    """Force, then take the best: the blocks that each query reads, shared by the G heads of a group.

    block_scores [B, H, T_q, N], positions [B, T_q]
    returns [B, H, T_q, k] int64: min(k, own block + 1) ids ascending, then -1; equal scores go to the
    lower id; no id is ever after the query's own block

    >>> scores = torch.tensor([[[[0.0, 5.0, 7.0, 7.0, 1.0, 0.0]]]])
    >>> select_blocks(scores, torch.tensor([[5 * 64]]), Sparsity(4, local_blocks=1)).tolist()
    [[[[0, 2, 4, 5]]]]
    """
    n_blocks, budget = block_scores.shape[-1], sparsity.budget_blocks
    own = (positions // sparsity.block_size)[:, None, :, None]  # [B, 1, T_q, 1]
    _check_scores(block_scores, own, n_blocks)
    future = torch.arange(n_blocks, device=block_scores.device) > own
    # -inf ties keep their order, so an unscored block still comes before a future one
    rank = block_scores.masked_fill(future, NEG_INF)
    rank = rank.masked_fill(forced_blocks(positions, n_blocks, sparsity)[:, None], float("inf"))
    best = rank.argsort(dim=-1, descending=True, stable=True)[..., :budget]  # [B, H, T_q, <=k]
    best = torch.nn.functional.pad(best, (0, budget - best.shape[-1]), value=n_blocks)
    beyond = torch.arange(budget, device=best.device) >= (own + 1).clamp(max=budget)
    ids = best.masked_fill(beyond, n_blocks).sort(dim=-1).values  # padding sorts to the end
    return ids.masked_fill(ids == n_blocks, -1)  # [B, H, T_q, k]


def block_mask(block_ids: Tensor, n_blocks: int) -> Tensor:
    """Block lists as a mask: [..., k] ids with -1 padding -> bool [..., N]."""
    mask = torch.zeros(*block_ids.shape[:-1], n_blocks + 1, dtype=torch.bool, device=block_ids.device)
    slots = torch.where(block_ids < 0, n_blocks, block_ids)  # padding falls into a spare column
    return mask.scatter_(-1, slots, True)[..., :n_blocks]


def _group_heads(queries: Tensor, n_kv_heads: int) -> Tensor:
    """[B, H_q, T_q, d] -> [B, H, G, T_q, d]."""
    batch, heads, n_queries, dim = queries.shape
    if heads % n_kv_heads:
        raise ValueError(f"{heads} query heads cannot be grouped over {n_kv_heads} KV heads")
    return queries.reshape(batch, n_kv_heads, heads // n_kv_heads, n_queries, dim)


def _check_scores(block_scores: Tensor, own: Tensor, n_blocks: int) -> None:
    if block_scores.dim() != 4:
        raise ValueError(f"block_scores must be [B, H, T_q, N], got shape {list(block_scores.shape)}")
    if own.numel() and int(own.max()) >= n_blocks:
        raise ValueError(f"a query sits in block {int(own.max())}, but only {n_blocks} blocks have scores")
    if (torch.isnan(block_scores) | torch.isposinf(block_scores)).any():
        raise ValueError("block scores hold NaN or +inf; check the keys and queries that they came from")
