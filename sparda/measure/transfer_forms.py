"""One layer's transfer in its three forms, each inside a CUDA graph: a launch, a doorbell, the copy engine.

    python -m sparda.measure.transfer_forms [--gib 2]

launch       fork to a second stream, gather kernel, join
worker       ring and wait; the CTAs have been on the GPU since before the graph
copy_engine  one cudaMemcpyAsync for each run

A layer's time is from the end of its miss list to the moment when attention may start. Rows go to kernels.csv
under ``transfer_layer``; the floor is the bytes over the rate of one contiguous copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from sparda.kernels import gather_misses
from sparda.kernels.resident_worker import ResidentWorker
from sparda.measure import bench
from sparda.measure.transfer import Stores, copy_engine

LAYERS = 8
RUNS = (22, 88, 352)  # misses of a layer at batch 1, 4 and 16 with 11 of 96 slots missed


def launch_per_layer(jobs: list) -> Callable[[], None]:
    """The calls of a step whose every layer forks, gathers and joins."""
    side = torch.cuda.Stream(priority=-1)

    def step() -> None:
        main = torch.cuda.current_stream()
        for job in jobs:
            side.wait_stream(main)
            with torch.cuda.stream(side):
                gather_misses(*job)
            main.wait_stream(side)

    return step


def bells(worker: ResidentWorker) -> Callable[[], None]:
    """The calls of a step that rings and waits for every layer."""

    def step() -> None:
        for layer in range(len(worker.jobs)):
            worker.ring(layer)
            worker.wait(layer)

    return step


def engine_copies(jobs: list) -> Callable[[], None]:
    """The calls of a step that hands every run to the driver."""
    pairs = []
    for host, slots, src, dst, count in jobs:
        n, run = int(count), host.shape[3:]
        source, target = host.view(-1, *run), slots.view(-1, *run)
        pairs += [(target[d], source[s]) for s, d in zip(src[:n].tolist(), dst[:n].tolist(), strict=True)]

    def step() -> None:
        for target, source in pairs:
            target.copy_(source, non_blocking=True)

    return step


def time_worker(jobs: list, n_ctas: int) -> bench.Times:
    """Capture while the CTAs are away, then replay while they are there."""
    worker = ResidentWorker(jobs, n_ctas=n_ctas)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bells(worker)()
    with worker:
        graph.replay()
        samples = torch.tensor([bench.elapsed_us(graph.replay) for _ in range(40)], dtype=torch.float64)
    quantiles = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
    return bench.Times(*(samples / len(jobs)).quantile(quantiles).tolist())


def rows(stores: Stores, engine: bench.Times) -> list[bench.Row]:
    """kernels.csv rows of every form and list length."""
    rates = bench.Ceilings(2**28 / (engine.median_us * 1e-6), float("inf"))
    found = []
    for n_runs in RUNS:
        jobs = [stores.arguments(32, n_runs, seed=layer) for layer in range(LAYERS)]
        times = {
            "launch": _per_layer(bench.time_graph([launch_per_layer(jobs)])),
            "worker": time_worker(jobs, n_ctas=8),
            "copy_engine": _per_layer(bench.time_graph([engine_copies(jobs)], replays=10)),
        }
        n_bytes = n_runs * 2**15
        found += [
            bench.row("transfer_layer", f"32k_x{n_runs}", form, t, n_bytes=n_bytes, rates=rates)
            for form, t in times.items()
        ]
    return found


def _per_layer(times: bench.Times) -> bench.Times:
    return bench.Times(times.median_us / LAYERS, times.p10_us / LAYERS, times.p90_us / LAYERS)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--gib", type=int, default=2, help="size of the host store")
    args = parser.parse_args()
    bench.need_cuda()
    stores = Stores(args.gib)
    found = rows(stores, copy_engine(stores))
    bench.show(found)
    bench.save(found, topic="transfer_forms")


if __name__ == "__main__":
    main()
