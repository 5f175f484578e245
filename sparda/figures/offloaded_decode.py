"""Offloaded decode: rate against batch, the parts of the gain, hit rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparda import paper
from sparda.bounds import H200_RATES, DecodeBound, Rates, decode_bound, misses_at
from sparda.costs import largest_batch
from sparda.figures.benchmarks import PUBLISHED
from sparda.figures.measured import SOURCE, Run, source
from sparda.figures.style import series, stamp
from sparda.spec import ModelShape, Sparsity

LADDER = ("Sparse", "SparDA, no prefetch", "SparDA")  # each differs from the one before in one thing
COMPARED = ("SparDA", "Sparse", "InfiniGen")
RATES = "floors: rates measured on one H200, 2026-11"
PAPER = "published: H100, hit rate not stated"
COLUMNS = ["origin", "system", "batch", "tokens_per_s"]


def bound_of(
    shape: ModelShape,
    sparsity: Sparsity,
    *,
    n_tokens: int,
    batch: int,
    hit_rate: float,
    rates: Rates = H200_RATES,
) -> DecodeBound:
    """The floor of a step at a hit rate: memory and link, each alone."""
    misses = misses_at(hit_rate=hit_rate, budget_blocks=sparsity.budget_blocks)
    return decode_bound(
        shape=shape, sparsity=sparsity, n_tokens=n_tokens, batch=batch, misses=misses, rates=rates
    )


def published(table: str, systems: Iterable[str]) -> list[tuple]:
    """Rows of COLUMNS for MiniCPM4.1-8B at 128K, as the paper's table has them."""
    found = []
    for row in paper.rows(table):
        system = PUBLISHED.get((row["method"], row["kv_location"]), "")
        if row["value"] and system in systems and (row["model"], row["context"]) == ("MiniCPM4.1-8B", "128K"):
            found.append(("published", system, int(row["batch"]), float(row["value"])))
    return found


def measured(
    run: Run | None, *, n_tokens: int, hit_rate: float | None = None, compared: Sequence[str] = ()
) -> Any:
    """Rows of decode.csv at this context, on a whole card; if they offload, at this hit rate (None: any).

    Rows that replay recorded choices have a rate of their own and are left out. Of rows whose layers share
    host pages those that share least are taken; ``compared`` systems share alike where that was measured.
    """
    import pandas as pd

    if run is None:
        return pd.DataFrame(columns=[*COLUMNS, "hit_rate"])
    rows = run.rows[run.rows["context"] == n_tokens]
    rows = rows[rows["gpu_memory_gib"].isna() & (rows["choices"] != "recorded")]
    if hit_rate is not None:
        rows = rows[(rows["transport"] == "none") | (rows["hit_rate"] == hit_rate)]
    rows = rows.sort_values("host_layers_per_store", kind="stable")
    if compared:
        rows = _sharing_alike(rows[rows["system"].isin(compared)])
    return rows.drop_duplicates(["system", "batch", "hit_rate"]).assign(origin="measured")


def _sharing_alike(rows):
    """For each batch the rows of that sharing at which most systems were measured, the least of such."""
    count = rows.groupby(["batch", "host_layers_per_store"])["system"].nunique().reset_index()
    best = count.sort_values(["system", "host_layers_per_store"], ascending=[False, True], kind="stable")
    best = best.drop_duplicates("batch").set_index("batch")["host_layers_per_store"]
    return rows[rows["host_layers_per_store"] == rows["batch"].map(best)]


def throughput_table(
    shape: ModelShape, sparsity: Sparsity, run: Run | None, *, n_tokens: int, batches: Sequence[int],
    hit_rate: float,
):  # fmt: skip
    """Decode tokens a second against batch: the ceiling, the paper's and ours; columns COLUMNS."""
    import pandas as pd

    of = {"n_tokens": n_tokens, "hit_rate": hit_rate}
    rows = [
        ("modelled", "ceiling", batch, bound_of(shape, sparsity, batch=batch, **of).tokens_per_s)
        for batch in batches
    ]
    rows += published("table4_decode_throughput", COMPARED)
    ours = measured(run, n_tokens=n_tokens, hit_rate=hit_rate)
    ours = ours[ours["system"].isin(COMPARED)]
    return _joined(pd.DataFrame(rows, columns=COLUMNS), ours)


def _joined(table, ours):
    """Our rows below the others, with SOURCE; no rows of ours must not change the columns' types."""
    import pandas as pd

    mine = ours.reindex(columns=[*table.columns, *SOURCE])
    return pd.concat([table, mine], ignore_index=True) if len(ours) else table


def throughput_figure(table, *, note: str = "", where: str = ""):
    """Ceiling as a line, the paper's as open marks, ours as full ones; both axes logarithmic."""
    import plotly.graph_objects as go

    figure, systems = go.Figure(), ["ceiling", *COMPARED]
    order = table.assign(place=table["system"].map(systems.index)).sort_values(["place", "origin"])
    for (system, origin), part in order.groupby(["system", "origin"], sort=False):
        look, mode = series(systems.index(system)), "lines" if origin == "modelled" else "lines+markers"
        if origin == "published":
            look["marker"] |= {"symbol": look["marker"]["symbol"] + "-open", "size": 11}
            look["line"] |= {"width": 1}
        part = part.sort_values("batch")
        figure.add_scatter(
            x=part["batch"], y=part["tokens_per_s"], name=f"{system}, {origin}", mode=mode, **look
        )
    figure.update_xaxes(title="batch, sequences", type="log", tickvals=sorted(set(table["batch"])))
    ticks = [m * 10**p for p in range(1, 5) for m in (1, 2, 5)]
    figure.update_yaxes(title="decode, tokens/s", type="log", tickvals=ticks)
    figure.update_layout(title_text="Offloaded decode: tokens a second against batch")
    return _stamp(figure, table, note, where)


def spelled(
    rows, shape: ModelShape, sparsity: Sparsity, *, n_tokens: int, memory_gib: float
):  # fmt: skip
    """Measured tokens/s for reading, systems by batch; a word where there is no rate.

    "does not fit": all keys and values on a card of this memory, by the ledger of ``costs``; else "not run"
    """
    table = rows.pivot(index="system", columns="batch", values="tokens_per_s").round(0)
    of = {"shape": shape, "sparsity": sparsity, "n_tokens": n_tokens, "memory_gib": memory_gib}
    fits = largest_batch(placement="gpu", **of)
    resident = set(rows.loc[rows["transport"] == "none", "system"])
    words = [
        ["does not fit" if s in resident and b > fits else "not run" for b in table] for s in table.index
    ]
    return table.astype(object).where(table.notna(), words)


def _stamp(figure, table, note: str, where: str, rest: str = f"{RATES}; {PAPER}"):
    """Measured as soon as a row of ours is drawn; where: for rows that do not say where they come from."""
    ours = bool((table["origin"] == "measured").any())
    where = source(table[table["origin"] == "measured"]) or where
    return stamp(figure, "measured" if ours else "modelled", note, where=f"{where}; {rest}" if ours else rest)


def gain_table(
    shape: ModelShape, sparsity: Sparsity, run: Run | None, *, n_tokens: int, hit_rate: float,
    batches: Sequence[int] = (4, 16, 64),
):  # fmt: skip
    """The three steps of Table 10 at its batches: by the floor, published, and ours; columns COLUMNS.

    By the floor nothing but overlap counts: without it memory and link follow each other.
    """
    import pandas as pd

    rows = published("table10_decode_breakdown", LADDER)
    for batch in batches:
        floor = bound_of(shape, sparsity, n_tokens=n_tokens, batch=batch, hit_rate=hit_rate)
        apart = batch / (floor.memory_s + floor.link_s)
        rows += [("modelled", system, batch, apart) for system in LADDER[:2]]
        rows.append(("modelled", "SparDA", batch, floor.tokens_per_s))
    ours = measured(run, n_tokens=n_tokens, hit_rate=hit_rate, compared=LADDER)
    ours = ours[ours["batch"].isin(batches)]
    return _joined(pd.DataFrame(rows, columns=COLUMNS), ours)


def factor_table(gains):
    """What each step of gain_table multiplies by: columns origin, batch, selector, overlap, both, batch_gain.

    batch_gain is SparDA's rate over its own at the smallest batch.
    """
    wide = gains.pivot(index=["origin", "batch"], columns="system", values="tokens_per_s")
    wide = wide.reindex(columns=list(LADDER))
    sparse, apart, full = (wide[system] for system in LADDER)
    smallest = full.groupby("origin").transform("first")
    factors = {"selector": apart / sparse, "overlap": full / apart, "both": full / sparse}
    return wide.assign(**factors, batch_gain=full / smallest)[[*factors, "batch_gain"]].reset_index()


def absent(gains) -> str:
    """What of our steps was not measured, in words; empty if all were, or none."""
    ours = gains[gains["origin"] == "measured"]
    have = set(zip(ours["system"], ours["batch"], strict=True))
    batches = sorted(set(ours["batch"]))
    gaps = [
        f"{system} at batch {batch}" for batch in batches for system in LADDER if (system, batch) not in have
    ]
    return f"not measured: {'; '.join(gaps)}" if gaps else ""


def gain_figure(table, *, note: str = "", where: str = ""):
    """Bars of gain_table, a group for every batch and step; one colour and pattern for each origin."""
    import plotly.graph_objects as go

    figure, patterns = go.Figure(), {"modelled": ".", "published": "/", "measured": ""}
    rows = table.sort_values("batch", kind="stable")
    for index, (origin, pattern) in enumerate(patterns.items()):
        part = rows[rows["origin"] == origin]
        if len(part):
            look = {"color": series(index)["marker"]["color"], "pattern": {"shape": pattern}}
            names = part["system"].str.replace("SparDA, no prefetch", "no<br>prefetch")
            x = [[f"batch {batch}" for batch in part["batch"]], list(names)]
            figure.add_bar(x=x, y=part["tokens_per_s"], name=origin, marker=look)
    figure.update_xaxes(tickangle=0, tickfont_size=11)
    figure.update_yaxes(title="decode, tokens/s")
    figure.update_layout(title_text="The parts of the gain, in the order of the paper's Table 10")
    note = " · ".join(part for part in (note, absent(table)) if part)
    return _stamp(figure, table, note, where)


def hit_rate_table(
    shape: ModelShape, sparsity: Sparsity, run: Run | None, *, n_tokens: int, batches: Sequence[int],
    hit_rates: Sequence[float] = (0.5, 0.8, 0.89, 0.95, 1.0),
):  # fmt: skip
    """SparDA's tokens a second against the hit rate: columns origin, batch, hit_rate, tokens_per_s."""
    import pandas as pd

    rows = []
    for batch in batches:
        for hit_rate in hit_rates:
            floor = bound_of(shape, sparsity, n_tokens=n_tokens, batch=batch, hit_rate=hit_rate)
            rows.append(("modelled", batch, hit_rate, floor.tokens_per_s))
    columns = ["origin", "batch", "hit_rate", "tokens_per_s"]
    ours = measured(run, n_tokens=n_tokens)
    ours = ours[(ours["system"] == "SparDA") & ours["batch"].isin(batches)]
    return _joined(pd.DataFrame(rows, columns=columns), ours)


def hit_rate_figure(table, *, note: str = "", where: str = ""):
    """Ceilings as lines, measurements as marks of the same colour."""
    import plotly.graph_objects as go

    figure, batches = go.Figure(), list(dict.fromkeys(table["batch"]))
    for (batch, origin), part in table.groupby(["batch", "origin"], sort=False):
        look, mode = series(batches.index(batch)), "lines" if origin == "modelled" else "markers"
        part, name = part.sort_values("hit_rate"), "ceiling" if origin == "modelled" else origin
        figure.add_scatter(
            x=part["hit_rate"], y=part["tokens_per_s"], name=f"batch {batch}, {name}", mode=mode, **look
        )
    figure.update_xaxes(title="hit rate", tickvals=sorted(set(table["hit_rate"])))
    figure.update_yaxes(title="SparDA, tokens/s", rangemode="tozero")
    figure.update_layout(title_text="What a better hit rate is worth")
    return _stamp(figure, table, note, where, RATES)
