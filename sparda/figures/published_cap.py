"""Table 4 with ours under the memory cap of an 80 GB card: what fits, and what the cap changes."""

from __future__ import annotations

from typing import Any

from sparda.figures import measured
from sparda.figures import offloaded_decode as decode
from sparda.figures import published_tables as tables
from sparda.figures.benchmarks import labelled
from sparda.figures.measured import Run, source

CAP_GIB = 80


def within_cap(run: Run | None) -> Any:
    """Our rows of decode.csv at 128K under the cap, one a system and batch, those that had no room too."""
    import pandas as pd

    if run is None:
        return pd.DataFrame(columns=[*tables.COLUMNS, "status", "batch"])
    own: Any = pd.concat([run.rows, *_had_no_room()])
    own = own[(own["gpu_memory_gib"] == CAP_GIB) & (own["context"] == tables.CONTEXT)]
    own = own[(own["transport"] == "none") | (own["hit_rate"] == tables.HIT_RATE)]
    own = own[own["system"].isin(tables.SYSTEMS)].sort_values("host_layers_per_store", kind="stable")
    own = own.drop_duplicates(["system", "batch"])
    return own.assign(origin="measured", x=own["batch"], value=own["tokens_per_s"])


def _had_no_room() -> list[Any]:
    """Rows of decode.csv that ran out of memory, named by system."""
    try:
        run = measured.read("decode", tables.device("decode.csv"), tables.DATA)
    except FileNotFoundError:
        return []
    rows = None if run is None else run.rows[run.rows["status"].str.startswith(tables.NO_ROOM)]
    return [] if rows is None else [labelled(rows).assign(status=tables.NO_ROOM)]


def decode_capped() -> tables.Beside:
    """Table 4 at 128K with ours under the memory cap of an 80 GB card."""
    run, rows = tables.ours("decode"), tables.published("table4_decode_throughput", "batch", context="128K")
    own = within_cap(run)
    table = tables.joined(rows, tables.no_room(rows), own)
    return tables.Beside(table, source(own), against_whole_card(run, own))


def against_whole_card(run: Run | None, own: Any) -> str:
    """In words, how rows under the cap differ from those of the same system and batch on the whole card."""
    whole = decode.measured(run, n_tokens=tables.CONTEXT, hit_rate=tables.HIT_RATE)
    if own.empty or whole.empty:
        return ""
    both = own.merge(whole, on=["system", "batch"], suffixes=("", "_whole"))
    ratio = (both["tokens_per_s"] / both["tokens_per_s_whole"]).dropna()
    lost = both[both["status"] == tables.NO_ROOM].groupby("system")["batch"].agg(lambda b: sorted(b))
    said = f"ours under the cap: {ratio.min():.2f} to {ratio.max():.2f} times the whole card's rates"
    names = [f"{system} at batch {', '.join(map(str, batches))}" for system, batches in lost.items()]
    return said + (f"; out of memory under it alone: {'; '.join(names)}" if names else "")
