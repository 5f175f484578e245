"""Rotary embedding of a prompt's projections, from [T, heads, d] to [heads, T, d] in one pass.

Reference: ``cache.rotate``. In decode ``rope_append`` does it, together with all else that a token needs.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import cache as reference
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.kernels.rope_append import _rotated

TOKENS = 32  # tokens of a program


@triton.jit
def rotate_kernel(x, cos, sin, out, n_tokens, token_step, head_step, D: tl.constexpr, TOKENS: tl.constexpr):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    half = tl.arange(0, D // 2)
    real = (token < n_tokens)[:, None]
    turn = token[:, None] * (D // 2) + half
    cosine = tl.load(cos + turn, mask=real, other=0.0)
    sine = tl.load(sin + turn, mask=real, other=0.0)
    row = x + token[:, None].to(tl.int64) * token_step + head * head_step + half
    low = tl.load(row, mask=real, other=0.0)
    high = tl.load(row + D // 2, mask=real, other=0.0)
    low, high = _rotated(low, high, cosine, sine)
    target = out + (head * n_tokens + token[:, None]) * D + half
    tl.store(target, low.to(out.dtype.element_ty), mask=real)
    tl.store(target + D // 2, high.to(out.dtype.element_ty), mask=real)


def rotate_prompt(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate and transpose x [T, n, d], maybe a slice of a fused projection; cos and sin [T, d/2] float32.

    returns [n, T, d] contiguous in the dtype of x
    """
    where = backend.choose(x, cos, sin)
    if x.dim() != 3:
        raise ValueError(f"x must be [T, heads, d], got {list(x.shape)}")
    n_tokens, n_heads, dim = x.shape
    for name, table in (("cos", cos), ("sin", sin)):
        backend.expect(name, table, (n_tokens, dim // 2), torch.float32)
    if where == "torch":
        return reference.rotate(x.transpose(0, 1), cos, sin).contiguous()
    backend.expect_power_of_two(head_dim=dim)
    if x.stride(2) != 1:
        raise ValueError(f"the channels of x must lie side by side, got strides {x.stride()}; copy it first")
    out = torch.empty(n_heads, n_tokens, dim, dtype=x.dtype, device=x.device)
    if out.numel():
        rotate_kernel[(-(-n_tokens // TOKENS), n_heads)](
            x, cos, sin, out, n_tokens, x.stride(0), x.stride(1), D=dim, TOKENS=TOKENS, num_warps=4
        )
    return out
