"""Compressed keys: the mean of every complete window of post-RoPE keys.

Reference: ``blocks.compress_keys``. Prompts are compressed here; in decode the window that a token completes
is averaged by ``rope_append``, which already holds its keys.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import blocks
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.spec import Sparsity


@triton.jit
def compress_kernel(
    keys, out, n_tokens, n_windows, capacity, D: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
    NW: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    w = tl.program_id(0) * NW + tl.arange(0, NW)
    lane = tl.arange(0, D)
    total = tl.zeros((NW, D), tl.float32)
    rows = keys + (bh * n_tokens + w[:, None].to(tl.int64) * STRIDE) * D + lane
    for i in tl.static_range(WINDOW):
        total += tl.load(rows + i * D, mask=w[:, None] < n_windows, other=0.0).to(tl.float32)
    where = out + (bh * capacity + w[:, None]) * D + lane
    tl.store(where, total / WINDOW, mask=w[:, None] < n_windows)


def compress_keys(keys: Tensor, sparsity: Sparsity, *, out: Tensor | None = None) -> Tensor:
    """Average every complete window.

    keys [B, H, T, d]; out [B, H, capacity, d] in the dtype of keys, of which the first N_c rows are written
    returns the N_c rows [B, H, N_c, d] (a view of ``out`` if it was given), averaged in float32
    """
    where = backend.choose(keys, out)
    backend.expect("keys", keys, (None, None, None, None), backend.FLOATS)
    batch, heads, n_tokens, dim = keys.shape
    n_windows = blocks.count_windows(n_tokens, sparsity)
    if out is None:
        out = torch.empty(batch, heads, n_windows, dim, dtype=keys.dtype, device=keys.device)
    backend.expect("out", out, (batch, heads, None, dim), keys.dtype)
    if out.shape[2] < n_windows:
        raise ValueError(f"out holds {out.shape[2]} compressed keys, but {n_tokens} tokens give {n_windows}")
    view = out[:, :, :n_windows]
    if where == "torch" or n_windows == 0:
        return view.copy_(blocks.compress_keys(keys, sparsity))
    backend.expect_power_of_two(head_dim=dim)
    nw = 16
    compress_kernel[(-(-n_windows // nw), batch * heads)](
        keys, out, n_tokens, n_windows, out.shape[2], D=dim, WINDOW=sparsity.window, STRIDE=sparsity.stride,
        NW=nw, num_warps=4,
    )  # fmt: skip
    return view
