"""Tune the transfer on the present GPU: GB/s and slow-down of compute against CTAs and warps.

    python -m sparda.measure.transfer [--gib 4] [--quick]

Writes data/measured/<device>/transfer.csv (curves), transfer.json (the fitted models) and rows in
kernels.csv. Shapes are MiniCPM4.1-8B's: runs of 32 KiB, bf16; the store is written before it is read. The
floor of a gather is its bytes over the rate of the copy engine, measured in the same process.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from sparda.kernels import gather_misses
from sparda.kernels.host_memory import pinned_empty
from sparda.linkmodel import CTA_COUNTS, SHAPE, LinkModel
from sparda.measure import bench, overlap
from sparda.measure.transfer_cases import random_misses
from sparda.prefetch import pick_ctas

ATTENTION_SHARE = 0.15  # of a layer's compute at batch 16, modelled: sparda.prefetch
FEW = (1, 2, 4, 8, 16, 32)
BATCHES = (1, 4, 8, 16, 32, 64)
N_SLOTS, PAIRS = 96, 128  # slots of a head; B * H at batch 64
RUN_KIB = {16: (2, 32, 128), 32: (2, 64, 128)}  # bf16 runs: K and V, S, d


@dataclass(frozen=True)
class Shape:
    """How a CTA fetches: warps, bytes it asks for at a time, and how many of those are in flight."""

    num_warps: int = 4
    segment_bytes: int = 4096
    stages: int = 8

    @property
    def in_flight_kib(self) -> int:
        return self.segment_bytes * self.stages // 1024

    @property
    def name(self) -> str:
        return f"w{self.num_warps}_{self.in_flight_kib}KiB"


SHAPES = {  # and the CTA counts that are measured with each
    Shape(): (*CTA_COUNTS, 64, 132),
    Shape(num_warps=8): FEW,
    Shape(num_warps=16): FEW,
    Shape(segment_bytes=8192, stages=16): (1, 2, 3, 4, 6, 8),
}


@dataclass(frozen=True)
class Point:
    """One line of transfer.csv; slowdown is of the compute named, beside a transfer that outlasts it."""

    transport: str  # uva | copy_engine
    beside: str  # alone | ffn | attention
    run_kib: int
    runs: int
    n_ctas: int
    num_warps: int
    in_flight_kib: int  # per CTA
    gb_per_s: float
    slowdown: float


class Stores:
    """One written store and one set of slots, seen with runs of 16 or 32 KiB."""

    def __init__(self, gib: int):
        self.gib = gib
        self.host = pinned_empty((gib * 2**30,), torch.uint8)
        words = self.host.view(torch.int64)
        torch.arange(words.numel(), out=words)
        self.slots = torch.empty(PAIRS * N_SLOTS * 2**15, dtype=torch.uint8, device="cuda")

    def arguments(self, run_kib: int, n_runs: int, *, per_head: bool = False, seed: int = 0) -> tuple:
        """Arguments of a gather with a fresh random list; ``per_head``: n_runs spread over all heads."""
        pairs = PAIRS if per_head else 1
        host, slots = (
            s.view(torch.bfloat16).view(1, pairs, -1, *RUN_KIB[run_kib]) for s in (self.host, self.slots)
        )
        generator = torch.Generator().manual_seed(seed)
        ids = random_misses(pairs, host.shape[2], slots.shape[2], n_runs // pairs, generator)
        return host, slots, *(t.cuda() for t in ids)


def gathers(stores: Stores, run_kib: int, n_runs: int, how_many: int, **options) -> list[Callable]:
    """Calls with different lists, for one graph."""
    per_head = options.pop("per_head", False)
    cases = [stores.arguments(run_kib, n_runs, per_head=per_head, seed=seed) for seed in range(how_many)]
    return [partial(gather_misses, *case, **options) for case in cases]


def copy_engine(stores: Stores, n_bytes: int = 2**28) -> bench.Times:
    """One contiguous cudaMemcpyAsync: the fastest that the link is known to go; warmed up, links doze."""
    return bench.time_graph([partial(_engine_copy, stores, n_bytes)], warm_up=10)


CASES = [  # name, run KiB, runs, lists in a graph, options
    ("16k_x4096", 16, 4096, 2, {}),
    ("32k_x2048", 32, 2048, 2, {}),
    ("16k_x176", 16, 176, 10, {}),
    ("16k_x44", 16, 44, 20, {}),
    ("32k_x88", 32, 88, 10, {}),
    ("32k_x22", 32, 22, 20, {}),
    ("32k_4of96_x512", 32, 512, 4, {"per_head": True}),
]


def kernel_rows(stores: Stores, engine: bench.Times, counts: Iterable[int]) -> list[bench.Row]:
    """kernels.csv: the cases that the targets name, for several CTA counts."""
    rates = bench.Ceilings(2**28 / (engine.median_us * 1e-6), float("inf"))
    row = partial(bench.row, "gather_misses", rates=rates)
    rows = [row("contiguous_256MiB", "copy_engine", engine, n_bytes=2**28)]
    for name, run_kib, n_runs, lists, options in CASES:
        for n_ctas in counts:
            times = bench.time_graph(gathers(stores, run_kib, n_runs, lists, n_ctas=n_ctas, **options))
            n_bytes = n_runs * run_kib * 1024
            rows.append(row(f"{name}_c{n_ctas}", "triton", times, n_bytes=n_bytes))
    return rows


def curves(stores: Stores, loads: dict[str, overlap.Load], quick: bool = False) -> list[Point]:
    """transfer.csv: CTA counts and shapes of a CTA, alone and beside each load; then the copy engine."""
    points = []
    n_short, n_long = 2048, 12_288  # 64 MiB inside a load; twice 384 MiB around it
    short, long = (stores.arguments(32, n, seed=n) for n in (n_short, n_long))
    for shape, counts in SHAPES.items():
        for n_ctas in [c for c in counts if not quick or c in (2, 8, 32)]:
            options = {"n_ctas": n_ctas, **asdict(shape)}
            inside, around = (partial(gather_misses, *lists, **options) for lists in (short, long))
            about = (32, n_short, n_ctas, shape.num_warps, shape.in_flight_kib)
            points += _beside(Point("uva", "alone", *about, 0.0, 1.0), loads, inside, around)
    inside, around = (partial(_engine_copy, stores, n * 2**15) for n in (n_short, n_long))
    return points + _beside(Point("copy_engine", "alone", 0, 1, 0, 0, 0, 0.0, 1.0), loads, inside, around)


def _engine_copy(stores: Stores, n_bytes: int) -> None:
    stores.slots[:n_bytes].copy_(stores.host[:n_bytes], non_blocking=True)


def _beside(base: Point, loads: dict, short: Callable, long: Callable, n_bytes: int = 2**26) -> list[Point]:
    alone = bench.time_graph([short], replays=7, warm_up=1)
    points = [replace(base, gb_per_s=n_bytes / alone.median_us / 1e3)]
    for name, load in loads.items():
        slow = overlap.slowdown(load, lambda: (long(), long()))
        rate = n_bytes / overlap.transfer_us(load, short) / 1e3
        points.append(replace(base, beside=name, gb_per_s=rate, slowdown=slow))
    return points


def fit(points: Iterable[Point], shape: Shape) -> LinkModel:
    """The curves of one shape for the counts that the model covers.

    The rate is the one beside the FFN; the slow-down is that of a layer, FFN and attention by their shares.
    """
    mine = [p for p in points if (p.num_warps, p.in_flight_kib) == (shape.num_warps, shape.in_flight_kib)]
    idle = {p.n_ctas: p.gb_per_s for p in mine if p.beside == "alone"}
    attention = {p.n_ctas: p.slowdown for p in mine if p.beside == "attention"}
    rows = []
    for p in mine:
        if p.beside == "ffn" and p.n_ctas <= max(CTA_COUNTS):
            slow = (1 - ATTENTION_SHARE) * p.slowdown + ATTENTION_SHARE * attention[p.n_ctas]
            rows.append((p.n_ctas, p.gb_per_s, idle[p.n_ctas], slow))
    return LinkModel.fit(row for row in rows if not math.isnan(sum(row)))


def table(points: Iterable[Point]) -> None:
    """Print the curves, one line a point."""
    print(f"{'transport':<12}{'beside':<11}{'CTAs':>5}{'warps':>6}{'KiB':>5}{'GB/s':>8}{'slow-down':>11}")
    for p in points:
        shape = f"{p.n_ctas:>5}{p.num_warps:>6}{p.in_flight_kib:>5}"
        print(f"{p.transport:<12}{p.beside:<11}{shape}{p.gb_per_s:>8.1f}{p.slowdown:>11.3f}")


def picks(model: LinkModel) -> dict[int, int]:
    """CTAs by batch at hit rate 0.89, printed beside the published rule."""
    chosen = pick_ctas(model, BATCHES)
    print(f"{'batch':>5}{'picked':>8}{'published, H100':>17}")
    for batch, n_ctas in chosen.items():
        print(f"{batch:>5}{n_ctas:>8}{16 if batch < 32 else 32:>17}")
    return chosen


def save(points: list[Point], models: dict[str, LinkModel]) -> None:
    """Write transfer.csv and transfer.json of this device."""
    import pandas as pd

    folder = bench.DATA / bench.device_folder()
    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame([asdict(p) for p in points])
    frame.to_csv(folder / "transfer.csv", index=False, float_format="%.4g", lineterminator="\n")
    about = bench.describe_run() | {"models": {name: asdict(m) for name, m in models.items()}}
    about["ctas_by_batch"] = {str(batch): c for batch, c in picks(models[SHAPE]).items()}
    (folder / "transfer.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=int, default=4, help="size of the host store")
    parser.add_argument("--quick", action="store_true", help="three CTA counts a shape")
    args = parser.parse_args()
    bench.need_cuda()
    stores = Stores(args.gib)
    engine = copy_engine(stores)
    rows = kernel_rows(stores, engine, (2, 4, 8, 16))
    bench.show(rows)
    bench.save(rows, topic="transfer")
    points = curves(stores, overlap.loads(), args.quick)
    table(points)
    save(points, {shape.name: fit(points, shape) for shape in SHAPES})


if __name__ == "__main__":
    main()
