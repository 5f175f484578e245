"""More slots than k: hit rates of a real model, layer by layer, and what they are worth on a GPU."""

from __future__ import annotations

from sparda.figures.measured import SOURCE, Run, source
from sparda.figures.style import DASHES, TEXT, series, stamp

KEPT = ["system", "batch", "cache_slots", "hit_rate", "tokens_per_s", "peak_gpu_gib"]


def slots_figure(table, *, note: str = ""):
    """Hit rate of every layer, one line for each number of slots; columns layer, slots, hit_rate."""
    import plotly.graph_objects as go

    figure, lowest = go.Figure(), 1.0
    for index, (slots, part) in enumerate(table.groupby("slots", sort=True)):
        means = part.groupby("layer", as_index=False)["hit_rate"].mean()
        lowest = min(lowest, means["hit_rate"].min())
        figure.add_scatter(
            x=means["layer"],
            y=means["hit_rate"],
            name=f"{slots} slots",
            mode="lines+markers",
            **series(index),
        )
    figure.update_xaxes(title="layer (layer 0 is resident)")
    figure.update_yaxes(title="hit rate", range=[max(0.0, lowest - 0.05), 1.02])
    figure.update_layout(title_text="More slots than blocks chosen: what stays may be wanted again")
    return stamp(figure, "measured", note)


def recorded_table(run: Run, *, n_tokens: int):
    """Rows of decode.csv that replay a real model's choices: KEPT, SOURCE, the ceiling bound_tokens_per_s.

    Only on a whole card; systems have one name whatever their slots. Raises ValueError without such rows.
    """
    rows = run.rows[(run.rows["choices"] == "recorded") & (run.rows["context"] == n_tokens)]
    rows = rows[rows["gpu_memory_gib"].isna()]
    if rows.empty:
        raise ValueError(
            "no row replays recorded choices; run `sparda bench decode --hit-rates real --slots k,144,192`"
        )
    rows = rows.assign(
        system=rows["system"].str.replace(r", \d+ slots$", "", regex=True),
        bound_tokens_per_s=1e3 * rows["batch"] / rows["bound_ms"],
    )
    columns = [*KEPT, "bound_tokens_per_s", *(name for name in SOURCE if name in rows)]
    return rows.sort_values(["system", "batch", "cache_slots"])[columns]


def recorded_figure(table, *, note: str = "", where: str = ""):
    """Left the hit rate against slots, right tokens a second, a line for each system and batch."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, horizontal_spacing=0.14, column_widths=[0.4, 0.6])
    rates = table.groupby("cache_slots", as_index=False)["hit_rate"].mean()
    x, y = rates["cache_slots"], rates["hit_rate"]
    look = {"mode": "lines+markers", "name": "hit rate", "showlegend": False} | series(4)
    figure.add_scatter(x=x, y=y, **look, row=1, col=1)
    for index, ((batch, system), part) in enumerate(table.groupby(["batch", "system"], sort=True)):
        look = {"name": f"{system}, batch {batch}", "mode": "lines+markers"} | series(index)
        figure.add_scatter(x=part["cache_slots"], y=part["tokens_per_s"], **look, row=1, col=2)
    for index, (batch, part) in enumerate(table.groupby("batch", sort=True)):
        part = part.drop_duplicates("cache_slots")
        name, line = f"ceiling, batch {batch}", {"color": TEXT, "width": 1, "dash": DASHES[index]}
        ys = part["bound_tokens_per_s"]
        figure.add_scatter(x=part["cache_slots"], y=ys, name=name, mode="lines", line=line, row=1, col=2)
    ticks = sorted(set(table["cache_slots"]))
    figure.update_xaxes(title="slots a KV head", tickvals=ticks)
    figure.update_yaxes(title="hit rate", row=1, col=1)
    figure.update_yaxes(title="tokens/s", rangemode="tozero", row=1, col=2)
    figure.update_layout(title_text="More slots than k: fewer misses, more tokens a second")
    return stamp(figure, "measured", note, where=source(table) or where)
