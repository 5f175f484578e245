"""From the options of ``sparda bench`` to rows that are printed and kept."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from sparda.measure import bench, decode, prompts, systems, traced
from sparda.measure import setup as running
from sparda.measure.command import STEPS, show_head, show_one
from sparda.measure.setup import Setup
from sparda.measure.tables import Table, keep


def problem(options: Namespace, device: torch.device) -> str:
    """What is wrong with the options on this machine, and what to do; empty if nothing is."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return "no CUDA device here; --device cpu checks that everything works"
    if device.type == "cuda" and options.steps < STEPS:
        return f"--steps must be at least {STEPS}, got {options.steps}"
    if device.type == "cpu" and options.out and options.out.resolve().is_relative_to(bench.DATA):
        return f"{bench.DATA} is for GPU measurements; give --out another folder"
    return ""


def folder_for(device: torch.device, out: Path | None) -> Path | None:
    """Where rows go; None: they are only printed, as a processor's are unless a folder is given."""
    if device.type == "cuda":
        return out or bench.DATA / bench.device_folder()
    return out


def _link() -> dict[str, float]:
    return {"link_gb_per_s": round(bench.link_gb_per_s(), 1)} if torch.cuda.is_available() else {}


def keeper(table: Table, columns: list[str], folder: Path | None) -> Callable[[dict[str, str]], None]:
    """Prints each row as it comes and keeps it at once: a run that is cut short loses nothing."""
    if not folder:
        print("a functional check on a processor: these times are not kept")
    show_head(columns)
    about = bench.describe_machine() | _link() if folder else {}

    last = perf_counter()

    def done(row: dict[str, str]) -> None:
        nonlocal last
        show_one(row, columns, perf_counter() - last)
        last = perf_counter()
        if folder:
            keep(table, [row], folder, about)

    return done


def setup(options: Namespace, device: torch.device) -> Setup:
    return running.build(
        options.model, max_tokens=max(options.context), device=device, gpu_memory=options.gpu_memory,
        layers_per_store=options.share_host, host_memory=options.host_memory,
    )  # fmt: skip


def cases(options: Namespace) -> list[systems.Case]:
    return systems.cases(
        options.systems, contexts=options.context, batches=options.batches,
        hit_rates=options.hit_rates, slots=options.slots,
    )  # fmt: skip


def run_decode(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["selector", "transport", "cache_slots", "context", "batch", "hit_rate", "tokens_per_s"]
    columns += ["step_ms_median", "step_ms_p99", "ratio_to_bound", "transfer_exposed_ms", "peak_gpu_gib"]
    done = keeper(decode.DECODE, [*columns, "status"], folder_for(device, options.out))
    return decode.sweep(setup(options, device), cases(options), steps=options.steps, done=done)


def run_prefill(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["selector", "attention", "context", "tokens_per_s", "ttft_s", "peak_gpu_gib", "status"]
    done = keeper(prompts.PREFILL, columns, folder_for(device, options.out))
    alone = [case for case in cases(options) if case.batch == 1]
    return prompts.prefill(setup(options, device), alone, repeats=options.repeats, done=done)


def run_latency(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["selector", "transport", "context", "batch", "ttft_ms", "tpot_ms_median", "tpot_ms_p99"]
    done = keeper(prompts.LATENCY, [*columns, "status"], folder_for(device, options.out))
    return prompts.latency(setup(options, device), cases(options), steps=options.steps, done=done)


def run_breakdown(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["selector", "transport", "context", "batch", "phase", "attention", "part", "us_per_layer"]
    done = keeper(traced.BREAKDOWN, [*columns, "share", "status"], folder_for(device, options.out))
    return traced.breakdown(setup(options, device), cases(options), done=done)


def run_trace(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["selector", "transport", "batch", "step_us", "transfer_us", "exposed_us", "hidden_us"]
    show_head(columns)
    folder = folder_for(device, options.out)
    done = partial(show_one, columns=[*columns, "status"])
    return traced.save(setup(options, device), cases(options), folder=folder, done=done)


RUNS = {
    "decode": run_decode,
    "prefill": run_prefill,
    "latency": run_latency,
    "breakdown": run_breakdown,
    "trace": run_trace,
}
