"""The floors of chapter 05: five controls over ``figures.attention_time``; selection overtakes attention."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from sparda.figures.attention_time import floor_table, time_figure
from sparda.spec import model, sparsity
from sparda.widgets import runtime, shell

MODEL = "minicpm4.1-8b"


@dataclass(frozen=True)
class Scenario:
    """What one layer is asked to do. batch: sequences of a decode step; a prompt is always one."""

    phase: str = "prefill"  # prefill | decode
    n_tokens: int = 131_072
    batch: int = 4
    budget_blocks: int = 96
    stride: int = 16  # tokens from one compressed key to the next

    def figure(self):
        rule = replace(sparsity(MODEL), budget_blocks=self.budget_blocks, stride=self.stride)
        at = {"phase": self.phase, "contexts": [self.n_tokens], "batch": self.batch}
        batch = f", batch {self.batch}" if self.phase == "decode" else ", one prompt"
        note = f"{MODEL}, k {self.budget_blocks}, stride {self.stride}{batch}"
        return time_figure(floor_table(model(MODEL), rule, **at), phase=self.phase, note=note)


STATIC = ({"phase": "prefill"}, {"phase": "decode"}, {"phase": "prefill", "n_tokens": 524_288})


def explore_attention(scenario: Scenario | None = None, *, live: bool | None = None, **changes):
    """Show the floors of selection and attention in one layer, dense, Sparse and SparDA (modelled).

    scenario : start values; ``changes`` override its fields, such as ``n_tokens=524_288``
    live     : True for controls, False for a list of three figures (prefill, decode, a longer prompt);
               default: whether a person's notebook is running

    Raises TypeError for an unknown keyword.
    """
    shell.check_names("explore_attention", changes, [field.name for field in fields(Scenario)])
    scenario = replace(scenario or Scenario(), **changes)
    if live if live is not None else runtime.is_live():
        return _live(scenario)
    return [replace(scenario, **view).figure() for view in STATIC]


def _controls(scenario: Scenario) -> dict:
    """One ipywidget for each field that a reader may change, by the field's name."""
    import ipywidgets as W

    def pick(name: str, values: set[int], label: str):
        value = getattr(scenario, name)
        options = sorted(values | {value})
        return W.SelectionSlider(options=options, value=value, description=label, **shell.CONTROL)

    return {
        "phase": W.Dropdown(
            options=["prefill", "decode"], value=scenario.phase, description="phase", **shell.AT_ONCE
        ),
        "n_tokens": pick("n_tokens", {2**p for p in range(13, 21)}, "context"),
        "batch": pick("batch", {1, 4, 16, 64}, "batch (decode)"),
        "budget_blocks": pick("budget_blocks", {34, 48, 64, 96, 128, 192}, "budget k"),
        "stride": pick("stride", {8, 16, 32}, "stride"),
    }


def _live(scenario: Scenario):
    controls = _controls(scenario)
    phase, batch = controls["phase"], controls["batch"]

    def of_decode_alone(_change) -> None:
        batch.disabled = phase.value == "prefill"  # a prompt is one sequence

    phase.observe(of_decode_alone, names="value")
    of_decode_alone(None)
    return shell.simple(controls, lambda chosen: Scenario(**chosen).figure(), figure="attention_time_prefill")
