"""Speed of offloaded decode: tokens/s against batch, hit rate and system, beside the modelled floor.

The past is random, filled in as if prompts had been read; its length is such that the last step reads
``context`` tokens. A step is timed from event to event, gaps between steps included; ``tokens_per_s`` is the
batch over the median step. ``choices`` says where the blocks come from: "replayed" at the hit rate that is
asked for, "recorded" of a real model, whose hit rate is counted, or the selector's "own". What transfers add
(``transfer_exposed_ms``) is the median step less that of the same line at hit rate 1.0: the stall, and what a
copy slows the compute beside it by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from sparda import bounds, costs, provenance
from sparda.measure import setup as running
from sparda.measure.setup import Setup
from sparda.measure.systems import Case
from sparda.measure.tables import Table

WARM_UP = 8  # steps: compile, capture, and misses that have come to rest
COUNTED = 4  # untimed steps whose misses are counted
NAMED = (
    "device", "model", "selector", "budget_blocks", "block_size", "cache_slots", "transport", "layer0",
    "context", "batch", "hit_rate",
)  # fmt: skip
DECODE = Table(
    "decode",
    (
        *NAMED, "steps", "tokens_per_s", "step_ms_median", "step_ms_p99", "bound_ms", "ratio_to_bound",
        "bytes_moved_per_step", "transfer_exposed_ms", "peak_gpu_gib", "pinned_gib", "status",
        "choices", "host_layers_per_store", "gpu_memory_gib", "date", "commit",
    ),
    (*NAMED, "choices", "host_layers_per_store", "gpu_memory_gib"),
)  # fmt: skip


def sweep(
    setup: Setup, cases: Sequence[Case], *, steps: int, done: Callable[[dict[str, str]], None]
) -> list[dict[str, str]]:
    """Measure every case; ``done`` is called with each row as it comes."""
    rows, at_rest = [], {}  # median step at hit rate 1.0 of a case
    for case in cases:
        numbers, status = running.attempt(setup, lambda case=case: measure(setup, case, steps))
        resting = replace(case, hit_rate=1.0)
        if numbers and case.hit_rate == 1.0:
            at_rest[resting] = numbers["step_ms_median"]
        if numbers and case.system.offloads and resting in at_rest:
            numbers["transfer_exposed_ms"] = max(0.0, numbers["step_ms_median"] - at_rest[resting])
        row = DECODE.row(**name(setup, case) | numbers, steps=steps, status=status, **stamp())
        rows.append(row)
        done(row)
    return rows


def measure(setup: Setup, case: Case, steps: int) -> dict[str, float]:
    """The measured numbers of one case; raises what ``setup.attempt`` turns into a status."""
    past = case.context - WARM_UP - steps - COUNTED
    if past < setup.sparsity.block_size:
        raise running.Skipped(f"a context of {case.context} tokens has no room for {steps} steps")
    with running.session(setup, case, past=past) as session:
        session.fill(past)
        for _ in range(WARM_UP):
            session.step()
        times = torch.tensor(time_steps(setup, session, steps), dtype=torch.float64)
        median, p99 = times.quantile(torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
        misses = misses_per_head(session)
        held = running.memory(setup, session)
    counted = {} if case.hit_rate is not None else {"hit_rate": 1 - misses / setup.sparsity.budget_blocks}
    floor = bound_ms(setup, case, misses)
    return counted | {
        "tokens_per_s": case.batch / median * 1e3,
        "step_ms_median": median,
        "step_ms_p99": p99,
        "bound_ms": floor,
        "ratio_to_bound": floor / median,
        "bytes_moved_per_step": bytes_moved(setup, case, misses),
        **held,
    }


def time_steps(setup: Setup, session: Any, steps: int) -> list[float]:
    """Milliseconds of each step; on a GPU nothing waits until the last one is enqueued."""
    if not setup.on_gpu:
        ticks = [perf_counter()]
        for _ in range(steps):
            session.step()
            ticks.append(perf_counter())
        return [1e3 * (b - a) for a, b in pairwise(ticks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        session.step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(events)]


def misses_per_head(session: Any) -> float:
    """Blocks from the host in a step, of one KV head and offloaded layer: the mean of a few steps."""
    states = [state for state in session.store.layers if state.offloaded]
    if not states:
        return 0.0
    counts = []
    for _ in range(COUNTED):
        session.step()
        counts.append(torch.stack([state.selection.count for state in states]).sum())
    pairs = states[0].slot_block.shape[0] * states[0].slot_block.shape[1]
    return torch.stack(counts).double().mean().item() / len(states) / pairs


def bytes_moved(setup: Setup, case: Case, misses: float) -> float:
    """Bytes from the host in a step."""
    about = {"shape": setup.shape, "sparsity": setup.sparsity, "dtype_bytes": setup.dtype.itemsize}
    return costs.miss_bytes(misses=misses, batch=case.batch, **about)


def bound_ms(setup: Setup, case: Case, misses: float) -> float:
    """Modelled floor of a step at the rates of one H200; not a number for another device."""
    if not setup.on_gpu or "H200" not in provenance.device():
        return float("nan")
    sizes = {"shape": setup.shape, "n_tokens": case.context, "batch": case.batch}
    if case.system.selector == "all":  # every key and value, no Forecast, no compressed keys
        rates, weights = bounds.H200_RATES, costs.step_weight_bytes(shape=setup.shape, forecast=False)
        seconds = bounds.transfer_seconds(n_bytes=weights, gb_per_s=rates.weights_gb_per_s)
        seconds += bounds.transfer_seconds(n_bytes=costs.kv_bytes(**sizes), gb_per_s=rates.kv_gb_per_s)
        return 1e3 * seconds
    return 1e3 * bounds.decode_bound(sparsity=setup.sparsity, misses=misses, **sizes).seconds


def name(setup: Setup, case: Case) -> dict[str, Any]:
    """The columns that name a line."""
    cap, slots = setup.gpu_memory, running.cache_slots(setup, case)
    return {
        "device": provenance.device(),
        "model": setup.shape.name,
        "selector": case.system.selector,
        "budget_blocks": slots if case.system.selector == "all" else setup.sparsity.budget_blocks,
        "block_size": setup.sparsity.block_size,
        "cache_slots": slots,
        "transport": case.system.transport,
        "layer0": "resident",
        "context": case.context,
        "batch": case.batch,
        "hit_rate": float("nan") if case.hit_rate is None else case.hit_rate,
        "choices": "recorded" if case.hit_rate is None else "replayed" if case.system.offloads else "own",
        "host_layers_per_store": setup.hosts.share if case.system.offloads else 1,
        "gpu_memory_gib": cap / 2**30 if cap else "",
    }


def stamp() -> dict[str, str]:
    return {"date": provenance.today(), "commit": provenance.commit()}
