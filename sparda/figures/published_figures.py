"""How a published table is drawn with ours beside it: lines over a size, bars over names."""

from __future__ import annotations

from typing import Any

from sparda.figures.attention_time import thousands
from sparda.figures.published_tables import SYSTEMS, Beside
from sparda.figures.style import TEXT, series, stamp

METHODS = ("Dense", "Sparse", "InfiniGen", "SparDA")  # of the tables of accuracy, always in this order
LOOKS = {  # one colour and mark in all figures; those that share one never meet
    "SparDA": 0,
    "Sparse": 1,
    "InfiniGen": 2,
    "Sparse, no offload": 3,
    "Dense": 4,
    "InfiniGen over UVA": 5,
    "Dense, cuDNN": 5,
}
LOOK = {"published": "published, H100", "measured": "ours"}


def lines(beside: Beside, *, title: str, x: str, y: str, note: str, log_y: bool = True) -> Any:
    """Values over batch or context: published open and thin, ours full; one colour and mark a system."""
    import plotly.graph_objects as go

    figure, table = go.Figure(), beside.table[beside.table["status"] == "ok"]
    known = [*SYSTEMS, *sorted(set(table["system"]) - set(SYSTEMS))]
    shown = [system for system in known if system in set(table["system"])]
    for system in shown:
        for origin, part in table[table["system"] == system].groupby("origin", sort=True):
            look = series(LOOKS.get(system, shown.index(system)))
            if look["marker"]["symbol"] == "x":  # a cross is what ran out of memory
                look["marker"] |= {"symbol": "triangle-down"}
            if origin == "published":
                look["marker"] |= {"symbol": look["marker"]["symbol"] + "-open", "size": 11}
                look["line"] |= {"width": 1}
            part = part.sort_values("x")
            figure.add_scatter(
                x=part["x"],
                y=part["value"],
                name=f"{system}, {LOOK[str(origin)]}",
                mode="lines+markers",
                **look,
            )
    _no_room(figure, beside.table, [*known, *SYSTEMS])
    ticks = sorted(set(beside.table["x"]))
    names = [thousands(n) if n >= 1024 else str(n) for n in ticks]
    figure.update_xaxes(title=x, type="log", tickvals=ticks, ticktext=names)
    if log_y:
        figure.update_yaxes(title=y, type="log", tickvals=[m * 10**p for p in range(5) for m in (1, 2, 5)])
    else:
        figure.update_yaxes(title=y, rangemode="tozero")
    return _stamped(figure, beside, title, note)


def _no_room(figure: Any, table: Any, order: list[str]) -> None:
    """Crosses below the lines, a row a system and side, at the sizes that ran out of memory."""
    failed, low = table[table["status"] != "ok"], table["value"].min()
    rows = sorted(failed.groupby(["system", "origin"]), key=lambda row: (order.index(row[0][0]), row[0][1]))
    for place, ((system, origin), part) in enumerate(rows, 1):
        x, said = sorted(part["x"]), f"{system}, {'theirs' if origin == 'published' else 'ours'} "
        look = series(place)["marker"] | {"symbol": "x-open" if origin == "published" else "x", "color": TEXT}
        figure.add_scatter(
            x=x, y=[low * 0.68**place] * len(x), mode="markers+text", marker=look,
            name="out of memory", showlegend=place == len(rows),
            text=[said, *[""] * (len(x) - 1)], textposition="middle left", textfont_size=11,
            hovertemplate=f"{said}out of memory at %{{x}}<extra></extra>",
        )  # fmt: skip


def bars(beside: Beside, *, title: str, y: str, note: str, by: str = "") -> Any:
    """Bars over names, or over ``by`` (such as batch) and system; ours plain beside the published hatched."""
    import plotly.graph_objects as go

    figure, table = go.Figure(), beside.table
    for index, (origin, pattern) in enumerate((("published", "/"), ("measured", ""))):
        part = table[table["origin"] == origin]
        if len(part):
            order = [SYSTEMS.index(s) if s in SYSTEMS else 0 for s in part["system"]]
            part = part.assign(order=order).sort_values(
                ["x", "order"], ascending=[True, False], kind="stable"
            )
            names = part["system"].str.replace("SparDA, no prefetch", "no<br>prefetch")
            x = [[f"{by} {value}" for value in part["x"]], list(names)] if by else list(part["x"])
            look = {"color": series(index)["marker"]["color"], "pattern": {"shape": pattern}}
            figure.add_bar(x=x, y=part["value"], name=LOOK[origin], marker=look)
    figure.update_xaxes(tickangle=0, tickfont_size=11)
    figure.update_yaxes(title=y, rangemode="tozero")
    return _stamped(figure, beside, title, note)


def ratios(beside: Beside, *, title: str, x: str, note: str) -> Any:
    """A mark for every ratio, names at the left: published open, ours full; a line at 1: nothing gained."""
    import plotly.graph_objects as go

    figure, table = go.Figure(), beside.table
    names = list(dict.fromkeys(table["system"]))[::-1]
    for index, origin in enumerate(("published", "measured")):
        part = table[table["origin"] == origin]
        if len(part):
            mark = series(index)["marker"] | {"size": 11}
            if origin == "published":
                mark["symbol"] += "-open"
            figure.add_scatter(
                x=part["value"], y=part["system"], mode="markers", marker=mark, name=LOOK[origin]
            )
    figure.add_vline(x=1, line={"dash": "dot", "width": 1, "color": TEXT})
    figure.update_xaxes(title=x, rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=names, tickfont_size=11)
    return _stamped(figure, beside, title, note, line_chars=75).update_layout(
        height=230 + 32 * len(names), margin={"t": 126}
    )


def accuracies(beside: Beside, *, title: str, y: str, note: str) -> Any:
    """Bars of accuracies: a group a benchmark or context, a bar a method; groups of ours say so below."""
    import plotly.graph_objects as go

    figure, table = go.Figure(), beside.table
    shapes = ("", "/", "x", ".", "+", "-")
    table = table.assign(x=table["x"].str.replace("ours: ", "ours:<br>"))
    known = [*METHODS, *sorted(set(table["system"]) - set(METHODS))]
    for index, method in enumerate(known):
        part = table[table["system"] == method]
        look = {"color": series(index)["marker"]["color"], "pattern": {"shape": shapes[index % len(shapes)]}}
        figure.add_bar(x=list(part["x"]), y=part["value"], name=str(method), marker=look)
    figure.update_yaxes(title=y, rangemode="tozero")
    figure.update_xaxes(categoryorder="array", categoryarray=list(dict.fromkeys(table["x"])), tickangle=0)
    return _stamped(figure, beside, title, note)


def _stamped(figure: Any, beside: Beside, title: str, note: str, **look: Any) -> Any:
    """Measured as soon as a row of ours is drawn; the published ones were measured too, by the authors."""
    figure.update_layout(title_text=title)
    ours = bool((beside.table["origin"] == "measured").any())
    where = f"ours: {beside.where}" if ours else "published numbers only, measured by the paper's authors"
    note = " · ".join(part for part in (note, beside.said) if part)
    stamp(figure, "measured", note, where=where, **look)
    top = max(96, 78 + 18 * figure.layout.title.subtitle.text.count("<br>"))  # room for the stamp
    named = sum(trace.showlegend is not False for trace in figure.data)
    return figure.update_layout(margin_t=top, height=max(440, top + 90 + 22 * named))
