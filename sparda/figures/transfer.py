"""The curves behind the choice of CTAs: measured bandwidth and interference, and a layer's time by them."""

from __future__ import annotations

from collections.abc import Iterable

from sparda.figures.style import series, stamp
from sparda.linkmodel import CTA_COUNTS, LinkModel
from sparda.prefetch import HIT_RATE, Prefetch, pick_ctas

TICKS = [1, 2, 4, 8, 16, 32, 64, 132]
ENGINE = 0.4  # the place of the copy engine on the axis: it takes no CTA
PERCENT = [1, 2, 5, 10, 20, 50, 100, 200, 500]


def paper_ctas(batch: int) -> int:
    """The paper's rule on an H100: 16 CTAs, from batch 32 on 32 (data/paper/table7_ctas.csv).

    The released code differs: there batch 17 has 32 already.
    """
    return 16 if batch < 32 else 32


def curves_figure(table, fitted: LinkModel, *, where: str):
    """Measured GB/s and slow-down of compute against CTAs, with the fitted curves through them.

    table : transfer.csv, the rows of one shape of a CTA and those of the copy engine (left of one CTA)
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, horizontal_spacing=0.12)
    engine = table["transport"] == "copy_engine"
    rows = table.assign(n_ctas=table["n_ctas"].mask(engine, ENGINE))
    for index, (beside, part) in enumerate(rows.groupby("beside", sort=False)):
        look = {"name": f"{beside}, measured", "mode": "markers", "legendgroup": beside, **series(index)}
        figure.add_scatter(x=part["n_ctas"], y=part["gb_per_s"], **look, row=1, col=1)
        if beside != "alone":
            slow = 100 * (part["slowdown"] - 1)
            figure.add_scatter(x=part["n_ctas"], y=slow, showlegend=False, **look, row=1, col=2)
    counts = [c for c in CTA_COUNTS if c in set(rows["n_ctas"])]
    curves = {
        "alone, model": (3, 1, [fitted.idle(c) for c in counts]),
        "ffn, model": (4, 1, [fitted.bandwidth(c) for c in counts]),
        "slow-down of a layer, model": (5, 2, [100 * (fitted.slowdown(c) - 1) for c in counts]),
    }
    for name, (index, col, values) in curves.items():
        figure.add_scatter(x=counts, y=values, mode="lines", name=name, **series(index), row=1, col=col)
    names = ["copy<br>engine", *map(str, TICKS)]
    figure.update_xaxes(title="CTAs", type="log", tickvals=[ENGINE, *TICKS], ticktext=names, tickangle=0)
    figure.update_yaxes(title="GB/s", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="slow-down, % (log)", type="log", tickvals=PERCENT, row=1, col=2)
    figure.update_layout(title_text="Rate of the gather, and what it costs compute")
    return stamp(
        figure,
        "measured",
        "32 KiB runs; copy engine: one large copy; each side timed inside the other",
        where=where,
    )


def ctas_table(fitted: LinkModel, batches: Iterable[int] = (4, 16, 64), hit_rate: float = HIT_RATE):
    """Columns batch, n_ctas, layer_us, best, paper: modelled time of a layer for every CTA count."""
    import pandas as pd

    rows = []
    for batch, best in pick_ctas(fitted, batches, hit_rate).items():
        step = Prefetch(batch=batch, hit_rate=hit_rate)
        work = {"n_bytes": step.layer_bytes, "compute_us": step.compute_us()}
        for c in CTA_COUNTS:
            rows.append((batch, c, fitted.layer(n_ctas=c, **work).total, c == best, c == paper_ctas(batch)))
    return pd.DataFrame(rows, columns=["batch", "n_ctas", "layer_us", "best", "paper"])


def ctas_figure(table, note: str = ""):
    """Modelled time of a layer over the best count's; the pick and the published rule are marked."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (batch, rows) in enumerate(table.groupby("batch")):
        ratio = rows["layer_us"] / rows["layer_us"].min()
        sizes = [16 if best else 7 for best in rows["best"]]
        look = series(index) | {"marker": series(index)["marker"] | {"size": sizes}}
        figure.add_scatter(x=rows["n_ctas"], y=ratio, name=f"batch {batch}", mode="lines+markers", **look)
        rule = rows["paper"]
        ring = {"symbol": "circle-open", "size": 22, "color": series(index)["marker"]["color"]}
        figure.add_scatter(
            x=rows["n_ctas"][rule],
            y=ratio[rule],
            mode="markers",
            marker=ring,
            name=f"paper's rule, batch {batch}",
        )
    figure.update_xaxes(title="CTAs", type="log", tickvals=TICKS)
    figure.update_yaxes(title="time of a layer / best", range=[0.99, 1.2])  # few CTAs leave the top
    figure.update_layout(title_text="Time of a layer by CTA count (large marker: the pick)")
    return stamp(figure, "modelled", note)
