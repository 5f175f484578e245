"""A decode step with offloaded blocks, priced: what each layer computes, fetches and waits for (modelled).

Shapes are MiniCPM4.1-8B's; compute takes the rates that one H200 reached (``bounds.H200_RATES``), the link
takes the curves fitted to its measured transfers (``linkmodel``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sparda import costs, simulate
from sparda.bounds import H200_RATES, misses_at
from sparda.linkmodel import SHAPE, LinkModel, measured
from sparda.spec import model, sparsity

MODEL, RULE = model("minicpm4.1-8b"), sparsity("minicpm4.1-8b")
HIT_RATE = 0.89  # assumed: 11 misses of 96 blocks; nothing was published for these models
PREP_US = 10.0  # assumed: two small kernels, beside the reading of the compressed keys
START_US = 3.0  # assumed: from the end of selection to the first byte on the link
ASSUMED_LINK = LinkModel(
    peak=45.0,
    per_cta=10.0,
    idle_peak=51.0,
    idle_per_cta=16.0,
    sharpness=4.0,
    base=0.1,
    per_cta_slowdown=0.004,
)  # round numbers for a machine without committed measurements


def link_model(shape: str = SHAPE) -> tuple[LinkModel, str]:
    """The fitted curves of the H200 and where they come from; assumed ones where none are committed."""
    found = measured()
    if found is None:
        return ASSUMED_LINK, "assumed link curves: no measurement is committed"
    return found.models[shape], f"link curves fitted to {found.where}"


@dataclass(frozen=True)
class Prefetch:
    """One decode step to price: MiniCPM4.1-8B's shapes, 32 KiB runs, layer 0 on the GPU."""

    batch: int = 16
    hit_rate: float = HIT_RATE
    n_ctas: int = 16  # what pick_ctas finds for batch 16 and above
    transport: str = "lookahead"  # lookahead | demand | none
    link_gb_per_s: float = 0.0  # on an idle GPU; 0: as measured
    n_tokens: int = 131_072
    n_layers: int = 32

    @property
    def link(self) -> LinkModel:
        fitted = link_model()[0]
        if not self.link_gb_per_s:
            return fitted
        lost = fitted.peak / fitted.idle_peak  # the share that compute leaves stays the same
        return replace(fitted, peak=lost * self.link_gb_per_s, idle_peak=self.link_gb_per_s)

    @property
    def layer_bytes(self) -> float:
        """Bytes that one layer fetches in one step."""
        misses = misses_at(hit_rate=self.hit_rate, budget_blocks=RULE.budget_blocks)
        moved = costs.miss_bytes(shape=MODEL, sparsity=RULE, misses=misses, batch=self.batch)
        return moved / (MODEL.n_layers - 1)

    def costs(self) -> simulate.LayerCosts:
        """Modelled times of one layer, us, each alone on the GPU."""
        sizes = {"shape": MODEL, "sparsity": RULE, "n_tokens": self.n_tokens, "batch": self.batch}
        memory = H200_RATES.kv_gb_per_s * 1e3 * MODEL.n_layers  # bytes per us and layer
        weights = costs.step_weight_bytes(shape=MODEL) / (H200_RATES.weights_gb_per_s * 1e3 * MODEL.n_layers)
        return simulate.LayerCosts(
            prep=PREP_US + costs.compressed_key_bytes(**sizes) / memory,
            attention=costs.selected_kv_bytes(**sizes) / memory,
            rest=weights,
            copy=self.layer_bytes / (self.link.idle(self.n_ctas) * 1e3),
            start=START_US,
        )

    def compute_us(self) -> float:
        """Modelled compute of one layer, us: the window that a transfer can hide in."""
        layer = self.costs()
        return layer.prep + layer.attention + layer.rest

    def spans(self) -> list[simulate.Span]:
        """The simulated step: compute and link slow each other down, but only while both run."""
        tasks = simulate.decode_step(self.costs(), self.n_layers, self.transport)
        slowdown, link_slowdown = self.link.slowdown(self.n_ctas), self.link.link_slowdown(self.n_ctas)
        return simulate.run(tasks, slowdown=slowdown, link_slowdown=link_slowdown)

    def note(self) -> str:
        alone, beside = self.link.idle(self.n_ctas), self.link.bandwidth(self.n_ctas)
        return (
            f"MiniCPM4.1-8B, {self.n_tokens} tokens, batch {self.batch}, assumed hit rate {self.hit_rate:g}, "
            f"{self.n_ctas} CTAs: {alone:.0f} GB/s alone, {beside:.0f} beside compute; {link_model()[1]}"
        )


def pick_ctas(link: LinkModel, batches: Iterable[int], hit_rate: float = HIT_RATE) -> dict[int, int]:
    """The CTA count that the link model picks for each batch."""
    steps = {batch: Prefetch(batch=batch, hit_rate=hit_rate) for batch in batches}
    return {
        batch: link.best_ctas(n_bytes=step.layer_bytes, compute_us=step.compute_us())
        for batch, step in steps.items()
    }
