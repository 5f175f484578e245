"""Residual sum and RMSNorm in one pass: what stands between any two matrix products of a decoder.

Reference: ``hidden + scale * update`` and ``torch.nn.functional.rms_norm``. One program a row: the row is
read once, summed, rounded to its dtype as the next residual, and normalised in float32 from what was rounded.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda.kernels import backend
from sparda.kernels.backend import tl, triton

ROW_WARPS = 8  # at most; 512 elements a warp


@triton.jit
def add_norm_kernel(
    hidden, update, gain, hidden_out, normed, scale, eps, DIM: tl.constexpr, DP: tl.constexpr,
    HAS_UPDATE: tl.constexpr, SCALED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * DIM
    lane = tl.arange(0, DP)
    real = lane < DIM
    weight = tl.load(gain + lane, mask=real, other=0.0).to(tl.float32)  # fixed: needs no earlier kernel
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    x = tl.load(hidden + row + lane, mask=real, other=0.0)
    if HAS_UPDATE:
        more = tl.load(update + row + lane, mask=real, other=0.0).to(tl.float32)
        if SCALED:  # rounded like the product of two torch operations
            more = (more * scale).to(x.dtype).to(tl.float32)
        x = (x.to(tl.float32) + more).to(x.dtype)
        tl.store(hidden_out + row + lane, x, mask=real)
    x = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / DIM + eps)
    tl.store(normed + row + lane, (x * inverse * weight).to(normed.dtype.element_ty), mask=real)


def add_norm(
    hidden: Tensor, update: Tensor | None, gain: Tensor, eps: float, scale: float = 1.0, *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Add a branch to the residual stream and normalise the sum.

    hidden [.., D]; update [.., D] of the same dtype, or None: nothing is added; gain [D]
    out: (hidden_new, normed) to write; its first may be ``hidden`` itself, and is not used without an update
    returns hidden_new = hidden + scale * update (``hidden`` itself without an update), and
    normed = gain * hidden_new / sqrt(mean(hidden_new^2) + eps), both [.., D] in the dtype of hidden
    """
    where = backend.choose(hidden, update, gain, *(out or ()))
    shape, dtype = tuple(hidden.shape), hidden.dtype
    backend.expect("gain", gain, (None,), backend.FLOATS)
    backend.expect("hidden", hidden, (*shape[:-1], len(gain)), backend.FLOATS)
    if update is not None:
        backend.expect("update", update, shape, dtype)
    if out is None:
        out = (hidden if update is None else torch.empty_like(hidden), torch.empty_like(hidden))
    new, normed = (hidden if update is None else out[0]), out[1]
    backend.expect("out[0]", new, shape, dtype)
    backend.expect("out[1]", normed, shape, dtype)
    if where == "torch":
        if update is not None:
            torch.add(hidden, update if scale == 1.0 else scale * update, out=new)
        return new, normed.copy_(torch.nn.functional.rms_norm(new, (len(gain),), gain.to(dtype), eps))
    if not hidden.numel():
        return new, normed
    chained = backend.can_chain(hidden.device)
    padded = backend.next_power_of_two(len(gain))
    add_norm_kernel[(hidden.numel() // len(gain),)](
        hidden, hidden if update is None else update, gain, new, normed, scale, eps, DIM=len(gain), DP=padded,
        HAS_UPDATE=update is not None, SCALED=scale != 1.0, CHAINED=chained,
        num_warps=min(ROW_WARPS, max(1, padded // 512)), **backend.launch_early(chained),
    )  # fmt: skip
    return new, normed
