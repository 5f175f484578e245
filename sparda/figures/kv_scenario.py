"""One decode scenario in two panels: what sits in GPU memory, and what a step's bytes cost in time."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace

from sparda import costs
from sparda.blocks import count_blocks
from sparda.bounds import Rates, decode_bound, misses_at, transfer_seconds
from sparda.figures.kv_math import PLACEMENTS
from sparda.figures.style import HATCH, TEXT, series, stamp
from sparda.prefetch import HIT_RATE
from sparda.spec import Hardware, ModelShape, Sparsity, hardware, model, sparsity
from sparda.units import format_bytes, gib


@dataclass(frozen=True)
class Scenario:
    """A deployment to price. ``link_gb_per_s`` 0 takes the GPU preset's link."""

    model: str = "minicpm4.1-8b"
    n_tokens: int = 131_072
    batch: int = 16
    dtype_bytes: int = 2  # weights and cache alike: 2 bf16, 1 fp8
    budget_blocks: int = 96  # k, forced blocks included
    gpu: str = "h100"
    link_gb_per_s: float = 0.0
    hit_rate: float = HIT_RATE

    @property
    def shape(self) -> ModelShape:
        return model(self.model)

    @property
    def rule(self) -> Sparsity:
        """MiniCPM's block rule with this budget, whatever the model."""
        return replace(sparsity("minicpm4.1-8b"), budget_blocks=self.budget_blocks)

    @property
    def card(self) -> Hardware:
        card = hardware(self.gpu)
        return replace(card, link_gb_per_s=self.link_gb_per_s) if self.link_gb_per_s else card

    @property
    def misses(self) -> int:
        blocks = min(self.budget_blocks, count_blocks(self.n_tokens, self.rule))
        return misses_at(hit_rate=self.hit_rate, budget_blocks=blocks)

    @property
    def sizes(self) -> dict:
        """The keywords that every cost of this scenario shares."""
        return {
            "shape": self.shape,
            "sparsity": self.rule,
            "n_tokens": self.n_tokens,
            "dtype_bytes": self.dtype_bytes,
        }

    def largest_batch(self, placement: costs.Placement) -> int:
        return costs.largest_batch(memory_gib=self.card.memory_gib, placement=placement, **self.sizes)

    def bound(self):
        return decode_bound(batch=self.batch, misses=self.misses, rates=Rates.of(self.card), **self.sizes)


def scenario_table(scenario: Scenario):
    """Columns panel (memory | time), item, part, value, unit; memory in GiB, time in ms."""
    import pandas as pd

    rows = []
    for placement, label in PLACEMENTS.items():
        parts = costs.gpu_bytes(batch=scenario.batch, placement=placement, **scenario.sizes)
        rows += [("memory", label, part, gib(n), "GiB") for part, n in parts.items()]
        rows.append(("memory", label, "capacity", scenario.card.memory_gib, "GiB"))
    everything = costs.kv_bytes(
        shape=scenario.shape,
        n_tokens=scenario.n_tokens,
        batch=scenario.batch,
        dtype_bytes=scenario.dtype_bytes,
    )
    all_s = transfer_seconds(n_bytes=everything, gb_per_s=scenario.card.link_gb_per_s)
    bound = scenario.bound()
    times = {"move all K and V": all_s, "move misses": bound.link_s, "read memory": bound.memory_s}
    rows += [("time", item, "time", 1e3 * s, "ms") for item, s in (times | {"bound": bound.seconds}).items()]
    return pd.DataFrame(rows, columns=["panel", "item", "part", "value", "unit"])


def scenario_title(scenario: Scenario) -> str:
    """One line that answers the question: what fits, and how fast at most."""
    on_gpu, offloaded = (scenario.largest_batch(placement) for placement in ("gpu", "offload"))
    bound = scenario.bound()
    per_sequence = costs.kv_bytes(
        shape=scenario.shape, n_tokens=scenario.n_tokens, dtype_bytes=scenario.dtype_bytes
    )
    return (
        f"{format_bytes(per_sequence)} a sequence; fits batch {on_gpu} on the GPU, {offloaded} offloaded; "
        f"at most {bound.tokens_per_s:.0f} tok/s ({bound.limit})"
    )


def _said(values) -> dict:
    """Keywords of bars that carry their values; none where there is nothing."""
    texts = [f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value else "" for value in values]
    return {"text": texts, "textangle": 0, "insidetextfont": {"color": "white", "weight": "bold"}}


def scenario_figure(scenario: Scenario):
    """Two panels of scenario_table: stacked GPU memory under the card's capacity; times on a log axis."""
    from plotly.subplots import make_subplots

    table = scenario_table(scenario)
    figure = make_subplots(cols=2, column_widths=[0.45, 0.55], horizontal_spacing=0.16)
    memory, time = (table[table["panel"] == panel] for panel in ("memory", "time"))
    for index, (part, pattern) in enumerate({"weights": "", "K and V": "/", "compressed keys": "x"}.items()):
        rows = memory[memory["part"] == part]
        look = {"color": series(index)["marker"]["color"], "pattern": {"shape": pattern, **HATCH}}
        figure.add_bar(
            x=rows["item"], y=rows["value"], name=part, marker=look, **_said(rows["value"]), row=1, col=1
        )
    rows = memory[memory["part"] == "capacity"]
    look = {"symbol": "line-ew-open", "size": 60, "color": TEXT, "line": {"width": 3}}
    figure.add_scatter(
        x=rows["item"], y=rows["value"], name="capacity", mode="markers", marker=look, row=1, col=1
    )
    colour = series(3)["marker"]["color"]
    labels = ["<br>".join(textwrap.wrap(item, 9)) for item in time["item"]]
    bars = {"name": "one step", "marker_color": colour, **_said(time["value"])}
    figure.add_bar(x=labels, y=time["value"], **bars, row=1, col=2)
    figure.update_yaxes(title="GPU memory, GiB", rangemode="nonnegative", row=1, col=1)
    figure.update_xaxes(tickangle=0, tickfont_size=11, row=1, col=2)  # four labels in half a cell
    # plotly ends a log axis at the largest number to include, even below its data: name the lower end only
    log = {"type": "log", "dtick": 1, "autorangeoptions": {"include": 0.1}}
    figure.update_yaxes(title="one decode step, ms", row=1, col=2, **log)
    figure.update_layout(barmode="stack", title_text=scenario_title(scenario), title_font_size=14)
    native = scenario.shape.native_context
    beyond = f" (beyond its own context of {native})" if scenario.n_tokens > native else ""
    note = f"{scenario.model}, {scenario.n_tokens} tokens{beyond}, batch {scenario.batch}, "
    note += f"k {scenario.budget_blocks}, hit rate {scenario.hit_rate:g}"
    where = f"datasheet memory of {scenario.card.name}, link {scenario.card.link_gb_per_s:g} GB/s"
    return stamp(figure, "modelled", note, where=where, line_chars=80)  # a live one is narrow
