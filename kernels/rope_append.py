"""One token enters a layer: rotate Q, K and the Forecast; append K and V; finish a window and a block.

Reference: ``cache.rotate`` and ``cache.append``. One program per (sequence, KV head) does everything that
the head needs, so that nothing waits for another program: the ring of the last keys gives the compressed key
whose window ends here, and a block that fills is copied to its place in pinned host memory. What was just
computed is taken from registers, not read back.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import cache as reference
from sparda.blocks import count_windows
from sparda.cache import LayerCache
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.spec import Sparsity


@triton.jit
def _rotated(low, high, cos, sin):
    low, high = low.to(tl.float32), high.to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _rotate_rows(x, out, rows, some, cos, sin, D: tl.constexpr):
    """Rotate rows [M] of x into out, both [.., D]."""
    lane = tl.arange(0, D // 2)
    at = rows[:, None] * D + lane
    low = tl.load(x + at, mask=some[:, None], other=0.0)
    high = tl.load(x + at + D // 2, mask=some[:, None], other=0.0)
    low, high = _rotated(low, high, cos, sin)
    tl.store(out + at, low, mask=some[:, None])
    tl.store(out + at + D // 2, high, mask=some[:, None])


@triton.jit
def _average(ring, target, place, low, high, D: tl.constexpr, WINDOW: tl.constexpr):
    """Mean of the ring; the key at ``place`` comes from registers."""
    line, half = tl.arange(0, WINDOW), tl.arange(0, D // 2)
    at = line[:, None] * D + half
    fresh = (line == place)[:, None]
    lows = tl.where(fresh, low[None, :], tl.load(ring + at)).to(tl.float32)
    highs = tl.where(fresh, high[None, :], tl.load(ring + at + D // 2)).to(tl.float32)
    tl.store(target + half, tl.sum(lows, 0) / WINDOW)
    tl.store(target + D // 2 + half, tl.sum(highs, 0) / WINDOW)


@triton.jit
def _copy_block(block, host, row, new, lane, S: tl.constexpr, D: tl.constexpr):
    """Copy S rows; row ``row`` comes from ``new``, which other threads may not see in memory yet."""
    line = tl.arange(0, S)
    at = line[:, None] * D + lane
    tl.store(host + at, tl.where((line == row)[:, None], new, tl.load(block + at)))


@triton.jit
def append_kernel(
    q, k, v, f, q_out, f_out, cos, sin, positions, tail_slot, slots, ring, compressed, host,
    q_step, k_step, v_step, f_step, n_slots, n_blocks, n_windows,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, TO_HOST: tl.constexpr, HAS_F: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // HEADS, bh % HEADS
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    t = tl.load(positions + b).to(tl.int64)
    half, lane = tl.arange(0, D // 2), tl.arange(0, D)
    cosine = tl.load(cos + t * (D // 2) + half)  # [D/2] float32
    sine = tl.load(sin + t * (D // 2) + half)

    head = tl.arange(0, GP)
    _rotate_rows(q + b * q_step + h * G * D, q_out + bh * G * D, head, head < G, cosine, sine, D)
    if HAS_F:
        only = tl.arange(0, 1)
        _rotate_rows(f + b * f_step + h * D, f_out + bh * D, only, only == 0, cosine, sine, D)

    key = k + b * k_step + h * D
    low, high = _rotated(tl.load(key + half), tl.load(key + D // 2 + half), cosine, sine)
    kind = slots.dtype.element_ty
    low, high = low.to(kind), high.to(kind)
    value = tl.load(v + b * v_step + h * D + lane)
    row = t % S
    slot = tl.load(tail_slot + bh).to(tl.int64)
    block = slots + (bh * n_slots + slot) * 2 * S * D
    if slot >= 0:
        tl.store(block + row * D + half, low)
        tl.store(block + row * D + D // 2 + half, high)
        tl.store(block + (S + row) * D + lane, value)

    ring += bh * WINDOW * D
    place = t % WINDOW
    first = t + 1 - WINDOW  # of the window that ends here
    if (first >= 0) & (first % STRIDE == 0) & (first // STRIDE < n_windows):
        target = compressed + (bh * n_windows + first // STRIDE) * D
        _average(ring, target, place, low, high, D, WINDOW)
    tl.store(ring + place * D + half, low)
    tl.store(ring + place * D + D // 2 + half, high)

    if TO_HOST:  # noqa: SIM102 (the outer branch is the compiler's)
        if (row == S - 1) & (slot >= 0) & (t // S < n_blocks):
            home = host + (bh * n_blocks + t // S) * 2 * S * D
            _copy_block(block, home, row, low[None, :], half, S, D)
            _copy_block(block + D // 2, home + D // 2, row, high[None, :], half, S, D)
            _copy_block(block + S * D, home + S * D, row, value[None, :], lane, S, D)


def rope_append(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor | None, cos: Tensor, sin: Tensor, positions: Tensor,
    tail_slot: Tensor, cache: LayerCache, sparsity: Sparsity,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Rotate one token's projections, and write its key and value into the layer's cache.

    q [B, H_q, d]; k, v and the Forecast f (or None) [B, H, d]: they may be slices of one fused projection
    cos, sin [T_max, d/2] float32; positions [B], the token's index; tail_slot [B, H] int32 as
    ``topk_difference`` gives it; ``cache`` changes in place
    returns rotated q [B, H_q, d] and f [B, H, d]
    """
    where = backend.choose(
        q, k, v, f, cos, sin, positions, tail_slot, cache.slots, cache.ring, cache.compressed
    )
    batch, heads, dim, group = _check(q, k, v, f, cos, sin, positions, tail_slot, cache, sparsity, where)
    if where == "torch":
        turn = cos[positions][:, None], sin[positions][:, None]  # [B, 1, d/2]
        reference.append(reference.rotate(k, *turn), v, positions, tail_slot, cache, sparsity)
        return reference.rotate(q, *turn), None if f is None else reference.rotate(f, *turn)
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    f_out = None if f is None else torch.empty(f.shape, dtype=f.dtype, device=f.device)
    host, chained = cache.host, backend.can_chain(q.device)
    append_kernel[(batch * heads,)](
        q, k, v, f if f is not None else q, q_out, f_out if f_out is not None else q_out, cos, sin, positions,
        tail_slot, cache.slots, cache.ring, cache.compressed, host if host is not None else cache.slots,
        q.stride(0), k.stride(0), v.stride(0), f.stride(0) if f is not None else 0, cache.slots.shape[2],
        host.shape[2] if host is not None else 0, cache.compressed.shape[2], HEADS=heads, G=group,
        GP=backend.next_power_of_two(group), D=dim, S=sparsity.block_size, WINDOW=sparsity.window,
        STRIDE=sparsity.stride, TO_HOST=host is not None, HAS_F=f is not None, CHAINED=chained,
        num_warps=4, **backend.launch_early(chained),
    )  # fmt: skip
    return q_out, f_out


def _check(q, k, v, f, cos, sin, positions, tail_slot, cache: LayerCache, sparsity: Sparsity, where: str):
    backend.expect("slots", cache.slots, (None, None, None, 2, sparsity.block_size, None), backend.FLOATS)
    batch, heads, _, _, size, dim = cache.slots.shape
    kind = cache.slots.dtype
    if q.dim() != 3 or q.shape[1] % heads:
        raise ValueError(f"q must be [B, H_q, d] with H_q a multiple of {heads}, got shape {list(q.shape)}")
    rows = {"q": (q, q.shape[1]), "k": (k, heads), "v": (v, heads)} | ({} if f is None else {"f": (f, heads)})
    for name, (x, n) in rows.items():
        backend.expect(name, x, (batch, n, dim), kind, contiguous=False)
        if where != "torch" and (x.stride(1), x.stride(2)) != (dim, 1):
            raise ValueError(
                f"{name} must have the heads of a sequence side by side, got strides {x.stride()}; "
                "call .contiguous()"
            )
    if where != "torch":
        backend.expect_power_of_two(head_dim=dim, block_size=size, window=sparsity.window)
    backend.expect("cos", cos, (None, dim // 2), torch.float32)
    backend.expect("sin", sin, tuple(cos.shape), torch.float32)
    backend.expect("positions", positions, (batch,), (torch.int32, torch.int64))
    backend.expect("tail_slot", tail_slot, (batch, heads), torch.int32)
    backend.expect("ring", cache.ring, (batch, heads, sparsity.window, dim), kind)
    backend.expect("compressed", cache.compressed, (batch, heads, None, dim), kind)
    if cache.host is not None:
        _check_host(cache.host, q.device, (batch, heads, None, 2, size, dim), kind)
    if backend.check_values(positions) and batch:
        _check_ranges(positions, tail_slot, cos.shape[0], cache, sparsity)
    return batch, heads, dim, q.shape[1] // heads


def _check_host(host: Tensor, device: torch.device, shape, kind) -> None:
    backend.expect("host", host, shape, kind)
    if host.device.type != "cpu":
        raise ValueError(f"host must be a CPU tensor in pinned memory, got one on {host.device}")
    if device.type == "cuda" and not host.is_pinned():
        raise ValueError("host must be in pinned memory, so that the GPU can write it; use .pin_memory()")


def _check_ranges(positions, tail_slot, n_angles: int, cache: LayerCache, sparsity: Sparsity) -> None:
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= n_angles:
        raise ValueError(f"positions {low}..{high} leave the rotary table of {n_angles} rows; make it longer")
    if not -1 <= int(tail_slot.min()) <= int(tail_slot.max()) < cache.slots.shape[2]:
        raise ValueError(f"tail_slot must lie in -1..{cache.slots.shape[2] - 1}: use topk_difference's")
    if cache.host is not None and high // sparsity.block_size >= cache.host.shape[2]:
        raise ValueError(
            f"block {high // sparsity.block_size} has no place among the host's {cache.host.shape[2]}; "
            "allocate the host store for the longest sequence"
        )
    n_windows = count_windows(high + 1, sparsity)
    if n_windows > cache.compressed.shape[2]:
        raise ValueError(
            f"position {high} completes compressed key {n_windows}, but there is room for "
            f"{cache.compressed.shape[2]}; allocate compressed for the longest sequence"
        )
