"""One look for every figure: palette, dashes, template, and the stamp that says where numbers come from.

Colours and the text grey keep a contrast of at least 3 (text: 4) on white and on near-black, so one figure
serves light and dark pages. Two series always differ in dash and marker too, never in colour alone.
"""

from __future__ import annotations

import textwrap
from functools import lru_cache

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
    """The plotly template of the workbench: transparent paper, quiet grid, legend at the right."""
    import plotly.graph_objects as go

    axis = {
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": TEXT,
        "ticks": "outside",
        "automargin": True,
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": TEXT, "family": "system-ui, sans-serif", "size": 14},
            "colorway": list(PALETTE),
            "xaxis": axis,
            "yaxis": axis,
            "title": {"x": 0, "xref": "paper", "y": 0.95, "yref": "container", "yanchor": "top"},
            "margin": {"t": 96, "l": 64, "r": 24, "b": 64},
            "legend": {"x": 1.02, "xanchor": "left", "y": 1, "yanchor": "top"},
            "height": 440,
        }
    )


def stamp(fig, status: str, note: str = "", *, where: str | None = None, line_chars: int = 105):
    """Give ``fig`` the house template and its stamp line under the title; return ``fig``.

    status : "measured", "modelled" or "simulated"
    note   : what a reader must know besides: model, text, context, hit rate
    where  : device, date and commit of the numbers; default for "measured": this machine, now
    line_chars : longest line of the stamp, characters; less for a figure that is shown narrow

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
    text = "<br>".join(textwrap.wrap(line, line_chars))
    subtitle = {"text": text, "font": {"size": 12}}
    return fig.update_layout(
        template=template(), meta={"status": status, "stamp": line}, title_subtitle=subtitle
    )
