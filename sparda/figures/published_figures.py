"""How a published table is drawn with ours beside it: lines over a size, bars over names."""

from __future__ import annotations

from typing import Any

from sparda.figures.attention_time import thousands
from sparda.figures.published_tables import SYSTEMS, Beside
from sparda.figures.style import TEXT, series, stamp

LOOK = {"published": "published, H100", "measured": "ours"}


def lines(beside: Beside, *, title: str, x: str, y: str, note: str, log_y: bool = True) -> Any:
    """Values over batch or context: published open and thin, ours full; one colour and mark a system."""
    import plotly.graph_objects as go

    figure, table = go.Figure(), beside.table
    known = [*SYSTEMS, *sorted(set(table["system"]) - set(SYSTEMS))]
    shown = [system for system in known if system in set(table["system"])]
    for system in shown:
        for origin, part in table[table["system"] == system].groupby("origin", sort=True):
            look = series(shown.index(system))
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
    ticks = sorted(set(table["x"]))
    names = [thousands(n) if n >= 1024 else str(n) for n in ticks]
    figure.update_xaxes(title=x, type="log", tickvals=ticks, ticktext=names)
    if log_y:
        figure.update_yaxes(title=y, type="log", tickvals=[m * 10**p for p in range(5) for m in (1, 2, 5)])
    else:
        figure.update_yaxes(title=y, rangemode="tozero")
    return _stamped(figure, beside, title, note)


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


def published_only(beside: Beside, *, title: str, y: str, note: str) -> Any:
    """Bars of a table that nothing of ours can stand beside yet: a group a benchmark, a bar a method."""
    import plotly.graph_objects as go

    figure, table = go.Figure(), beside.table
    shapes = ("", "/", "x", ".", "+", "-")
    for index, (method, part) in enumerate(table.groupby("system", sort=False)):
        look = {"color": series(index)["marker"]["color"], "pattern": {"shape": shapes[index % len(shapes)]}}
        figure.add_bar(x=list(part["x"]), y=part["value"], name=f"{method}, published", marker=look)
    figure.update_yaxes(title=y, rangemode="tozero")
    return _stamped(figure, beside, title, note)


def _stamped(figure: Any, beside: Beside, title: str, note: str, **look: Any) -> Any:
    """Measured as soon as a row of ours is drawn; the published ones were measured too, by the authors."""
    figure.update_layout(title_text=title)
    ours = bool((beside.table["origin"] == "measured").any())
    where = f"ours: {beside.where}" if ours else "published numbers only, measured by the paper's authors"
    return stamp(figure, "measured", note, where=where, **look)
