"""A committed table of data/measured/ and where its numbers come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparda.linkmodel import DATA

SOURCE = ["device", "date", "commit", "host_layers_per_store"]  # columns by which rows name their run


@dataclass(frozen=True)
class Run:
    """rows: a DataFrame; where: device, date and commits, as a stamp says them."""

    rows: Any
    where: str


def read(name: str, device: str = "nvidia-h200", folder: Path = DATA, **csv_options: Any) -> Run | None:
    """``<folder>/<device>/<name>.csv`` with its sidecar; None where either is missing or empty.

    csv_options : of ``pandas.read_csv``
    """
    table = folder / device / f"{name}.csv"
    sidecar = table.with_suffix(".json")
    if not (table.is_file() and sidecar.is_file()):
        return None
    import pandas as pd

    rows = pd.read_csv(table, **csv_options)
    runs = json.loads(sidecar.read_text(encoding="utf-8"))["runs"]
    if rows.empty or not runs:
        return None
    commits = ", ".join(sorted({run["commit"] for run in runs}))
    return Run(rows, f"{runs[0]['device']} · {max(run['date'] for run in runs)} · commit {commits}")


def need(found: Any, missing: str) -> Any:
    """What was found; FileNotFoundError with the sentence ``missing``, which says what makes it, for None."""
    if found is None:
        raise FileNotFoundError(missing)
    return found


def source(rows: Any) -> str:
    """Where these rows come from: device, newest date, their commits, and what shared host pages.

    "" for rows that do not say, as those of a model.

    >>> import pandas as pd
    >>> of = {"device": "H200", "date": "2026-11-30", "commit": ["b", "a", "b"]}
    >>> source(pd.DataFrame(of | {"batch": [4, 64, 64], "host_layers_per_store": [1, 2, 4]}))
    'H200 · 2026-11-30 · commit a, b · host pages shared at batch 64 by 2 or 4 layers'
    """
    if not {"device", "date", "commit"} <= set(rows) or rows["commit"].isna().all():
        return ""
    rows = rows.dropna(subset=["commit"])
    devices, commits = (", ".join(sorted(set(rows[name]))) for name in ("device", "commit"))
    return " · ".join([devices, max(rows["date"]), f"commit {commits}", *_shared(rows)])


def _shared(rows: Any) -> list[str]:
    """A sentence about layers that shared pages of host memory; none where no layers did."""
    if "host_layers_per_store" not in rows:
        return []
    shared = rows[rows["host_layers_per_store"] > 1]
    by_sharing: dict[str, list[str]] = {}
    for batch, part in shared.groupby("batch"):
        layers = " or ".join(f"{n:g}" for n in sorted(set(part["host_layers_per_store"])))
        by_sharing.setdefault(layers, []).append(f"{batch:g}")
    said = "; ".join(f"at batch {', '.join(batches)} by {n} layers" for n, batches in by_sharing.items())
    return [f"host pages shared {said}"] if said else []
