"""One look for every figure: palette, dashes, template, and the stamp that says where numbers come from.

Colours and the text grey keep a contrast of at least 3 (text: 4) on white and on near-black, so one figure
serves light and dark pages. Two series always differ in dash and marker too, never in colour alone.

A figure is as wide as its page, from a notebook's cell beside an open file browser (568 px) to a full screen,
and plotly breaks no line on its own. So lines are broken for the narrowest page, what would take width stands
above or below the plot, and the margins follow from what is there (``fit``).
"""

from __future__ import annotations

import textwrap
from functools import lru_cache
from typing import Any

STATUSES = ("measured", "modelled", "simulated")
PALETTE = ("#2f7fc1", "#c8690a", "#12875f", "#b0559f", "#c94a4a", "#7d7a1f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "cross", "triangle-up", "x")
TEXT = "#757a82"
GRID = "rgba(128,128,128,0.25)"
HATCH = {
    "fillmode": "overlay",
    "fgcolor": "white",
    "fgopacity": 0.35,
    "size": 9,
    "solidity": 0.2,
}  # a bar's pattern
NARROWEST = 568  # px: a notebook's cell in a window of 1,000 px, beside its file browser
TITLE_CHARS, LINE_CHARS = 54, 74  # of a line of the title at 16 px and of the stamp at 12 px, on that page
TOOLBAR, SIDE = 28, 12  # px: plotly's buttons above the title, and what is left free beside it
HEIGHT, LEAST_PLOT = 460, 200  # px: of a figure, and of the plot between its title and its legend
BELOW = {
    "orientation": "h", "x": 0, "xref": "container", "xanchor": "left", "y": 0, "yref": "container",
    "yanchor": "bottom", "font": {"size": 12},
}  # fmt: skip
HEAT = "Cividis"  # colour scale for heat maps: even in lightness, safe for colour-blind readers


def series(index: int) -> dict:
    """Keywords of a plotly Scatter for series number ``index``: colour, dash and marker all differ.

    >>> series(1)["line"]["dash"], series(1)["marker"]["symbol"]
    ('dash', 'square')
    """
    colour = PALETTE[index % len(PALETTE)]
    return {
        "line": {"color": colour, "dash": DASHES[index % len(DASHES)], "width": 2},
        "marker": {"color": colour, "symbol": MARKERS[index % len(MARKERS)], "size": 8},
    }


@lru_cache(maxsize=1)  # every redraw of a widget asks for it
def template():
    """The plotly template of the workbench: transparent paper, quiet grid, legend below."""
    import plotly.graph_objects as go

    axis = {
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": TEXT,
        "ticks": "outside",
        "automargin": True,
        "title": {"font": {"size": 14}, "standoff": 8},
    }
    top = {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": TEXT, "family": "system-ui, sans-serif", "size": 14},
            "colorway": list(PALETTE),
            "xaxis": axis,
            "yaxis": axis,
            "title": {**top, "pad": {"t": TOOLBAR, "l": SIDE}, "font": {"size": 16}},
            "margin": {"t": 96, "l": 56, "r": 20, "b": 48},
            "legend": BELOW,
            "height": HEIGHT,
        }
    )


def stamp(fig, status: str, note: str = "", *, where: str | None = None, line_chars: int = LINE_CHARS):
    """Give ``fig`` the house template and its stamp line under the title; return ``fig``.

    status : "measured", "modelled" or "simulated"
    note   : what a reader must know besides: model, text, context, hit rate
    where  : device, date and commit of the numbers; default for "measured": this machine, now
    line_chars : longest line of the stamp, characters; what is longer than LINE_CHARS is broken there

    Raises ValueError for another status, or for a figure without a title.
    """
    if status not in STATUSES:
        raise ValueError(f"status is one of {', '.join(STATUSES)}, got {status!r}")
    if not fig.layout.title.text:
        raise ValueError(
            "the figure has no title; set one with fig.update_layout(title_text=...) before stamp"
        )
    if where is None and status == "measured":
        from sparda.provenance import here

        where = here()
    line = " · ".join(part for part in (status, where, note) if part)
    fig.update_layout(template=template(), meta={"status": status, "stamp": line})
    return fit(fig, min(line_chars, LINE_CHARS))


def fit(fig: Any, line_chars: int = LINE_CHARS) -> Any:
    """Lay a stamped figure out for every width of page; return it. Once more changes nothing.

    Titles and stamp are broken into lines and the margin above is theirs, the legend goes below, and labels
    may turn. ``stamp`` calls it, and ``publish`` and the widgets again, after a figure's own changes.
    """
    layout = fig.layout
    title, stamp_lines = _wrapped(layout.title.text, TITLE_CHARS), _wrapped(layout.meta["stamp"], line_chars)
    top = TOOLBAR + 20 * title.count("<br>") + 15 * stamp_lines.count("<br>") + 56
    top += _wrap_panel_titles(fig)
    fig.update_layout(
        title=_title(title, stamp_lines),
        margin={"t": top, "b": 48},
        legend=BELOW,
        # JupyterLab knows no template: without a height it takes 360 px
        height=max(layout.height or HEIGHT, top + 50 + _legend_px(fig) + LEAST_PLOT),
    )
    return fig.for_each_xaxis(_fit_axis)


def _title(text: str, below: str) -> dict:
    """The title's place; plotly moves it up by half a line for each line after the first."""
    pad = {"t": TOOLBAR + 11 * text.count("<br>"), "l": SIDE}
    return {"text": text, "subtitle": {"text": below, "font": {"size": 12}}, "font": {"size": 16}, "pad": pad}


def _fit_axis(axis: Any) -> None:
    """Labels may turn where they would lie on each other, and a title keeps to its panel."""
    if axis.tickangle == 0:
        axis.tickangle = None
    if axis.title.text:
        low, high = axis.domain or (0, 1)
        axis.title.text = _wrapped(axis.title.text, max(10, int((high - low) * (NARROWEST - 76) / 8)))


def _legend_px(fig: Any) -> int:
    """Height of the legend on the narrowest page; plotly makes its columns as wide as the longest name."""
    names = [trace.name or "" for trace in fig.data if trace.showlegend is not False]
    widest = 46 + 7 * max(map(len, names), default=0)
    return 20 * -(-len(names) // max(1, (NARROWEST - 2 * SIDE) // widest))


def _wrapped(text: str, chars: int) -> str:
    """Broken anew into lines of at most so many characters."""
    return "<br>".join(textwrap.wrap(" ".join(text.split("<br>")), chars))


def _wrap_panel_titles(fig: Any) -> int:
    """Break the titles of subplots for their panels' widths; the px that the highest row of them takes."""
    panels = [axis.domain for axis in fig.select_xaxes() if axis.domain]
    above = 0
    for note in fig.layout.annotations:
        if note.showarrow is not False or note.yanchor != "bottom" or "paper" not in (note.yref, note.xref):
            continue
        share = next((high - low for low, high in panels if low < (note.x or 0) < high), 1.0)
        text = _wrapped(note.text, max(12, int(share * (NARROWEST - 76) / 6.9)))
        note.update(text=text, font={"size": 12}, align=note.xanchor)
        if (note.y or 0) > 0.99:
            above = max(above, 8 + 17 * (1 + text.count("<br>")))
    return above
