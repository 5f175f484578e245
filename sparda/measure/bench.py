"""Time kernels on the present GPU and keep the rows: shared by every benchmark.

    sets = [make_inputs(seed) for seed in range(rotations(bytes_per_set))]
    times = time_graph([lambda s=s: kernel(*s) for s in sets])
    rows = [row("score_blocks", "b4_128k", "triton", times, n_bytes=..., flops=..., ceilings=ceilings)]
    save(rows, topic="selection")

Calls are captured in one CUDA graph and replayed: launch gaps stay small, as in a decode step. Each call gets
its own inputs, together larger than the L2 cache, so that memory is measured and not the cache. The floor of
a row is the larger of bytes over the copy rate and FLOPs over the matrix rate, both measured in the same
process. Times are us, medians over replays.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path

import torch

from sparda import provenance
from sparda.measure import tables
from sparda.measure.machine import describe_machine

GRAPH_US = 1000.0  # shortest graph that is timed: its launch costs some us
DATA = provenance.ROOT / "data" / "measured"


@dataclass(frozen=True)
class Times:
    """Microseconds of one call: median, 10th and 90th percentile over replays."""

    median_us: float
    p10_us: float
    p90_us: float


@dataclass(frozen=True)
class Ceilings:
    """Rates that this GPU reaches here and now: bytes/s (read plus written) and bf16 FLOP/s."""

    bytes_per_s: float
    flop_per_s: float

    def floor_us(self, n_bytes: float, flops: float) -> float:
        """Least time for this much work: the slower of moving the bytes and doing the arithmetic."""
        return 1e6 * max(n_bytes / self.bytes_per_s, flops / self.flop_per_s)


@dataclass(frozen=True)
class Row:
    """One measured line of kernels.csv."""

    kernel: str
    case: str
    backend: str
    median_us: float
    p10_us: float
    p90_us: float
    bytes: int
    flops: int
    floor_us: float
    ratio_to_floor: float


def need_cuda() -> torch.device:
    """Return the current GPU, or leave with a message: a CPU timing is never stored."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; the committed results are in data/measured/")
    return torch.device("cuda", torch.cuda.current_device())


def rotations(bytes_per_set: int, *, at_least: int = 2, at_most: int = 64) -> int:
    """How many input sets together exceed three times the L2 cache."""
    l2 = torch.cuda.get_device_properties(need_cuda()).L2_cache_size
    return min(at_most, max(at_least, -(-3 * l2 // max(1, bytes_per_set))))


def time_graph(
    calls: Sequence[Callable[[], object]], *, replays: int = 40, budget_s: float = 2.0, warm_up: int = 2
) -> Times:
    """Capture the calls, one after the other, in one CUDA graph; replay it and divide by their number.

    calls must not wait for the GPU. Short calls are repeated in the graph until its start no longer counts.
    Replays are cut to about ``budget_s`` seconds, at least 5.
    """
    graph, times = capture(calls, warm_up=warm_up), 1
    first = elapsed_us(graph.replay)
    if first < GRAPH_US:
        times = min(64, math.ceil(GRAPH_US / first))
        graph = capture(list(calls) * times, warm_up=0)
        first = elapsed_us(graph.replay)
    count = int(min(replays, max(5, budget_s * 1e6 / max(first, 1.0))))
    samples = torch.tensor([elapsed_us(graph.replay) for _ in range(count)], dtype=torch.float64)
    quantiles = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
    return Times(*(samples / len(calls) / times).quantile(quantiles).tolist())


def capture(calls: Sequence[Callable[[], object]], *, warm_up: int = 2) -> torch.cuda.CUDAGraph:
    """Warm up (compile, load) on a side stream, then capture all calls in one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def elapsed_us(call: Callable[[], object]) -> float:
    """Microseconds of one call on the current stream, by device events; waits for it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


@lru_cache(maxsize=1)
def ceilings() -> Ceilings:
    """Measure the copy rate (1 GiB by a kernel, read plus written) and the bf16 matrix rate (8192 cubed).

    A captured copy_ would run on a copy engine, which is slower.
    """
    device = need_cuda()
    source = torch.randn(2**28, device=device)
    target = torch.empty_like(source)
    copy = time_graph([lambda: torch.neg(source, out=target)], replays=15)
    n = 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = time_graph([lambda: a @ b], replays=15)
    return Ceilings(2 * 2**30 / (copy.median_us * 1e-6), 2 * n**3 / (product.median_us * 1e-6))


def row(
    kernel: str, case: str, backend: str, times: Times, *, n_bytes: int, flops: int = 0,
    rates: Ceilings | None = None,
) -> Row:  # fmt: skip
    """Put a measurement beside its floor. n_bytes: fewest bytes to move, each input and output once."""
    floor = (rates or ceilings()).floor_us(n_bytes, flops)
    work = (int(n_bytes), int(flops), floor, times.median_us / floor if floor else float("nan"))
    return Row(kernel, case, backend, times.median_us, times.p10_us, times.p90_us, *work)


def show(rows: Sequence[Row]) -> None:
    """Print a short table."""
    print(f"{'kernel':<26}{'case':<34}{'backend':<18}{'median us':>11}{'floor us':>10}{'ratio':>7}")
    for r in rows:
        print(
            f"{r.kernel:<26}{r.case:<34}{r.backend:<18}{r.median_us:>11.2f}{r.floor_us:>10.2f}"
            f"{r.ratio_to_floor:>7.2f}"
        )


def device_folder() -> str:
    """Folder name of this GPU's results.

    >>> _slug("NVIDIA H200"), _slug("NVIDIA GeForce RTX 4090")
    ('nvidia-h200', 'nvidia-geforce-rtx-4090')
    """
    return _slug(torch.cuda.get_device_name(need_cuda()))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def save(rows: Sequence[Row], *, topic: str, folder: Path | None = None, about: dict | None = None) -> Path:
    """Add the rows to kernels.csv (a row of the same kernel, case and backend is replaced) and its sidecar.

    The sidecar kernels.json keeps, per topic, where its rows come from.
    """
    folder = folder or DATA / device_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path, sidecar = folder / "kernels.csv", folder / "kernels.json"
    printed = [{k: tables.printed(v) for k, v in asdict(r).items()} for r in rows]
    tables.merge(path, [f.name for f in fields(Row)], ("kernel", "case", "backend"), printed)
    runs = json.loads(sidecar.read_text(encoding="utf-8")) if sidecar.exists() else {}
    runs[topic] = {"kernels": sorted({r.kernel for r in rows})} | (about or describe_run())
    sidecar.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def describe_run() -> dict:
    """The machine and the command, and the ceilings of this process."""
    rates = ceilings()
    return describe_machine() | {
        "copy_gb_per_s": round(rates.bytes_per_s / 1e9),
        "bf16_tflop_per_s": round(rates.flop_per_s / 1e12),
    }


@lru_cache(maxsize=1)
def link_gb_per_s() -> float:
    """Rate of the link here and now: random runs of 32 KiB from 1 GiB of written host memory, alone.

    Machines of one name differ, and so does one machine from hour to hour: read a speed beside this.
    """
    from sparda.kernels import gather_misses
    from sparda.kernels.host_memory import pinned_empty

    device, n_runs, n_misses = need_cuda(), 2**15, 2**12
    host = pinned_empty((1, 1, n_runs, 2, 64, 128), torch.bfloat16)
    host.view(torch.int16).random_()
    slots = torch.empty(1, 1, n_misses, 2, 64, 128, dtype=torch.bfloat16, device=device)
    source = torch.randperm(n_runs, device=device)[:n_misses].int()
    target = torch.arange(n_misses, dtype=torch.int32, device=device)
    count = torch.full((1,), n_misses, dtype=torch.int32, device=device)
    times = time_graph([lambda: gather_misses(host, slots, source, target, count)], replays=15)
    return slots.nbytes / times.median_us / 1e3
