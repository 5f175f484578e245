"""The engine's committed benchmarks as tables: decode, prefill, breakdown, latency in data/measured/.

A file that no run has written yet is not an error: ``read`` returns None, and ``missing`` says what makes it.
"""

from __future__ import annotations

import json
from pathlib import Path

from sparda.figures import measured
from sparda.figures.measured import Run
from sparda.linkmodel import DATA
from sparda.measure.systems import SYSTEMS

BENCHMARKS = ("decode", "prefill", "breakdown", "latency")
LABELS = {  # names of sparda.measure.systems: what a figure calls them
    "dense": "Dense",
    "sparse": "Sparse, no offload",
    "sparse_offload": "Sparse",
    "sparda_resident": "SparDA, no offload",
    "sparda_no_prefetch": "SparDA, no prefetch",
    "sparda": "SparDA",
    "sparda_wait": "SparDA, a layer waits",
    "sparda_worker": "SparDA, worker",
    "sparda_copy_engine": "SparDA, copy engine",
    "infinigen": "InfiniGen",
    "infinigen_uva": "InfiniGen over UVA",
}
PUBLISHED = {  # method, kv_location of data/paper: the same names
    ("Dense", "GPU (no offload)"): "Dense",
    ("Sparse", "GPU (no offload)"): "Sparse, no offload",
    ("Sparse", "CPU offload"): "Sparse",
    ("SparDA no-prefetch", "CPU offload"): "SparDA, no prefetch",
    ("SparDA", "CPU offload"): "SparDA",
    ("InfiniGen", "CPU offload"): "InfiniGen",
}


def label(selector: str, transport: str, slots: int | None = None, budget_blocks: int = 96) -> str:
    """What a figure calls a point of the grid; slots: of an offloaded layer, named where they are not k.

    >>> label("forecast", "lookahead"), label("forecast", "lookahead", 144)
    ('SparDA', 'SparDA, 144 slots')
    """
    points = {(system.selector, system.transport): LABELS.get(name, name) for name, system in SYSTEMS.items()}
    name = points.get((selector, transport), f"{selector}, {transport}")
    return name if transport == "none" or slots in (None, budget_blocks) else f"{name}, {slots:g} slots"


def named(rows):
    """The rows that came to their end, with the column ``system``."""
    return labelled(rows[rows["status"] == "ok"])


def labelled(rows):
    """The rows with the column ``system``, what a figure calls them."""
    points = zip(rows["selector"], rows.get("transport", ["none"] * len(rows)), _slots(rows), strict=True)
    return rows.assign(system=[label(selector, transport, slots) for selector, transport, slots in points])


def _slots(rows) -> list:
    budgets = rows.get("budget_blocks", [96] * len(rows))
    slots = rows.get("cache_slots", budgets)
    return [None if c == k or c in ("k", "full") else float(c) for c, k in zip(slots, budgets, strict=True)]


def read(name: str, device: str = "nvidia-h200", folder: Path = DATA) -> Run | None:
    """A benchmark's committed rows and where they come from; None where nothing is committed."""
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    run = measured.read(name, device, folder)
    rows = None if run is None else named(run.rows)
    return None if run is None or rows is None or rows.empty else Run(rows, run.where)


def missing(name: str) -> str:
    """A sentence for a chapter that has nothing measured to show."""
    return f"{name}.csv is not committed yet: `sparda bench {name}` writes it, on a machine with a GPU"


def need(name: str) -> Run:
    """``read`` for a chapter about these rows; FileNotFoundError with ``missing`` where there are none."""
    return measured.need(read(name), missing(name))


def sources(run: Run | None, sidecar: Path) -> str:
    """Where measured rows come from: those of the benchmark, and those of kernels timed alone (sidecar)."""
    about = [part for part in json.loads(sidecar.read_text(encoding="utf-8")).values() if "commit" in part]
    newest = max(about, key=lambda part: part["date"])
    alone = f"kernels alone: {newest['device']} · {newest['date']} · commit {newest['commit']}"
    return alone if run is None else f"{run.where}; {alone}"
