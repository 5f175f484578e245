"""The timeline of chapters 04 and 06: controls over ``figures.prefetch_timeline``; watch a stall appear."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from sparda.figures.prefetch_timeline import timeline_figure, timeline_sentence
from sparda.linkmodel import CTA_COUNTS
from sparda.prefetch import RULE, Prefetch, link_rates
from sparda.spec import LINKS
from sparda.timeline import nearest
from sparda.widgets import runtime, shell

STATIC = ({"transport": "demand"}, {"transport": "lookahead"}, {"transport": "lookahead", "batch": 64})
OTHER = "another rate"


def explore_prefetch(state: Prefetch | None = None, *, live: bool | None = None, **changes):
    """Show when a decode step computes, fetches and waits: simulated, and measured once a trace is committed.

    state : start values; ``changes`` override its fields, such as ``batch=4`` or ``transport="demand"``
    live  : True for controls, False for a list of three figures (on demand, one layer ahead, and a batch that
            fills the link); default: whether a person's notebook is running

    The measured step is the committed one of the same transport at the nearest batch; its stamp names both.

    Raises TypeError for an unknown keyword, ValueError for fewer slots than k or an unknown transport.
    """
    shell.check_names("explore_prefetch", changes, [field.name for field in fields(Prefetch)])
    state = replace(state or Prefetch(), **changes)
    if live if live is not None else runtime.is_live():
        return _live(state)
    figures = [timeline_figure(replace(state, **view)) for view in STATIC]
    traced = nearest(state.batch, state.transport)
    return figures + ([timeline_figure(traced)] if traced else [])


def _controls(state: Prefetch) -> dict:
    """One ipywidget for each field that a reader may change, by the field's name."""
    import ipywidgets as W

    def among(name: str, choices, description: str, text: Any = str):
        now = getattr(state, name)
        options = [(text(value), value) for value in sorted({*choices, now})]
        return W.SelectionSlider(options=options, value=now, description=description, **shell.CONTROL)

    link, least = state.link.idle_peak, RULE.budget_blocks
    ways = [("one layer ahead", "lookahead"), ("on demand", "demand"), ("no transfer", "none")]
    return {
        "transport": W.Dropdown(options=ways, value=state.transport, description="overlap", **shell.AT_ONCE),
        "batch": among("batch", (1, 2, 4, 8, 16, 32, 64), "batch"),
        "n_tokens": among("n_tokens", (2**p for p in range(13, 21)), "context", lambda n: f"{n // 1024}K"),
        "n_ctas": among("n_ctas", CTA_COUNTS, "CTAs"),
        "hit_rate": W.FloatSlider(
            value=state.hit_rate, min=0.5, max=1, step=0.01, description="hit rate at k", **shell.CONTROL
        ),
        "slots": among("slots", (least, 120, 144, 168, 192), "resident slots"),
        "link_gb_per_s": W.FloatSlider(
            value=link, min=8, max=max(500.0, link), step=0.5, description="link, GB/s", **shell.CONTROL
        ),
    }


def _presets(link: Any) -> Any:
    """A choice of links that sets the slider ``link``, and says when the slider stands at none of them."""
    import ipywidgets as W

    rates = link_rates()
    names = [(f"{name}: {rates[name]:.0f} of {LINKS[name]:.0f} GB/s", name) for name in rates]

    def at(rate: float) -> str:
        return next((name for name, known in rates.items() if abs(known - rate) < 0.25), OTHER)

    choice = W.Dropdown(
        options=[*names, (OTHER, OTHER)], value=at(link.value), description="link", **shell.AT_ONCE
    )

    def moved(change) -> None:
        choice.value = at(change["new"])

    def chosen(change) -> None:
        if change["new"] in rates and at(link.value) != change["new"]:
            link.value = rates[change["new"]]  # its own change draws

    link.observe(moved, names="value")
    choice.observe(chosen, names="value")
    return choice


@lru_cache(maxsize=32)
def _measured(batch: int, transport: str):
    """The figure of the committed step that is nearest, drawn once; None where none is committed."""
    step = nearest(batch, transport)
    return None if step is None else timeline_figure(step)


def _live(state: Prefetch):
    _measured.cache_clear()  # a trace may have been committed since
    controls = _controls(state)
    line = shell.status_line(timeline_sentence(state))
    chart, traced = shell.live_figure(timeline_figure(state)), _measured(state.batch, state.transport)
    beside = [shell.live_figure(traced)] if traced else []

    def changed(_change) -> None:
        now = replace(state, **shell.values(controls))
        shell.redraw(chart, timeline_figure(now))
        for figure in beside:
            shell.redraw(figure, _measured(now.batch, now.transport))
        shell.say(line, timeline_sentence(now))

    shell.watch(controls, line, changed)
    placed = dict(controls)
    rate = placed.pop("link_gb_per_s")
    boxes = shell.columns(placed | {"preset": _presets(rate), "link_gb_per_s": rate})
    parts = [boxes, line, chart, *beside]
    return shell.explorer(parts, figure="prefetch_timeline", twin=timeline_figure(state))
