"""From the options of ``sparda bench`` to rows that are printed and kept."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from sparda import spec
from sparda.measure import bench, decode, prompts, systems, traced
from sparda.measure import setup as running
from sparda.measure.command import STEPS, show_head, show_one
from sparda.measure.setup import Setup
from sparda.measure.tables import Table, keep
from sparda.progress import bar


def problem(options: Namespace, device: torch.device) -> str:
    """What is wrong with the options on this machine, and what to do; empty if nothing is."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return "no CUDA device here; --device cpu checks that everything works"
    if device.type == "cuda" and options.steps < STEPS:
        return f"--steps must be at least {STEPS}, got {options.steps}"
    if device.type == "cpu" and options.out and options.out.resolve().is_relative_to(bench.DATA):
        return f"{bench.DATA} is for GPU measurements; give --out another folder"
    longest = spec.model(options.model).native_context
    if options.model in running.REAL and max(options.context) > longest:
        return f"--context {max(options.context)}: {options.model} reads {longest} tokens at most"
    return ""


def folder_for(device: torch.device, out: Path | None) -> Path | None:
    """Where rows go; None: they are only printed, as a processor's are unless a folder is given."""
    if device.type == "cuda":
        return out or bench.DATA / bench.device_folder()
    return out


def _link() -> dict[str, float]:
    return {"link_gb_per_s": round(bench.link_gb_per_s(), 1)} if torch.cuda.is_available() else {}


@contextmanager
def keeping(table: Table | None, columns: list[str], folder: Path | None, n_cases: int) -> Iterator[Keep]:
    """Prints each row as it comes and keeps it at once: a run that is cut short loses nothing."""
    if not folder:
        print("a functional check on a processor: these times are not kept")
    show_head(columns)
    about = bench.describe_machine() | _link() if folder and table else {}
    with bar(n_cases, "case") as progress:
        yield Keep(table, columns, folder, about, progress)


@dataclass
class Keep:
    """Takes a row of a system; its name comes from its selector and transport where it is not given."""

    table: Table | None
    columns: Sequence[str]
    folder: Path | None
    about: Mapping[str, Any]
    progress: Any
    _last: float = field(default_factory=perf_counter)

    def __call__(self, row: dict[str, str], system: str = "") -> None:
        named = {"system": system or systems.name_of(row["selector"], row["transport"])} | row
        show_one(named, self.columns, perf_counter() - self._last)
        self._last = perf_counter()
        if self.folder and self.table:
            keep(self.table, [row], self.folder, self.about)
        if not system:  # one row a case
            self.progress.update()


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
    columns = ["system", "cache_slots", "context", "batch", "hit_rate", "tokens_per_s", "step_ms_median"]
    columns += ["step_ms_p99", "ratio_to_bound", "transfer_exposed_ms", "peak_gpu_gib", "status"]
    found = cases(options)
    with keeping(decode.DECODE, columns, folder_for(device, options.out), len(found)) as done:
        return decode.sweep(setup(options, device), found, steps=options.steps, done=done)


def run_prefill(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["system", "attention", "context", "tokens_per_s", "ttft_s", "peak_gpu_gib", "status"]
    measure = partial(prompts.prefill, repeats=options.repeats)
    alone = [case for case in cases(options) if case.batch == 1]
    return _one_by_one(options, device, prompts.PREFILL, columns, alone, measure)


def run_latency(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["system", "context", "batch", "ttft_ms", "tpot_ms_median", "tpot_ms_p99", "status"]
    found = cases(options)
    with keeping(prompts.LATENCY, columns, folder_for(device, options.out), len(found)) as done:
        return prompts.latency(setup(options, device), found, steps=options.steps, done=done)


def run_breakdown(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["system", "context", "batch", "phase", "attention", "part", "us_per_layer", "share", "status"]
    return _one_by_one(options, device, traced.BREAKDOWN, columns, cases(options), traced.breakdown)


def run_trace(options: Namespace, device: torch.device) -> list[dict[str, str]]:
    columns = ["system", "batch", "step_us", "transfer_us", "exposed_us", "hidden_us", "status"]
    measure = partial(traced.save, folder=folder_for(device, options.out))
    return _one_by_one(options, device, None, columns, cases(options), measure)


def _one_by_one(
    options: Namespace, device: torch.device, table: Table | None, columns: list[str],
    found: Sequence[systems.Case], measure: Callable[..., list[dict[str, str]]],
) -> list[dict[str, str]]:  # fmt: skip
    """Measure case after case, each of which may have several rows."""
    rows = []
    with keeping(table, columns, folder_for(device, options.out), len(found)) as done:
        place = setup(options, device)
        for case in found:
            rows += measure(place, [case], done=partial(done, system=case.system.name))
            done.progress.update()
    return rows


RUNS = {
    "decode": run_decode,
    "prefill": run_prefill,
    "latency": run_latency,
    "breakdown": run_breakdown,
    "trace": run_trace,
}
