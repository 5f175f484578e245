"""A decode step with offloaded blocks, priced: what each layer computes, fetches and waits for (modelled).

Shapes are MiniCPM4.1-8B's; compute takes the rates that one H200 reached (``bounds.H200_RATES``), the link
takes the curves fitted to its measured transfers (``linkmodel``).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from sparda import costs, simulate
from sparda.bounds import H200_RATES, DecodeBound, decode_bound, misses_at
from sparda.linkmodel import DATA, SHAPE, LinkModel, measured
from sparda.spec import LINKS, hardware, model, sparsity

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


def link_rates() -> dict[str, float]:
    """GB/s that loads of a kernel reach on an idle GPU over every link of ``spec.LINKS``.

    The share of its datasheet rate that the H200's link reaches, taken for the others too (modelled).
    """
    reached = link_model()[0].idle_peak / hardware("h200").link_gb_per_s
    return {name: reached * rate for name, rate in LINKS.items()}


@lru_cache
def _counted_misses() -> dict[float, float]:
    """Slots over k -> misses over those with k slots: committed runs that replay a real model's choices."""
    table = DATA / "nvidia-h200" / "decode.csv"
    if not table.is_file():
        return {1.0: 1.0}
    with table.open(encoding="utf-8", newline="") as lines:
        rows = [
            row for row in csv.DictReader(lines) if row["choices"] == "recorded" and row["status"] == "ok"
        ]
    missed = {int(row["cache_slots"]): 1 - float(row["hit_rate"]) for row in rows}
    most = missed.get(RULE.budget_blocks)
    return (
        {slots / RULE.budget_blocks: m / most for slots, m in sorted(missed.items())} if most else {1.0: 1.0}
    )


def misses_left(slots: int) -> float:
    """Share of the misses with k slots that is left with more of them; between counts, along their logarithm.

    Counted on a small model's choices (``sparda.measure.choices``); beyond the last count nothing more goes
    away, and without committed counts nothing at all.
    """
    counts, ratio = list(_counted_misses().items()), slots / RULE.budget_blocks
    for (low, left), (high, right) in pairwise(counts):
        if ratio <= high:
            part = max(0.0, math.log(ratio / low) / math.log(high / low))
            return left * (right / left) ** part
    return counts[-1][1]


@dataclass(frozen=True)
class Prefetch:
    """One decode step to price: MiniCPM4.1-8B's shapes, 32 KiB runs, layer 0 on the GPU.

    ValueError: fewer slots than k, or a transport that does not exist.
    """

    batch: int = 16
    hit_rate: float = HIT_RATE  # with k slots
    n_ctas: int = 16  # what pick_ctas finds for batch 16 and above
    transport: str = "lookahead"  # lookahead | demand | none
    link_gb_per_s: float = 0.0  # on an idle GPU; 0: as measured
    n_tokens: int = 131_072
    n_layers: int = 32
    slots: int = RULE.budget_blocks  # resident blocks of a layer, sequence and KV head

    def __post_init__(self):
        if self.slots < RULE.budget_blocks:
            raise ValueError(
                f"{self.slots} slots cannot hold the {RULE.budget_blocks} chosen blocks; take as many or more"
            )
        if self.transport not in simulate.TRANSPORTS:
            known = ", ".join(simulate.TRANSPORTS)
            raise ValueError(f"transport is one of {known}, got {self.transport!r}")

    @property
    def link(self) -> LinkModel:
        fitted = link_model()[0]
        if not self.link_gb_per_s:
            return fitted
        lost = fitted.peak / fitted.idle_peak  # the share that compute leaves stays the same
        return replace(fitted, peak=lost * self.link_gb_per_s, idle_peak=self.link_gb_per_s)

    @property
    def misses(self) -> float:
        """Blocks that one KV head of a sequence fetches for a layer, mean; 0 where all are resident."""
        if self.slots * RULE.block_size >= self.n_tokens:
            return 0.0
        return misses_at(hit_rate=self.hit_rate, budget_blocks=RULE.budget_blocks) * misses_left(self.slots)

    @property
    def slot_bytes(self) -> int:
        """Bytes of GPU memory that the slots of all offloaded layers take."""
        held = replace(RULE, budget_blocks=self.slots)
        of = {"shape": MODEL, "sparsity": held, "n_tokens": self.n_tokens, "batch": self.batch}
        return costs.selected_kv_bytes(**of) // MODEL.n_layers * (MODEL.n_layers - 1)

    @property
    def layer_bytes(self) -> float:
        """Bytes that one layer fetches in one step."""
        moved = costs.miss_bytes(shape=MODEL, sparsity=RULE, misses=self.misses, batch=self.batch)
        return moved / (MODEL.n_layers - 1)

    def bound(self) -> DecodeBound:
        """The floor of the step: memory reads and a full link at once, neither slowing the other."""
        misses = 0.0 if self.transport == "none" else self.misses
        rates = replace(H200_RATES, link_gb_per_s=self.link.idle_peak)
        of = {"shape": MODEL, "sparsity": RULE, "n_tokens": self.n_tokens, "batch": self.batch}
        return decode_bound(misses=misses, rates=rates, **of)

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
        slots = "" if self.slots == RULE.budget_blocks else f" at k slots, {self.slots} slots"
        return (
            f"MiniCPM4.1-8B, {self.n_tokens} tokens, batch {self.batch}, assumed hit rate "
            f"{self.hit_rate:g}{slots}, {self.n_ctas} CTAs: {alone:.0f} GB/s alone, "
            f"{beside:.0f} beside compute; {link_model()[1]}"
        )


def pick_ctas(link: LinkModel, batches: Iterable[int], hit_rate: float = HIT_RATE) -> dict[int, int]:
    """The CTA count that the link model picks for each batch."""
    steps = {batch: Prefetch(batch=batch, hit_rate=hit_rate) for batch in batches}
    return {
        batch: link.best_ctas(n_bytes=step.layer_bytes, compute_us=step.compute_us())
        for batch, step in steps.items()
    }
