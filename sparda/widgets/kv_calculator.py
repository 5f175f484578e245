"""The KV calculator of chapter 01: six controls over ``figures.kv_scenario``."""

from __future__ import annotations

from dataclasses import fields, replace

from sparda.figures.kv_scenario import Scenario, scenario_figure
from sparda.spec import HARDWARE, MODELS
from sparda.widgets import runtime, shell

STATIC_BATCHES = (4, 16, 64)


def explore_kv(scenario: Scenario | None = None, *, live: bool | None = None, **changes):
    """Show what a scenario keeps on the GPU and what a decode step costs at least (modelled).

    scenario : start values; ``changes`` override its fields, such as ``batch=4`` or ``gpu="h200"``
    live     : True for sliders, False for a list of figures at batches 4, 16 and 64; default: whether a
               person's notebook is running

    Raises TypeError for an unknown keyword and KeyError for an unknown model or GPU.
    """
    shell.check_names("explore_kv", changes, [field.name for field in fields(Scenario)])
    scenario = replace(scenario or Scenario(), **changes)
    if live if live is not None else runtime.is_live():
        return _live(scenario)
    return [scenario_figure(replace(scenario, batch=batch)) for batch in STATIC_BATCHES]


def _controls(scenario: Scenario) -> dict:
    """One ipywidget for each field that a reader may change, by the field's name."""
    import ipywidgets as W

    contexts = sorted({2**p for p in range(13, 21)} | {scenario.n_tokens})
    batches = sorted({1, 2, 4, 8, 16, 32, 64, 128} | {scenario.batch})
    budgets = sorted({34, 48, 64, 96, 128, 192, 256} | {scenario.budget_blocks})
    link = scenario.card.link_gb_per_s
    return {
        "model": W.Dropdown(
            options=sorted(MODELS), value=scenario.model.lower(), description="model", **shell.AT_ONCE
        ),
        "gpu": W.Dropdown(
            options=sorted(HARDWARE), value=scenario.gpu.lower(), description="GPU", **shell.AT_ONCE
        ),
        "dtype_bytes": W.Dropdown(
            options=[("bf16", 2), ("fp8", 1), ("float32", 4)],
            value=scenario.dtype_bytes,
            description="dtype",
            **shell.AT_ONCE,
        ),
        "n_tokens": W.SelectionSlider(
            options=contexts, value=scenario.n_tokens, description="context", **shell.CONTROL
        ),
        "batch": W.SelectionSlider(
            options=batches, value=scenario.batch, description="batch", **shell.CONTROL
        ),
        "budget_blocks": W.SelectionSlider(
            options=budgets, value=scenario.budget_blocks, description="budget k", **shell.CONTROL
        ),
        "hit_rate": W.FloatSlider(
            value=scenario.hit_rate, min=0, max=1, step=0.01, description="hit rate", **shell.CONTROL
        ),
        "link_gb_per_s": W.FloatSlider(
            value=link, min=8, max=max(500.0, link), step=1, description="link, GB/s", **shell.CONTROL
        ),
    }


def _live(scenario: Scenario):
    controls = _controls(scenario)
    link = controls["link_gb_per_s"]
    first = {scenario.gpu.lower(): scenario.card.link_gb_per_s}  # it may be a measured one

    def other_card(change):
        link.value = first.get(change["new"], HARDWARE[change["new"]].link_gb_per_s)

    controls["gpu"].observe(other_card, names="value")
    return shell.simple(
        controls, lambda chosen: scenario_figure(Scenario(**chosen)), figure="kv_memory_vs_context"
    )
