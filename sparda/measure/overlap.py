"""What a transfer and a computation cost each other, with one of them always longer than the timed other.

    slowdown      compute is timed while a longer transfer runs beside it, from before to after
    transfer_us   the transfer is timed while longer compute runs beside it

A short transfer beside long compute shows a small slow-down only because it is soon over; so each side is
measured inside the other, and a sample whose windows do not nest is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sparda.measure import bench

SETTLE = 60_000  # clock cycles, about 30 us, between the start of one side and the timed start of the other
REPEATS = 9


@dataclass(frozen=True)
class Load:
    """Compute to disturb: a captured graph and its time alone, us."""

    graph: torch.cuda.CUDAGraph
    alone_us: float
    calls: list  # they own the tensors whose addresses the graph holds


def ffn(batch: int = 16, hidden: int = 4096, width: int = 32_768, calls: int = 32) -> Load:
    """Skinny decode matmuls over rotating weights: gate and up of MiniCPM4.1-8B's FFN, about 75 us each."""
    weights = [torch.randn(width, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    x = torch.randn(batch, hidden, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(batch, width, device="cuda", dtype=torch.bfloat16)
    return _load([lambda i=i: torch.matmul(x, weights[i % 4].t(), out=out) for i in range(calls)])


def attention(batch: int = 16, calls: int = 48) -> Load:
    """Block-sparse decode attention over 96 resident slots of 64 tokens, 32 query and 2 KV heads, d 128."""
    from sparda.kernels import sparse_decode

    device = torch.device("cuda", torch.cuda.current_device())
    slots = [torch.randn(batch, 2, 96, 2, 64, 128, device=device, dtype=torch.bfloat16) for _ in range(4)]
    q = torch.randn(batch, 32, 128, device=device, dtype=torch.bfloat16)
    ids = torch.arange(96, dtype=torch.int32, device=device).expand(batch, 2, 96).contiguous()
    lengths = torch.full((batch,), 96 * 64, dtype=torch.int64, device=device)
    return _load(
        [lambda i=i: sparse_decode(q, slots[i % 4], ids, ids, lengths, 128**-0.5) for i in range(calls)]
    )


def _load(calls: list[Callable]) -> Load:
    graph = bench.capture(calls)
    graph.replay()
    torch.cuda.synchronize()
    times = sorted(bench.elapsed_us(graph.replay) for _ in range(9))
    return Load(graph, times[4], calls)


def loads() -> dict[str, Load]:
    """The compute of a layer that runs beside a transfer."""
    return {"ffn": ffn(), "attention": attention()}


def slowdown(load: Load, long_transfer: Callable[[], object]) -> float:
    """Time of the load beside a transfer that outlasts it, over its time alone."""
    return _median(lambda: _nested(long_transfer, load.graph.replay)) / load.alone_us


def transfer_us(load: Load, short_transfer: Callable[[], object]) -> float:
    """Time of a transfer beside a load that outlasts it; the load is repeated to be long enough."""
    alone = min(bench.elapsed_us(short_transfer) for _ in range(3))
    repeats = 2 + int(2 * alone / load.alone_us)

    def outer() -> None:
        for _ in range(repeats):
            load.graph.replay()

    return _median(lambda: _nested(outer, short_transfer, inner_is_transfer=True))


def _median(sample: Callable[[], float | None]) -> float:
    taken = sorted(s for s in (sample() for _ in range(REPEATS)) if s is not None)
    return taken[len(taken) // 2] if taken else float("nan")


def _nested(
    outer: Callable[[], object], inner: Callable[[], object], *, inner_is_transfer: bool = False
) -> float | None:
    """us of ``inner`` while ``outer`` runs on another stream; None unless outer ended last.

    The transfer's stream has the higher priority, as in a decode step.
    """
    plain, urgent = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    around, within = (plain, urgent) if inner_is_transfer else (urgent, plain)
    begun, start, end, over = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    torch.cuda.synchronize()
    with torch.cuda.stream(around):
        begun.record()
        outer()
        over.record()
    with torch.cuda.stream(within):
        within.wait_event(begun)
        torch.cuda._sleep(SETTLE)
        start.record()
        inner()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) if end.elapsed_time(over) > 0 else None
