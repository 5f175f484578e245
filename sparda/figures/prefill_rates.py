"""Prefill tokens a second against context: ceilings, the paper's rates, and ours."""

from __future__ import annotations

from collections.abc import Sequence

from sparda import paper
from sparda.bounds import H200_RATES
from sparda.costs import matmul_flops
from sparda.figures.attention_time import RATES, SELECTOR, thousands
from sparda.figures.benchmarks import PUBLISHED
from sparda.figures.measured import SOURCE, Run, source
from sparda.figures.style import series, stamp
from sparda.layer_work import prefill_work
from sparda.spec import ModelShape, Sparsity

PAPER = "published: H100, Table 3"


def throughput_table(
    shape: ModelShape, sparsity: Sparsity, run: Run | None, *, contexts: Sequence[int], rates=H200_RATES
):
    """Prefill rate: columns origin (modelled | published | measured), system, context, tokens_per_s.

    The ceiling adds the floors of all weight products and of every layer's selection and attention.
    """
    import pandas as pd

    rows = []
    for context in contexts:
        products = matmul_flops(shape=shape) * context / (rates.tflop_per_s * 1e12)
        for system, selector in SELECTOR.items():
            work = prefill_work(shape=shape, sparsity=sparsity, n_tokens=context, selector=selector)
            own = sum(work[part].floor_us(rates) for part in ("selection", "attention")) * 1e-6
            rows.append(("modelled", system, context, context / (products + shape.n_layers * own)))
    for row in paper.rows("prefill_throughput"):
        if row["model"] == "MiniCPM4.1-8B" and row["value"]:
            system = PUBLISHED[row["method"], row["kv_location"]]
            rows.append(("published", system, 1024 * int(row["context"][:-1]), float(row["value"])))
    table = pd.DataFrame(rows, columns=["origin", "system", "context", "tokens_per_s"])
    return table if run is None else pd.concat([table, measured_prefill(run)], ignore_index=True)


def measured_prefill(run: Run):
    """Rows of prefill.csv in the form of throughput_table, with SOURCE; dense by cuDNN apart."""
    names = run.rows["selector"].map({selector: system for system, selector in SELECTOR.items()})
    names = names.where(run.rows["attention"] != "cudnn", "Dense, cuDNN")
    rows = run.rows.assign(system=names, origin="measured").dropna(subset=["system", "tokens_per_s"])
    best = rows.sort_values(["system", "context", "tokens_per_s"]).drop_duplicates(
        ["system", "context"], keep="last"
    )
    columns = ["origin", "system", "context", "tokens_per_s", *SOURCE]
    return best[[name for name in columns if name in best]].reset_index(drop=True)


def throughput_figure(table, *, note: str = "", where: str = ""):
    """Rate against context: ceilings as thin lines, published as open marks, measured as full ones."""
    import plotly.graph_objects as go

    figure = go.Figure()
    systems = list(dict.fromkeys(table["system"]))
    for (system, origin), part in table.groupby(["system", "origin"], sort=False):
        look = series(systems.index(system))
        look |= {"mode": "lines+markers"}
        if origin == "modelled":
            look = {"mode": "lines", "line": look["line"] | {"width": 1}}
        elif origin == "published":
            look = {
                "mode": "markers",
                "marker": look["marker"] | {"symbol": look["marker"]["symbol"] + "-open", "size": 11},
            }
        name = f"{system}, {'ceiling' if origin == 'modelled' else origin}"
        figure.add_scatter(x=part["context"], y=part["tokens_per_s"], name=name, **look)
    contexts = sorted(set(table["context"]))
    figure.update_xaxes(title="context, tokens", tickvals=contexts, ticktext=[thousands(n) for n in contexts])
    figure.update_yaxes(title="prefill, tokens/s", rangemode="tozero")
    figure.update_layout(title_text="Prefill: tokens a second against context")
    measured = bool((table["origin"] == "measured").any())
    where = source(table[table["origin"] == "measured"]) or where
    sources = f"{RATES}; {PAPER}"
    return stamp(
        figure,
        "measured" if measured else "modelled",
        note,
        where=f"{where}; {sources}" if measured else sources,
    )
