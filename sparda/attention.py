"""Exact attention: dense, and over a list of blocks; and where the true attention mass lies.

Keys and values [B, H, T, d] are stored by position; queries [B, H_q, T_q, d] carry their positions
[B, T_q], so causality (key index <= position) is also what keeps shorter sequences of a batch apart.
Long prompts are streamed over queries: no temporary holds T x T for all heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sparda.blocks import block_mask

# float32 elements that one temporary of a streamed step may hold (256 MiB)
STREAM_ELEMENTS = 2**26


def query_slices(n_queries: int, elements_per_query: int) -> Iterator[slice]:
    """Cut the query axis so that a temporary of ``elements_per_query`` each stays under the limit."""
    step = max(1, STREAM_ELEMENTS // max(1, elements_per_query))
    for start in range(0, n_queries, step):
        yield slice(start, min(start + step, n_queries))


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, *, scale: float | None = None
) -> Tensor:
    """Causal softmax attention under GQA, over every token.

    q [B, H_q, T_q, d], k and v [B, H, T, d], positions [B, T_q] -> [B, H_q, T_q, d]
    """
    out = torch.empty_like(q)
    key_index = torch.arange(k.shape[2], device=q.device)
    for part in query_slices(q.shape[2], q.shape[0] * q.shape[1] * k.shape[2]):
        causal = key_index <= positions[:, None, part, None]  # [B, 1, t, T]
        out[:, :, part] = scaled_dot_product_attention(
            q[:, :, part], k, v, attn_mask=causal, scale=scale, enable_gqa=True
        )
    return out


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, block_ids: Tensor, positions: Tensor, *, block_size: int,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Causal softmax attention over the tokens of the listed blocks only (spec: exact within them).

    q [B, H_q, T_q, d], k and v [B, H, T, d], block_ids [B, H, T_q, k] with -1 padding,
    positions [B, T_q] -> [B, H_q, T_q, d]
    """
    _check_ids(block_ids, k.shape[2], block_size)
    if q.shape[2] == 1:
        return _decode_step(q, k, v, block_ids, positions, block_size, scale)
    group, n_tokens = q.shape[1] // k.shape[1], k.shape[2]
    n_blocks = -(-n_tokens // block_size)
    out = torch.empty_like(q)
    key_index = torch.arange(n_tokens, device=q.device)
    for part in query_slices(q.shape[2], q.shape[0] * q.shape[1] * n_tokens):
        chosen = block_mask(block_ids[:, :, part], n_blocks)  # [B, H, t, N]
        allowed = chosen.repeat_interleave(block_size, -1)[..., :n_tokens]  # [B, H, t, T]
        allowed = allowed & (key_index <= positions[:, None, part, None])
        out[:, :, part] = scaled_dot_product_attention(
            q[:, :, part], k, v, attn_mask=allowed.repeat_interleave(group, 1), scale=scale, enable_gqa=True
        )
    return out


def block_mass(
    q: Tensor, k: Tensor, positions: Tensor, *, block_size: int, scale: float | None = None
) -> Tensor:
    """True attention mass of every block: softmax summed over its tokens, mean over the G heads.

    q [B, H_q, T_q, d], k [B, H, T, d], positions [B, T_q] -> [B, H, T_q, N] float32, rows sum to 1
    """
    batch, n_kv, n_tokens, dim = k.shape
    group, n_blocks = q.shape[1] // n_kv, -(-n_tokens // block_size)
    scale = dim**-0.5 if scale is None else scale
    key_index = torch.arange(n_tokens, device=q.device)
    mass = torch.empty(batch, n_kv, q.shape[2], n_blocks, device=q.device)
    for part in query_slices(q.shape[2], batch * q.shape[1] * n_tokens):
        rows = q[:, :, part].float().reshape(batch, n_kv, group, -1, dim)  # [B, H, G, t, d]
        logits = torch.einsum("bhgtd,bhsd->bhgts", rows, k.float()) * scale
        future = key_index > positions[:, None, None, part, None]  # [B, 1, 1, t, T]
        weights = logits.masked_fill_(future, float("-inf")).softmax(-1).mean(2)  # [B, H, t, T]
        weights = torch.nn.functional.pad(weights, (0, n_blocks * block_size - n_tokens))
        mass[:, :, part] = weights.unflatten(-1, (n_blocks, block_size)).sum(-1)
    return mass


def _decode_step(q, k, v, block_ids, positions, block_size, scale):
    """One query per sequence: gather its blocks instead of masking all tokens."""
    n_kv, n_tokens, dim = k.shape[1:]
    ids = block_ids[:, :, 0]  # [B, H, k]
    token = ids[..., None] * block_size + torch.arange(block_size, device=q.device)  # [B, H, k, S]
    token = token.flatten(2)  # [B, H, k*S]
    allowed = (token >= 0) & (token <= positions[:, :, None]) & (ids >= 0).repeat_interleave(block_size, -1)
    index = token.clamp(0, n_tokens - 1)[..., None].expand(-1, -1, -1, dim)  # [B, H, k*S, d]
    group = q.shape[1] // n_kv
    return scaled_dot_product_attention(
        q, k.gather(2, index), v.gather(2, index), attn_mask=allowed.repeat_interleave(group, 1)[:, :, None],
        scale=scale, enable_gqa=True,
    )  # fmt: skip


def _check_ids(block_ids: Tensor, n_tokens: int, block_size: int) -> None:
    if block_ids.numel() and int(block_ids.max()) * block_size >= n_tokens:
        raise ValueError(
            f"block {int(block_ids.max())} starts after the last of {n_tokens} keys (block_size "
            f"{block_size}); the list was made for a longer sequence or another block size"
        )
