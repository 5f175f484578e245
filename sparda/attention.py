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

# a streamed step holds at most this many float32 elements per temporary (256 MiB), and this many queries, so
# that early queries do not pay for keys that come after them
STREAM_ELEMENTS = 2**26
STREAM_QUERIES = 256


def query_slices(n_queries: int, elements_per_query: int) -> Iterator[slice]:
    """Cut the query axis so that a temporary of ``elements_per_query`` each stays under the limit."""
    step = max(1, min(STREAM_QUERIES, STREAM_ELEMENTS // max(1, elements_per_query)))
    for start in range(0, n_queries, step):
        yield slice(start, min(start + step, n_queries))


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, *, scale: float | None = None
) -> Tensor:
    """Causal softmax attention under GQA, over every token.

    q [B, H_q, T_q, d], k and v [B, H, T, d], positions [B, T_q] -> [B, H_q, T_q, d]
    """
    out = torch.empty_like(q)
    for part, seen in _causal_parts(q, k, positions):
        causal = torch.arange(seen, device=q.device) <= positions[:, None, part, None]  # [B, 1, t, seen]
        out[:, :, part] = scaled_dot_product_attention(
            q[:, :, part], k[:, :, :seen], v[:, :, :seen], attn_mask=causal, scale=scale, enable_gqa=True
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
    group, n_blocks = q.shape[1] // k.shape[1], -(-k.shape[2] // block_size)
    out = torch.empty_like(q)
    for part, seen in _causal_parts(q, k, positions):
        chosen = block_mask(block_ids[:, :, part], n_blocks)  # [B, H, t, N]
        allowed = chosen.repeat_interleave(block_size, -1)[..., :seen]  # [B, H, t, seen]
        allowed = allowed & (torch.arange(seen, device=q.device) <= positions[:, None, part, None])
        allowed = allowed.repeat_interleave(group, 1)  # [B, H_q, t, seen]
        out[:, :, part] = scaled_dot_product_attention(
            q[:, :, part], k[:, :, :seen], v[:, :, :seen], attn_mask=allowed, scale=scale, enable_gqa=True
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
    mass = q.new_zeros(batch, n_kv, q.shape[2], n_blocks, dtype=torch.float32)
    for part, seen in _causal_parts(q, k, positions):
        rows = q[:, :, part].float().reshape(batch, n_kv, group, -1, dim)  # [B, H, G, t, d]
        logits = torch.einsum("bhgtd,bhsd->bhgts", rows, k[:, :, :seen].float())
        logits = logits * (dim**-0.5 if scale is None else scale)
        future = torch.arange(seen, device=q.device) > positions[:, None, None, part, None]
        weights = logits.masked_fill_(future, float("-inf")).softmax(-1).mean(2)  # [B, H, t, seen]
        weights = torch.nn.functional.pad(weights, (0, -seen % block_size)).unflatten(-1, (-1, block_size))
        mass[:, :, part, : weights.shape[-2]] = weights.sum(-1)
    return mass


def _causal_parts(q: Tensor, k: Tensor, positions: Tensor) -> Iterator[tuple[slice, int]]:
    """Parts of the query axis, each with the number of keys that its last query may see."""
    for part in query_slices(q.shape[2], q.shape[0] * q.shape[1] * k.shape[2]):
        yield part, min(k.shape[2], int(positions[:, part].max()) + 1)


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
