"""A committed table of data/measured/ and where its numbers come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparda.linkmodel import DATA


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
