"""The time, written into memory in stream order: what a trace inside a CUDA graph is made of.

    stamp      buffer[slot] = now, when everything before it on the stream has ended
    tick_ns    how coarsely that clock ticks

A GPU's global timer counts ns, but some GPUs renew it only every 32 ns, about 1 us, or 32 us on old ones; a
span shorter than a tick may read 0. Kernels of one GPU read the same timer, so stamps of two streams compare.
CPU tensors take ``time.perf_counter_ns``, the interpreter too: it knows no GPU clock.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from sparda.kernels.backend import choose, expect, tl, triton
from sparda.kernels.doorbell import now_ns

TICKS = 32  # how many ticks tick_ns looks at


@triton.jit
def stamp_kernel(buffer, slot):
    tl.store(buffer + slot, now_ns())


@triton.jit
def ticks_kernel(buffer, N: tl.constexpr):
    """Write down each new value of the timer, N of them: the timer never stops, so this ends."""
    last = now_ns()
    for i in range(N):
        now = now_ns()
        while now == last:
            now = now_ns()
        tl.store(buffer + i, now)
        last = now


def stamp(buffer: Tensor, slot: int) -> None:
    """Store the time in ns into ``buffer[slot]``, in order with the current stream.

    buffer : [n] int64; its clock has no fixed zero, so only differences mean something

    One thread, no synchronisation: it can be captured in a CUDA graph, where every replay stamps anew.
    Triton compiles a variant each for slot 1, for multiples of 16 and for the rest.
    Raises ValueError for a slot outside the buffer or another shape, TypeError for another dtype.
    """
    expect("buffer", buffer, (None,), torch.int64)
    if not 0 <= slot < len(buffer):
        more = "; make the buffer longer" if slot > 0 else ""
        raise ValueError(f"slot must lie in 0..{len(buffer) - 1}, got {slot}{more}")
    if buffer.is_cuda and choose(buffer) == "cuda":
        stamp_kernel[(1,)](buffer, slot, num_warps=1)
    else:
        buffer[slot] = time.perf_counter_ns()


def tick_ns(device: torch.device | str) -> float:
    """Measured resolution of the clock behind ``stamp``, in ns: median step between two values that differ.

    A clock finer than one look at it reads as the time of a look. Waits for the GPU.
    """
    seen = torch.empty(TICKS, dtype=torch.int64, device=device)
    if seen.is_cuda and choose(seen) == "cuda":
        ticks_kernel[(1,)](seen, N=TICKS, num_warps=1)
    else:
        last = time.perf_counter_ns()
        for i in range(TICKS):
            while (now := time.perf_counter_ns()) == last:
                pass
            seen[i], last = now, now
    return float(seen.diff().double().median())
