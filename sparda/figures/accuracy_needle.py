"""Why tasks are lost (chapter 07): by haystack, by the needle's mass in each layer, by exchanging layers.

A haystack is "noise" (five sentences, repeated) or "prose". Rows of needle.csv come from
``sparda.evaluation.needle``: mass that dense attention has on a fact's blocks while its answer is written,
and the part of it in the blocks that a method chooses. Rows of exchange.csv come from
``sparda.evaluation.exchange``: what an answer gains if the query chooses in a layer instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparda.evaluation.accuracy import AVERAGE
from sparda.figures.accuracy import LOOKS, context_name
from sparda.figures.accuracy_data import LABELS, paired
from sparda.figures.style import HATCH, TEXT, series, stamp

HAYS = ("noise", "prose")
ALL = "all tasks"
SHOWN = ("sparse", "sparda", "infinigen")
_PLACE = ["context", "budget_blocks"]


def by_hay(samples: Sequence[dict[str, str]], pairs):
    """Mean paired differences over the tasks that count, of all and of each haystack: rows as in pairs.csv.

    samples : rows of samples.csv as text; pairs : rows of pairs.csv with ``share``

    ``hay`` is one of ``HAYS`` or ``ALL``; tasks without a haystack are in ``ALL`` only.
    """
    import pandas as pd

    parts = [pairs[pairs["task"] == AVERAGE].assign(hay=ALL)]
    shares = pairs[[*_PLACE, "share"]].drop_duplicates()
    for hay in HAYS:
        means = paired([row for row in samples if row["task"].endswith(f"_{hay}")])
        if len(means):
            parts.append(means[means["task"] == AVERAGE].assign(hay=hay).merge(shares, on=_PLACE))
    return pd.concat(parts, ignore_index=True)


def by_layer(rows):
    """Rows of needle.csv of single layers, ``layer`` as a number, with their ``hay``."""
    rows = rows[rows["layer"].astype(str) != "mean"]
    return rows.assign(layer=rows["layer"].astype(int), hay=rows["task"].str.rsplit("_", n=1).str[-1])


def needle_table(rows, context: int, budget_blocks: int):
    """Mass on the needle by haystack, method and layer, means over tasks: columns mass, caught, missed.

    rows : of needle.csv; of the contexts and k in them the nearest is taken
    """
    rows = _nearest(by_layer(rows), context, budget_blocks)
    key = [*_PLACE, "hay", "method", "layer"]
    table = rows.groupby(key, as_index=False)[["mass", "caught"]].mean()
    return table.assign(missed=table["mass"] - table["caught"])


def needle_gains(rows, context: int, budget_blocks: int, method: str = "sparda"):
    """What a method catches beyond the query, by task and layer: columns gain, gain_low, gain_high.

    rows : of needle.csv; of the contexts and k in them the nearest is taken
    """
    return _nearest(by_layer(rows[rows["method"] == method]), context, budget_blocks)


def _nearest(rows, context: int, budget_blocks: int):
    """The rows of one context and k."""
    places = sorted(set(zip(rows["context"], rows["budget_blocks"], strict=True)))
    at = min(places, key=lambda place: (abs(place[0] - context), abs(place[1] - budget_blocks)))
    return rows[(rows["context"] == at[0]) & (rows["budget_blocks"] == at[1])]


def needle_figure(table, *, note: str = "", where: str = ""):
    """Bars as high as the mass on the needle, layer by layer: the part that a choice catches and the rest.

    A column of panels for each haystack, a row for each method.
    """
    from plotly.subplots import make_subplots

    hays = [hay for hay in HAYS if hay in set(table["hay"])]
    methods = [method for method in SHOWN if method in set(table["method"])]
    panels = [(method, hay) for method in methods for hay in hays]
    parts = [table[(table["method"] == method) & (table["hay"] == hay)] for method, hay in panels]
    held = [f"{100 * part['caught'].sum() / part['mass'].sum():.0f} %" for part in parts]
    titles = [f"{hay}: {LABELS[m]} catches {share}" for (m, hay), share in zip(panels, held, strict=True)]
    figure: Any = make_subplots(
        len(methods), len(hays), shared_xaxes=True, shared_yaxes=True, subplot_titles=titles,
        horizontal_spacing=0.04, vertical_spacing=0.09,
    )  # fmt: skip
    figure.update_annotations(font={"size": 13, "color": TEXT})
    seen: set[str] = set()
    for index, part in enumerate(parts):
        row, column = divmod(index, len(hays))
        for bar in _bars(panels[index][0], part):
            figure.add_trace(bar.update(showlegend=bar.name not in seen), row=row + 1, col=column + 1)
            seen.add(bar.name)
    figure.update_xaxes(dtick=5, showgrid=False)
    figure.update_xaxes(title="layer", row=len(methods))
    figure.update_yaxes(title="% of attention", col=1)
    context, k = (int(table[column].iloc[0]) for column in _PLACE)
    title = f"Attention on the needle, and what is caught of it: {context_name(context)} tokens, k {k}"
    figure.update_layout(title_text=title, barmode="stack", bargap=0.25, legend_traceorder="normal")
    height = 150 + 175 * len(methods)
    return stamp(figure, "measured", note, where=where).update_layout(height=height, margin_t=132)


def _bars(method: str, part) -> list[Any]:
    """What a method catches, in its colour, and above it what it misses, hatched."""
    import plotly.graph_objects as go

    caught = {"color": series(LOOKS[method])["marker"]["color"]}
    hatch = {"shape": "/", "fgcolor": TEXT, "size": HATCH["size"], "solidity": HATCH["solidity"]}
    missed = {"color": "rgba(128,128,128,0.15)", "line": {"color": TEXT, "width": 1}, "pattern": hatch}
    shares = (100 * part[["caught", "missed"]]).astype("float32")  # half the bytes in a chapter's output
    return [
        go.Bar(x=part["layer"], y=shares["caught"], name=f"caught by {LABELS[method]}", marker=caught),
        go.Bar(x=part["layer"], y=shares["missed"], name="missed", marker=missed),
    ]


def exchange_table(rows, context: int, budget_blocks: int, method: str = "sparda"):
    """One method's rows of exchange.csv; of contexts and k the nearest is taken. ValueError: none."""
    rows = rows[rows["method"] == method]
    if rows.empty:
        raise ValueError(f"exchange.csv has no {method}; run `sparda eval exchange --methods {method}`")
    return _nearest(rows, context, budget_blocks)


def exchange_figure(table, *, note: str = "", where: str = ""):
    """What the answer gains, a bar a layer, if the query chooses there; a panel for each task.

    A dotted line marks the gain if it chooses in every layer.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    tasks = list(dict.fromkeys(table["task"]))
    panels = {"shared_yaxes": True, "subplot_titles": tasks, "horizontal_spacing": 0.04}
    figure: Any = make_subplots(1, len(tasks), **panels)
    figure.update_annotations(font={"size": 13, "color": TEXT})
    colour = series(LOOKS["sparse"])["marker"]["color"]
    for column, task in enumerate(tasks, 1):
        part = table[table["task"] == task]
        single = part[part["layer"].str.isdigit()]
        above, below = single["gain_high"] - single["gain"], single["gain"] - single["gain_low"]
        error = {"array": above, "arrayminus": below, "color": TEXT, "thickness": 1, "width": 2}
        bar = go.Bar(
            x=single["layer"].astype(int), y=single["gain"], error_y=error, marker={"color": colour},
            name="the query chooses in this layer", showlegend=column == 1,
        )  # fmt: skip
        figure.add_trace(bar, row=1, col=column)
        every = part.loc[part["layer"] == "all", "gain"].iloc[0]
        line = go.Scatter(
            x=[-0.5, len(single) - 0.5], y=[every, every], mode="lines", line={"color": TEXT, "dash": "dot"},
            name="in every layer", showlegend=column == 1,
        )  # fmt: skip
        figure.add_trace(line, row=1, col=column)
    figure.update_xaxes(title="layer", dtick=5, showgrid=False)
    figure.update_yaxes(title="ln p of the answer, gain", col=1)
    context, k = (int(table[column].iloc[0]) for column in _PLACE)
    method = LABELS.get(table["method"].iloc[0], table["method"].iloc[0])
    title = f"{method}'s answer if the query chooses instead: gain at {context_name(context)} tokens, k {k}"
    figure.update_layout(title_text=title, bargap=0.25)
    return stamp(figure, "measured", note, where=where).update_layout(height=420, margin_t=120)
