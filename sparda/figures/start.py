"""The two figures of chapter 00: which blocks each layer read, and at which budget the answer breaks."""

from __future__ import annotations

from collections.abc import Mapping

from sparda.blocks import block_mask
from sparda.figures.style import HEAT, TEXT, series, stamp
from sparda.models.probe import Probe, Record


def blocks_read_table(probes: Mapping[str, tuple[Probe, int]], *, n_blocks: int, needle_block: int):
    """How many KV heads of each layer read each block in one forward pass, for one or more runs.

    probes : name of the run -> (its probe, the forward pass to look at)
    Columns run, layer, block, heads, needle (whether the block holds the needle's number).
    """
    import pandas as pd

    rows = []
    for run, (probe, step) in probes.items():
        for record in (r for r in probe.records if r.step == step):
            for block, heads in enumerate(_heads_reading(record, n_blocks)):
                rows.append((run, record.layer, block, heads, block == needle_block))
    return pd.DataFrame(rows, columns=["run", "layer", "block", "heads", "needle"])


def _heads_reading(record: Record, n_blocks: int) -> list[int]:
    """KV heads of the first sequence whose last query reads each block; n_blocks numbers."""
    return block_mask(record.block_ids[0, :, -1], n_blocks).sum(0).tolist()


def blocks_read_figure(table, *, note: str = "", where: str | None = None):
    """One heat map a run, layers against blocks, coloured by the KV heads that read; the needle is framed."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    runs = table["run"].drop_duplicates().tolist()
    needle = int(table.loc[table["needle"], "block"].iloc[0])
    figure = make_subplots(rows=1, cols=len(runs), shared_yaxes=True, subplot_titles=runs)
    for col, run in enumerate(runs, start=1):
        grid = table[table["run"] == run].pivot(index="layer", columns="block", values="heads")
        heat = go.Heatmap(
            x=grid.columns.to_numpy(), y=grid.index.to_numpy(), z=grid.to_numpy(), colorscale=HEAT,
            zmin=0, zmax=int(table["heads"].max()), showscale=col == 1, xgap=1, ygap=1,
            colorbar={"title": "KV heads<br>that read", "dtick": 1},
            hovertemplate="layer %{y}, block %{x}: %{z} heads<extra></extra>",
        )  # fmt: skip
        figure.add_trace(heat, row=1, col=col)
        figure.add_vrect(x0=needle - 0.5, x1=needle + 0.5, line={"color": TEXT, "width": 3}, row=1, col=col)  # type: ignore[arg-type]
        figure.update_xaxes(title=f"block (needle: {needle})", row=1, col=col)
    figure.update_yaxes(title="layer", col=1)
    figure.update_layout(title_text="Blocks read while the first digit is chosen")
    stamp(figure, "measured", note, where=where)
    return figure.update_layout(height=520, margin={"t": 128})  # room for the names of the runs


def right_answers(replies):
    """Count the right answers of ``needle.sweep``.

    Columns selector, budget_blocks, right, asked, reads_needle (the mean over the prompts).
    """
    groups = replies.groupby(["selector", "budget_blocks"], sort=False)
    means = {"right": ("right", "sum"), "asked": ("right", "count"), "reads_needle": ("reads_needle", "mean")}
    return groups.agg(**means).reset_index()


def budget_figure(counts, *, note: str = "", where: str | None = None):
    """Right answers against the budget, a line a selector; "all" is drawn as the dense reference.

    counts : ``right_answers``; marks of one budget and as many right answers stand side by side
    """
    import plotly.graph_objects as go

    figure, asked = go.Figure(), int(counts["asked"].max())
    some = counts[counts["selector"] != "all"]
    place = some.groupby(["budget_blocks", "right"]).cumcount()
    aside = (some["budget_blocks"].max() - some["budget_blocks"].min() or 1) / 40
    some = some.assign(x=some["budget_blocks"] + aside * place)
    for index, (name, part) in enumerate(some.groupby("selector", sort=False)):
        part = part.sort_values("budget_blocks")
        figure.add_scatter(
            x=part["x"], y=part["right"], name=name, mode="lines+markers", customdata=part[["budget_blocks"]],
            hovertemplate="k %{customdata[0]}: %{y} of " + str(asked), **series(index),
        )  # fmt: skip
    for right in counts.loc[counts["selector"] == "all", "right"]:
        text = {"text": f"dense: {right} of {asked}", "xanchor": "right", "x": 1, "yshift": 8}
        figure.add_hline(y=right, line={"color": TEXT, "dash": "dot"}, annotation=text)
    figure.update_xaxes(title="budget k, blocks")
    figure.update_yaxes(title=f"right answers of {asked}", dtick=1, range=[-0.3, asked + 0.5])
    figure.update_layout(title_text="At which budget does the answer break?")
    return stamp(figure, "measured", note, where=where)
