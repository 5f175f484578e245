"""Dense causal attention by torch's own kernels: the baseline of every sparse one.

    flash   FLASH_ATTENTION of scaled_dot_product_attention (the baseline of the paper's speed-ups)
    cudnn   CUDNN_ATTENTION of the same, the fastest dense kernel that torch brings on a Hopper GPU
    flex    FlexAttention, compiled, with a causal block mask
    math    plain matrix products, on any device: small sizes only, it holds T x T

Nothing is computed here; sparda.attention.dense_attention is the reference (and takes any positions).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sparda.kernels import backend

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
THROUGH = (*SDPA, "flex")


def dense(q: Tensor, k: Tensor, v: Tensor, *, through: str = "flash", scale: float | None = None) -> Tensor:
    """Causal softmax attention under GQA of a whole prompt, or of the last token over all keys.

    q [B, H_q, T_q, d] with T_q = T or 1; k and v [B, H, T, d] of sequences of equal length
    through: "flash", "cudnn", "flex" or "math"
    returns [B, H_q, T_q, d]; ValueError for another T_q, another name, or flash, cudnn or flex without a GPU
    """
    if through not in THROUGH:
        raise ValueError(f"through must be one of {', '.join(THROUGH)}, got {through!r}")
    backend.expect("q", q, (k.shape[0], None, None, k.shape[3]), backend.FLOATS)
    backend.expect("k", k, tuple(k.shape), q.dtype)
    backend.expect("v", v, tuple(k.shape), q.dtype)
    if q.shape[2] not in (1, k.shape[2]):
        raise ValueError(
            f"q holds {q.shape[2]} tokens and k {k.shape[2]}: pass the whole prompt or its last token; "
            "sparda.attention.dense_attention takes queries at any positions"
        )
    if through != "math" and not q.is_cuda:
        raise ValueError(f"{through} attention needs CUDA tensors, got {q.device}; use through='math' here")
    if through == "flex":
        return _flex(q, k, v, scale)
    with sdpa_kernel(SDPA[through]):
        return scaled_dot_product_attention(
            q, k, v, is_causal=q.shape[2] > 1, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )


def _flex(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    attend = _compiled_flex()
    mask = _causal_mask(k.shape[2], q.device) if q.shape[2] > 1 else None
    return attend(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@lru_cache(maxsize=4)
def _causal_mask(n_tokens: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def causal(_batch, _head, query, key):
        return query >= key

    make = torch.compile(create_block_mask)  # eager, it would hold T x T
    return make(causal, None, None, n_tokens, n_tokens, device=str(device))
