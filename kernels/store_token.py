"""One token's key and value enter the tail slot, for a layer that chooses its blocks only after RoPE.

A selector without lookahead needs the rotated query before it knows the tail slot. So ``rope_append`` runs
first, with no slot, and leaves the rotated key in the ring; once the slot is known, this writes the rest.

Reference: ``cache.store_token``. One program per (sequence, KV head).
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import cache as reference
from sparda.cache import LayerCache
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.kernels.rope_append import _copy_block


@triton.jit
def store_kernel(
    v, positions, tail_slot, slots, ring, host, v_step, n_slots, n_blocks,
    HEADS: tl.constexpr, D: tl.constexpr, S: tl.constexpr, WINDOW: tl.constexpr, TO_HOST: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // HEADS, bh % HEADS
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    t = tl.load(positions + b).to(tl.int64)
    row, lane = t % S, tl.arange(0, D)
    slot = tl.load(tail_slot + bh).to(tl.int64)
    if slot >= 0:
        key = tl.load(ring + (bh * WINDOW + t % WINDOW) * D + lane)
        value = tl.load(v + b * v_step + h * D + lane)
        block = slots + (bh * n_slots + slot) * 2 * S * D
        tl.store(block + row * D + lane, key)
        tl.store(block + (S + row) * D + lane, value)
        if TO_HOST:  # noqa: SIM102 (the outer branch is the compiler's)
            if (row == S - 1) & (t // S < n_blocks):
                home = host + (bh * n_blocks + t // S) * 2 * S * D
                _copy_block(block, home, row, key[None, :], lane, S, D)
                _copy_block(block + S * D, home + S * D, row, value[None, :], lane, S, D)


def store_token(v: Tensor, positions: Tensor, tail_slot: Tensor, cache: LayerCache) -> None:
    """Write a token whose key is in ``cache.ring`` to its tail slot, and to the host the block that it fills.

    v [B, H, d], which may be a slice of a fused projection; positions [B], the token's index; tail_slot
    [B, H] int32 as ``topk_difference`` gives it, -1 writes nothing; ``cache`` changes in place
    """
    where = backend.choose(v, positions, tail_slot, cache.slots, cache.ring)
    backend.expect("slots", cache.slots, (None, None, None, 2, None, None), backend.FLOATS)
    batch, heads, n_slots, _, size, dim = cache.slots.shape
    backend.expect("v", v, (batch, heads, dim), cache.slots.dtype, contiguous=False)
    if where != "torch" and (v.stride(1), v.stride(2)) != (dim, 1):
        raise ValueError(
            f"v must have the heads of a sequence side by side, got strides {v.stride()}; call .contiguous()"
        )
    backend.expect("ring", cache.ring, (batch, heads, None, dim), v.dtype)
    backend.expect("positions", positions, (batch,), (torch.int32, torch.int64))
    backend.expect("tail_slot", tail_slot, (batch, heads), torch.int32)
    if where == "torch":
        reference.store_token(v, positions, tail_slot, cache)
        return
    host, chained = cache.host, backend.can_chain(v.device)
    store_kernel[(batch * heads,)](
        v, positions, tail_slot, cache.slots, cache.ring, host if host is not None else cache.slots,
        v.stride(0), n_slots, host.shape[2] if host is not None else 0, HEADS=heads, D=dim, S=size,
        WINDOW=cache.ring.shape[2], TO_HOST=host is not None, CHAINED=chained, num_warps=4,
        **backend.launch_early(chained),
    )  # fmt: skip
