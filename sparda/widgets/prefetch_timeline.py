"""The timeline of chapter 04: five controls over ``figures.prefetch_timeline``; watch the stall appear."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from sparda.figures.prefetch_timeline import timeline_figure
from sparda.linkmodel import CTA_COUNTS
from sparda.prefetch import Prefetch
from sparda.timeline import Step, nearest
from sparda.widgets import runtime

STATIC = ({"transport": "demand"}, {"transport": "lookahead"}, {"transport": "lookahead", "batch": 64})


def explore_prefetch(state: Prefetch | None = None, *, live: bool | None = None, **changes):
    """Show when a decode step computes, fetches and waits: simulated, and measured once a trace is committed.

    state : start values; ``changes`` override its fields, such as ``batch=4`` or ``transport="demand"``
    live  : True for controls, False for a list of three figures (on demand, one layer ahead, and a batch that
            fills the link); default: whether a person's notebook is running

    The measured step is the committed one of the same transport at the nearest batch; its stamp names both.

    Raises TypeError for an unknown keyword.
    """
    known = [field.name for field in fields(Prefetch)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise TypeError(
            f"explore_prefetch does not know {', '.join(unknown)}; it takes {', '.join(known)} and live"
        )
    state = replace(state or Prefetch(), **changes)
    if live if live is not None else runtime.is_live():
        return _live(state)
    figures = [timeline_figure(replace(state, **view)) for view in STATIC]
    traced = nearest(state.batch, state.transport)
    return figures + ([timeline_figure(traced)] if traced else [])


def _controls(state: Prefetch) -> dict:
    """One ipywidget for each field that a reader may change, by the field's name."""
    import ipywidgets as W

    quiet = {"continuous_update": False, "style": {"description_width": "110px"}}
    batches = sorted({1, 2, 4, 8, 16, 32, 64} | {state.batch})
    counts = sorted({*CTA_COUNTS, state.n_ctas})
    link = state.link.idle_peak
    return {
        "transport": W.ToggleButtons(
            options=[("one layer ahead", "lookahead"), ("on demand", "demand"), ("no transfer", "none")],
            value=state.transport,
            description="overlap",
        ),
        "link_gb_per_s": W.FloatSlider(
            value=link, min=8, max=max(500.0, link), step=1, description="link, GB/s", **quiet
        ),
        "hit_rate": W.FloatSlider(
            value=state.hit_rate, min=0.5, max=1, step=0.01, description="hit rate", **quiet
        ),
        "n_ctas": W.SelectionSlider(options=counts, value=state.n_ctas, description="CTAs", **quiet),
        "batch": W.SelectionSlider(options=batches, value=state.batch, description="batch", **quiet),
    }


def _narrow(step: Prefetch | Step):
    """The timeline with its stamp, wrapped for the width of a notebook's cell."""
    lines = 4 if isinstance(step, Step) else 3
    return timeline_figure(step, line_chars=76).update_layout(margin_t=60 + 18 * lines)


def _redraw(chart: Any, step: Prefetch | Step) -> None:
    fresh: Any = _narrow(step)
    with chart.batch_update():
        for old, new in zip(chart.data, fresh.data, strict=True):
            old.update(x=new.x, y=new.y, base=new.base, customdata=new.customdata, marker=new.marker)
        chart.layout.title = fresh.layout.title
        chart.layout.xaxis.range = fresh.layout.xaxis.range
        chart.layout.yaxis.categoryarray = fresh.layout.yaxis.categoryarray


def _live(state: Prefetch):
    import ipywidgets as W
    import plotly.graph_objects as go

    chart: Any = go.FigureWidget(_narrow(state))
    traced = nearest(state.batch, state.transport)
    measured: Any = [go.FigureWidget(_narrow(traced))] if traced else []
    controls = _controls(state)

    def redraw(_change):
        now = replace(state, **{name: c.value for name, c in controls.items()})
        _redraw(chart, now)
        closest = nearest(now.batch, now.transport)
        for beside in measured:
            if closest:
                _redraw(beside, closest)

    for control in controls.values():
        control.observe(redraw, names="value")
    return W.VBox([*controls.values(), chart, *measured])
