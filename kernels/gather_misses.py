"""Fetch the missing blocks over the link: a few CTAs read pinned host memory through its GPU address.

    runs of the host store --src-->  16-byte loads over PCIe  --dst--> slots on the GPU

A miss is one contiguous run of 2 * S * d elements, K and V together, in the store as in the slots; its bytes
are copied as int32 words, whatever their dtype. Runs are cut into segments, and the CTAs take the segments in
turn: a short list then keeps every CTA busy, and neighbours read adjacent memory. The loop is pipelined: a
CTA keeps STAGES segments in flight as asynchronous copies into its shared memory, so a few CTAs have enough
bytes under way to fill the link. Loads into registers need twice as many, or 16 warps each.

Triton takes the pinned tensor itself: the launcher asks the driver for the address that the GPU uses.

Tried on an H200 without gain: prefetching by hand in registers, cache and eviction hints, volatile loads,
bulk tensor copies (TMA). Beside a matmul that saturates GPU memory, every form of loads by multiprocessors
loses a part of the link that the copy engine keeps; data/measured holds the curves.
"""

from __future__ import annotations

from torch import Tensor

from sparda.kernels.backend import check_values, choose, expect, expect_power_of_two, tl, triton
from sparda.kernels.host_memory import expect_reachable

SEGMENT_BYTES = 4096  # what one CTA asks for at a time; it divides every run from 4 KiB up
STAGES = 8  # segments in flight per CTA
N_CTAS = 8
NUM_WARPS = 4


def gather_misses_reference(host: Tensor, slots: Tensor, src: Tensor, dst: Tensor, count: Tensor) -> Tensor:
    """slots[dst[i]] = host[src[i]] for the first ``count`` misses, both seen as lists of runs."""
    run = host.shape[-3:]
    n = int(count)
    slots.view(-1, *run)[dst[:n].long()] = host.view(-1, *run)[src[:n].long()]
    return slots


@triton.jit
def copy_runs(
    host, slots, src, dst, n_misses, first, step,
    RUN: tl.constexpr, SEGMENT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Copy segments first, first + step, ... of a miss list; RUN and SEGMENT in int32 words."""
    PER_RUN: tl.constexpr = RUN // SEGMENT
    lane = tl.arange(0, SEGMENT)
    for here in tl.range(first, n_misses * PER_RUN, step, num_stages=STAGES):
        run = tl.load(src + here // PER_RUN).to(tl.int64)
        slot = tl.load(dst + here // PER_RUN).to(tl.int64)
        within = (here % PER_RUN) * SEGMENT + lane
        tl.store(slots + slot * RUN + within, tl.load(host + run * RUN + within))


@triton.jit
def gather_misses_kernel(
    host, slots, src, dst, count, RUN: tl.constexpr, SEGMENT: tl.constexpr, STAGES: tl.constexpr
):
    cta, n_ctas = tl.program_id(0), tl.num_programs(0)
    copy_runs(host, slots, src, dst, tl.load(count), cta, n_ctas, RUN, SEGMENT, STAGES)


def gather_misses(
    host: Tensor,
    slots: Tensor,
    src: Tensor,
    dst: Tensor,
    count: Tensor,
    *,
    n_ctas: int = N_CTAS,
    num_warps: int = NUM_WARPS,
    segment_bytes: int = SEGMENT_BYTES,
    stages: int = STAGES,
) -> Tensor:
    """Copy the first ``count`` misses from the host store into their slots, in place; return slots.

    host  : [B, H, N, 2, S, d] pinned when slots are on a GPU; may exceed 4 GiB
    slots : [B, H, C, 2, S, d] same dtype
    src   : [M] int32, run index (b * H + h) * N + block of each miss
    dst   : [M] int32, run index (b * H + h) * C + slot
    count : [1] int32 on the device of slots: the host never needs to know it
    n_ctas, num_warps, segment_bytes, stages : n_ctas * segment_bytes * stages bytes are in flight at once;
            sparda.measure.transfer tunes them

    Nothing here waits for the GPU; a CUDA graph can hold the call. Raises ValueError or TypeError for a store
    that the GPU cannot read, other layouts, and ids out of range (checked on CPU, or with SPARDA_CHECK=1).
    """
    backend = choose(slots, src, dst, count)
    check_transfer(host, slots, src, dst, count)
    if min(n_ctas, stages) < 1:
        raise ValueError(f"n_ctas and stages must be at least 1, got {n_ctas} and {stages}")
    if backend == "torch":
        return gather_misses_reference(host, slots, src, dst, count)
    run, segment = run_words(slots), segment_words(slots, segment_bytes)
    gather_misses_kernel[(n_ctas,)](
        as_words(host), as_words(slots), src, dst, count,
        RUN=run, SEGMENT=segment, STAGES=stages, num_warps=num_warps,
    )  # fmt: skip
    return slots


def check_transfer(host: Tensor, slots: Tensor, src: Tensor, dst: Tensor, count: Tensor) -> None:
    """Refuse what a transfer would copy wrongly: see gather_misses."""
    import torch

    batch, heads, n_blocks = host.shape[:3] if host.dim() == 6 else (None, None, None)
    expect("slots", slots, (batch, heads, None, 2, None, None), slots.dtype, contiguous=True)
    expect("host", host, (batch, heads, n_blocks, *slots.shape[3:]), slots.dtype, contiguous=True)
    expect("src", src, (None,), torch.int32)
    expect("dst", dst, tuple(src.shape), torch.int32)
    expect("count", count, (1,), torch.int32)
    expect_reachable("host", host, slots.device)
    if choose(slots) != "torch":
        expect_power_of_two(block_size=slots.shape[4], head_dim=slots.shape[5])
    if not check_values(count):
        return
    n = int(count)
    if not 0 <= n <= src.numel():
        raise ValueError(f"count is {n}, but the list holds {src.numel()} misses; clear it before each step")
    for name, ids, store in (("src", src[:n], host), ("dst", dst[:n], slots)):
        runs = store.shape[0] * store.shape[1] * store.shape[2]
        if n and not 0 <= int(ids.min()) <= int(ids.max()) < runs:
            found = f"{int(ids.min())}..{int(ids.max())}"
            raise ValueError(f"{name} holds run indices {found}; the store has runs 0..{runs - 1}")
    if dst[:n].unique().numel() != n:
        raise ValueError(
            "dst names a run twice: two misses would race for one slot; use topk_difference's list"
        )


def run_words(slots: Tensor) -> int:
    """int32 words of one run: 2 * S * d elements."""
    return slots[0, 0, 0].numel() * slots.element_size() // 4


def segment_words(slots: Tensor, segment_bytes: int) -> int:
    """int32 words of one segment; at most a run."""
    expect_power_of_two(segment_bytes=segment_bytes)
    if segment_bytes < 512:
        raise ValueError(f"segment_bytes must be at least 512 (one 16-byte load a lane), got {segment_bytes}")
    return min(segment_bytes // 4, run_words(slots))


def as_words(store: Tensor) -> Tensor:
    """The same memory as int32, so that any dtype is copied bit by bit."""
    import torch

    return store.view(torch.int32)
