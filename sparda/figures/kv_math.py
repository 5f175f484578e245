"""Figures of chapter 01: memory against context, roofline, decode bound, and the calculator's two panels.

Each ``*_table`` computes a tidy pandas DataFrame from the closed forms, each ``*_figure`` draws one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparda import costs, paper
from sparda.bounds import (
    H200_RATES,
    Rates,
    decode_bound,
    misses_at,
    ridge_flop_per_byte,
    roofline_tflop_per_s,
)
from sparda.figures.style import TEXT, series, stamp
from sparda.spec import ModelShape, Sparsity, hardware
from sparda.units import gib

RATES = "rates measured on one H200, 2026-11"
PLACEMENTS: dict[costs.Placement, str] = {"gpu": "all on the GPU", "offload": "offloaded"}


def memory_table(
    shape: ModelShape,
    sparsity: Sparsity,
    *,
    contexts: Sequence[int],
    batches: Sequence[int],
    gpus: Sequence[str] = ("h100", "h200"),
):
    """GPU memory of decode against context: columns series, context_tokens, batch, gib.

    The GPUs' capacities are rows too, with batch 0.
    """
    import pandas as pd

    rows = []
    for placement, label in PLACEMENTS.items():
        for batch in batches:
            for n in contexts:
                parts = costs.gpu_bytes(
                    shape=shape, sparsity=sparsity, n_tokens=n, batch=batch, placement=placement
                )
                rows.append((f"{label}, batch {batch}", n, batch, gib(sum(parts.values()))))
    for gpu in gpus:
        rows += [(hardware(gpu).name, n, 0, hardware(gpu).memory_gib) for n in contexts]
    return pd.DataFrame(rows, columns=["series", "context_tokens", "batch", "gib"])


def memory_figure(table, *, note: str = ""):
    """Lines of memory_table on two logarithmic axes; capacities are grey and labelled."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, part) in enumerate(table.groupby("series", sort=False)):
        x, y = part["context_tokens"], part["gib"]
        if (part["batch"] == 0).all():
            line = {"color": TEXT, "dash": "dot", "width": 1}
            figure.add_scatter(x=x, y=y, name=name, mode="lines", line=line, showlegend=False)
            label = {"text": name, "showarrow": False, "xanchor": "left", "yanchor": "bottom"}
            figure.add_annotation(x=math.log10(x.iloc[0]), y=math.log10(y.iloc[0]), **label)
        else:
            figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", **series(index))
    contexts = sorted(set(table["context_tokens"]))
    ticks = {"tickvals": contexts, "ticktext": [f"{n // 1024}K" for n in contexts]}
    figure.update_xaxes(type="log", title="context, tokens (K = 1024)", **ticks)
    figure.update_yaxes(type="log", title="GPU memory in decode, GiB", tickvals=[2**p for p in range(12)])
    figure.update_layout(title_text="GPU memory against context, with and without offloading")
    return stamp(figure, "modelled", note, where="closed forms of sparda.costs")


def decode_table(
    shape: ModelShape,
    sparsity: Sparsity,
    *,
    n_tokens: int,
    batches: Sequence[int],
    hit_rates: Sequence[float],
    rates: Rates = H200_RATES,
):
    """Decode floor against batch, and the published 128K rows of Table 4 beside it.

    Columns: series, origin (modelled | published), batch, tokens_per_s, limit.
    """
    import pandas as pd

    rows = []
    for hit_rate in hit_rates:
        misses = misses_at(hit_rate=hit_rate, budget_blocks=sparsity.budget_blocks)
        for batch in batches:
            bound = decode_bound(
                shape=shape, sparsity=sparsity, n_tokens=n_tokens, batch=batch, misses=misses, rates=rates
            )
            label = f"bound, hit rate {hit_rate:g}"
            rows.append((label, "modelled", batch, bound.tokens_per_s, bound.limit))
    for method in ("SparDA", "Sparse"):
        rows += [
            (f"{method}, published", "published", int(r["batch"]), float(r["value"]), "")
            for r in paper.rows("table4_decode_throughput")
            if r["value"] and r["method"] == method and r["context"] == "128K"
            if r["model"] == "MiniCPM4.1-8B" and r["kv_location"] == "CPU offload"
        ]
    return pd.DataFrame(rows, columns=["series", "origin", "batch", "tokens_per_s", "limit"])


def decode_figure(table, *, note: str = ""):
    """Tokens a second against batch: bounds as lines, published points with large open markers."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, part) in enumerate(table.groupby("series", sort=False)):
        look = series(index)
        if (part["origin"] == "published").all():
            symbol = "star" if name.startswith("SparDA") else "hourglass"
            look["marker"] |= {"symbol": f"{symbol}-open", "size": 12}
            look["line"]["width"] = 1
        figure.add_scatter(x=part["batch"], y=part["tokens_per_s"], name=name, mode="lines+markers", **look)
    figure.update_xaxes(type="log", title="batch, sequences", tickvals=sorted(set(table["batch"])))
    ticks = [m * 10**p for p in range(1, 5) for m in (1, 2, 5)]
    figure.update_yaxes(type="log", title="decode, tokens/s", tickvals=ticks)
    figure.update_layout(title_text="Offloaded decode: the floor of a step as a ceiling on throughput")
    return stamp(figure, "modelled", note, where=f"bounds: {RATES}; published: H100, Table 4")


def roofline_table(
    shape: ModelShape, *, batches: Sequence[int], prompt_tokens: int = 4096, rates: Rates = H200_RATES
):
    """Operations of a decode step on the roofs of GPU memory and link.

    Columns: series, operation, flop_per_byte, tflop_per_s. Attention reads each key and value once for
    the G query heads that share it, so its intensity is G FLOP per byte in bf16, whatever the batch.
    """
    import pandas as pd

    roofs = {"GPU memory": rates.weights_gb_per_s, "link": rates.link_gb_per_s}
    rows = []

    def add(kind, operation, intensity, roof):
        speed = roofline_tflop_per_s(
            flop_per_byte=intensity, tflop_per_s=rates.tflop_per_s, gb_per_s=roofs[roof]
        )
        rows.append((kind, operation, intensity, speed))

    for roof, gb_per_s in roofs.items():
        ridge = ridge_flop_per_byte(tflop_per_s=rates.tflop_per_s, gb_per_s=gb_per_s)
        for intensity in (0.5, ridge, 40_000):
            add(f"roof: {roof}", "", intensity, roof)
    per_weight = costs.matmul_flops(shape=shape) / costs.step_weight_bytes(shape=shape, forecast=False)
    for batch in batches:
        add("weights", f"batch {batch}", per_weight * batch, "GPU memory")
    add("weights", f"prefill of {prompt_tokens}", per_weight * prompt_tokens, "GPU memory")
    add("attention", "resident blocks", shape.group, "GPU memory")
    add("attention", "missed blocks", shape.group, "link")
    add("selection", "by query", shape.group, "GPU memory")
    add("selection", "by Forecast", 1, "GPU memory")
    return pd.DataFrame(rows, columns=["series", "operation", "flop_per_byte", "tflop_per_s"])


def roofline_figure(table, *, note: str = ""):
    """Roofs as lines, operations as labelled points, on two logarithmic axes."""
    import plotly.graph_objects as go

    # points coincide, so each kind of label has its own side, and a wide space keeps it off the mark
    sides = {"resident blocks": "top left", "by query": "middle left", "by Forecast": "middle left"}
    sides |= {o: "bottom left" for o in table["operation"] if o.startswith("prefill")}
    figure = go.Figure()
    for index, (name, part) in enumerate(table.groupby("series", sort=False)):
        look = series(index)
        if not part["operation"].any():
            figure.add_scatter(
                x=part["flop_per_byte"], y=part["tflop_per_s"], name=name, mode="lines", line=look["line"]
            )
            continue
        places = [sides.get(operation, "bottom right") for operation in part["operation"]]
        labels = [
            f"{operation}\u2003" if "left" in place else f"\u2003{operation}"
            for operation, place in zip(part["operation"], places, strict=True)
        ]
        look["marker"] |= {"size": 10}
        if name == "selection":  # around the marks whose places it shares
            look["marker"] |= {"symbol": "circle-open", "size": 20, "line": {"width": 2}}
        figure.add_scatter(
            x=part["flop_per_byte"], y=part["tflop_per_s"], name=name, mode="markers+text",
            text=labels, textposition=places, marker=look["marker"],
        )  # fmt: skip
    decades = {"type": "log", "dtick": 1}
    figure.update_xaxes(title="arithmetic intensity, FLOP per byte", range=[-1.2, 4.9], **decades)
    figure.update_yaxes(title="reachable TFLOP/s", **decades)
    figure.update_layout(title_text="Rooflines of GPU memory and of the link")
    return stamp(figure, "modelled", note, where=RATES)
