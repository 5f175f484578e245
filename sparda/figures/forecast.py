"""How well does a Forecast choose? Figures of chapter 03.

Tables of choices have the columns series, layer, head, mass_recall, agreement: computed while one waits
(``forecast_live.compare``) or read from recall.csv (``forecast_data.recalls``).
"""

from __future__ import annotations

import math

from sparda.figures.style import GRID, HEAT, TEXT, series, stamp

ORDER = ("Forecast", "query", "proxy", "oracle", "InfiniGen", "forced only")  # index of style.series()
LEAST_GAP = 0.005  # of all attention: below it, the share that is closed says nothing


def _look(name: str) -> dict:
    return series(ORDER.index(name))


def gap_closed(ours, query, oracle):
    """Share of the gap between query selection and oracle that a choice closes: 0 is the query's, 1 all.

    >>> round(gap_closed(0.86, 0.84, 0.90), 2)
    0.33
    """
    return (ours - query) / (oracle - query)


def closed_by(table, name: str = "Forecast") -> float:
    """Gap closed by the means over layers 1 and up, as in a run's log; nan without both ends."""
    rows = table[table["layer"] > 0]
    ours = rows.loc[rows["series"] == name, ["layer", "head"]]
    rows = rows.merge(ours, on=["layer", "head"])  # all series where ours chose
    means = rows.groupby("series")["mass_recall"].mean()
    if not {name, "query", "oracle"} <= set(means.index):
        return float("nan")
    return float(gap_closed(means[name], means["query"], means["oracle"]))


def training_figure(learned, bounds, *, note: str = "", where: str | None = None):
    """Recall of the Forecast against steps, a panel a layer, beside what query, proxy and oracle reach.

    learned : columns step, layer, mass_recall; bounds : a table of choices at the same layers
    """
    from plotly.subplots import make_subplots

    layers = sorted(set(learned["layer"]))
    figure = make_subplots(cols=len(layers), shared_yaxes=True, subplot_titles=[f"layer {n}" for n in layers])
    means = bounds.groupby(["series", "layer"])["mass_recall"].mean()
    ends = [learned["step"].min(), learned["step"].max()]
    for col, layer in enumerate(layers, 1):
        mine = learned[learned["layer"] == layer]
        lines = [("Forecast", mine["step"], mine["mass_recall"], "lines+markers")]
        lines += [(n, ends, [means[n, layer]] * 2, "lines") for n in ("query", "proxy", "oracle")]
        for name, x, y, mode in lines:
            figure.add_scatter(
                x=x, y=y, name=name, mode=mode, legendgroup=name, showlegend=col == 1, row=1, col=col,
                **_look(name),
            )  # fmt: skip
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="mass recall, held-out text", col=1)
    figure.update_layout(title_text="Two layers learn to choose")
    return stamp(figure, "measured", note, where=where).update_layout(margin_t=130)


def layers_figure(table, *, note: str = "", where: str | None = None):
    """Mass recall of each layer, mean over heads, a line a series."""
    import plotly.graph_objects as go

    figure, means = go.Figure(), table.groupby(["series", "layer"], as_index=False)["mass_recall"].mean()
    for name in (n for n in ORDER if n in set(means["series"])):
        rows = means[means["series"] == name].sort_values("layer")
        figure.add_scatter(
            x=rows["layer"], y=rows["mass_recall"], name=name, mode="lines+markers", **_look(name)
        )
    figure.update_xaxes(title="layer that is chosen for")
    least = 0.1 * math.floor(10 * means["mass_recall"].min())
    figure.update_yaxes(title="mass recall", range=[least, 1.02])
    figure.update_layout(title_text="Mass recall layer by layer")
    return stamp(figure, "measured", note, where=where)


def gain_figure(gains, *, note: str = "", where: str | None = None):
    """Mass of the Forecast's choice beyond the query's, layer by layer, with intervals where there are any.

    gains : columns text, layer, gain, low, high
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (text, rows) in enumerate(gains.groupby("text", sort=False)):
        error = {"array": rows["high"] - rows["gain"], "arrayminus": rows["gain"] - rows["low"]}
        figure.add_scatter(
            x=rows["layer"] + 0.2 * index, y=rows["gain"], name=text, mode="markers",
            error_y={"symmetric": False, **error}, marker=series(index)["marker"],
        )  # fmt: skip
    figure.add_hline(y=0, line={"color": TEXT, "width": 1})
    figure.update_xaxes(title="layer that is chosen for")
    figure.update_yaxes(title="mass beyond the query's choice")
    figure.update_layout(title_text="What the Forecast gains over the query that it replaces")
    return stamp(figure, "measured", note, where=where)


def gap_table(table, name: str = "Forecast"):
    """Layer by layer and head by head: columns layer, head, gap (oracle minus query), won, closed.

    closed is empty where the gap is below ``LEAST_GAP`` of the attention.
    """
    wide = table.pivot_table(index=["layer", "head"], columns="series", values="mass_recall")
    wide = wide.dropna(subset=[name]).reset_index()
    gap, won = wide["oracle"] - wide["query"], wide[name] - wide["query"]
    closed = (won / gap).where(gap >= LEAST_GAP)
    return wide[["layer", "head"]].assign(gap=gap, won=won, closed=closed)


def gap_figure(gaps, *, note: str = "", where: str | None = None):
    """Two heat maps, heads against layers: what there is to win, and the share of it that was won."""
    from plotly.subplots import make_subplots

    titles = ("oracle minus query, share of all attention", "share of that gap closed by the Forecast")
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.2, subplot_titles=titles)
    looks = {
        "gap": {"colorscale": HEAT, "zmin": 0, "colorbar": {"y": 0.81, "len": 0.42}},
        # 0 is as good as the query; what is worse is red
        "closed": {"colorscale": "RdBu", "zmin": -1, "zmax": 1, "colorbar": {"y": 0.2, "len": 0.42}},
    }
    for row, (column, look) in enumerate(looks.items(), 1):
        grid = gaps.pivot(index="head", columns="layer", values=column)
        hover = "layer %{x}, head %{y}: %{z:.3f}<extra></extra>"
        figure.add_heatmap(
            z=grid.to_numpy(), x=list(grid.columns), y=[str(h) for h in grid.index], row=row, col=1,
            hovertemplate=hover, hoverongaps=False, **look,
        )  # fmt: skip
    figure.update_yaxes(title="KV head", gridcolor=GRID)
    figure.update_xaxes(title="layer that is chosen for", row=2)
    figure.update_layout(title_text="Where there is something to win, and where it is won", height=500)
    return stamp(figure, "measured", note, where=where).update_layout(margin_t=130)


def yardstick_table(table):
    """Of each series and layer: agreement with the query's choice, and mass beyond it (gain)."""
    means = table.groupby(["series", "layer"], as_index=False)[["mass_recall", "agreement"]].mean()
    query = means[means["series"] == "query"].set_index("layer")["mass_recall"]
    means = means[~means["series"].isin(["query", "forced only"])]
    return means.assign(gain=means["mass_recall"] - means["layer"].map(query))


def yardstick_figure(points, *, note: str = "", where: str | None = None):
    """A mark a layer: agreement with the query's choice, against the mass that is gained over it."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for name in (n for n in ORDER if n in set(points["series"])):
        rows = points[points["series"] == name]
        figure.add_scatter(
            x=rows["agreement"], y=rows["gain"], name=name, mode="markers", customdata=rows[["layer"]],
            hovertemplate="layer %{customdata[0]}: %{x:.2f}, %{y:+.3f}", marker=_look(name)["marker"],
        )  # fmt: skip
    figure.add_hline(y=0, line={"color": TEXT, "width": 1})
    figure.update_xaxes(title="agreement with the query's choice", range=[-0.02, 1.02], tickformat=".0%")
    figure.update_yaxes(title="mass beyond the query's choice")
    figure.update_layout(title_text="To agree is not to choose well")
    return stamp(figure, "measured", note, where=where)
