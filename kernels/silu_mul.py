"""The gate of a SwiGLU feed-forward: silu(gate) * up, from the one product that holds both.

Reference: ``torch.nn.functional.silu(gate) * up``, with silu rounded to the dtype first, as there.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda.kernels import backend
from sparda.kernels.backend import tl, triton

TILE, WARPS = 1024, 4


@triton.jit
def silu_mul_kernel(gate_up, out, width, BF: tl.constexpr, CHAINED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BF + tl.arange(0, BF)
    real = at < width
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    gate = tl.load(gate_up + row * 2 * width + at, mask=real, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=real, other=0.0)
    x = gate.to(tl.float32)
    gate = (x / (1.0 + tl.exp(-x))).to(gate.dtype)
    tl.store(out + row * width + at, gate.to(tl.float32) * up.to(tl.float32), mask=real)


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Gate one half of the features by the other.

    gate_up [.., 2F], the gate first
    returns [.., F] in the same dtype
    """
    where = backend.choose(gate_up, out)
    backend.expect("gate_up", gate_up, tuple(gate_up.shape), backend.FLOATS)
    if gate_up.dim() < 1 or gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up must be [.., 2F], gate and up side by side, got {list(gate_up.shape)}")
    width = gate_up.shape[-1] // 2
    shape = (*gate_up.shape[:-1], width)
    out = gate_up.new_empty(shape) if out is None else out
    backend.expect("out", out, shape, gate_up.dtype)
    if where == "torch":
        gate, up = gate_up.chunk(2, -1)
        return torch.mul(torch.nn.functional.silu(gate), up, out=out)
    rows = gate_up.numel() // max(1, 2 * width)
    chained = backend.can_chain(gate_up.device)
    if rows:
        silu_mul_kernel[(rows, -(-width // TILE))](
            gate_up, out, width, BF=TILE, CHAINED=chained, num_warps=WARPS, **backend.launch_early(chained)
        )
    return out
