"""What each layer chose, and how good the choice was: filled by ``attach`` while a model runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparda import metrics
from sparda.kernels import block_mass
from sparda.selectors import LayerView, Query, Selector

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Record:
    """One layer in one forward pass, for the recorded queries t.

    positions [B, t]; block_scores [B, H, t, N]; block_ids [B, H, t, k];
    agreement (with the query selection) and mass_recall [B, H, t];
    hit_rate [B, H], NaN unless this is a decode step with a step before it
    """

    step: int
    layer: int
    positions: Tensor
    block_scores: Tensor
    block_ids: Tensor
    agreement: Tensor
    mass_recall: Tensor
    hit_rate: Tensor


@dataclass
class Probe:
    """Collects one Record per layer and forward pass.

    queries  : how many of a pass's last queries to record; None records all of a prompt
    measures : False records positions and choices only, which is quick: no scores, recall and agreement NaN
    """

    queries: int | None = 1
    measures: bool = True
    records: list[Record] = field(default_factory=list)
    _passes: dict[int, int] = field(default_factory=dict, repr=False)  # layer -> forward passes seen
    _latest: dict[int, Tensor] = field(default_factory=dict, repr=False)  # layer -> [B, H, k] of last query

    def clear(self) -> None:
        """Forget everything; the next pass is step 0 again."""
        self.records.clear()
        self._passes.clear()
        self._latest.clear()

    def at(self, layer: int, step: int = -1) -> Record:
        """The record of a layer in a forward pass (0 is the prompt, -1 the latest)."""
        found = [r for r in self.records if r.layer == layer]
        if not found:
            layers = sorted({r.layer for r in self.records})
            raise LookupError(
                f"no record of layer {layer}; recorded layers: {layers or 'none, run the model'}"
            )
        try:
            return found[step]
        except IndexError:
            raise LookupError(f"no step {step}; layer {layer} was recorded {len(found)} times") from None

    def table(self) -> pd.DataFrame:
        """One row per step, layer, sequence, head and recorded query, with the three measures."""
        import pandas as pd

        rows = []
        for r in self.records:
            for (b, h, t), recall in zip(
                torch.cartesian_prod(*(torch.arange(n) for n in r.mass_recall.shape)).tolist(),
                r.mass_recall.flatten().tolist(),
                strict=True,
            ):
                measures = (r.agreement[b, h, t].item(), recall, r.hit_rate[b, h].item())
                rows.append((r.step, r.layer, b, h, r.positions[b, t].item(), *measures))
        columns = ["step", "layer", "sequence", "head", "position", "agreement", "mass_recall", "hit_rate"]
        return pd.DataFrame(rows, columns=columns)

    def record(self, selector: Selector, view: LayerView, block_ids: Tensor, decoding: bool = True) -> None:
        """Called by ``attach`` after each selection; measures only the recorded queries.

        decoding : False for a pass that reads a prompt, which has no step before it
        """
        n_queries = view.queries.shape[2]
        part = slice(0 if self.queries is None else max(0, n_queries - self.queries), n_queries)
        seen, ids = view.at(part), block_ids[:, :, part]
        step = self._passes.get(view.layer, 0)
        measured = self._measured(selector, seen, ids) if self.measures else _unmeasured(ids)
        hits = self._hit_rate(view, block_ids, decoding and n_queries == 1)
        self.records.append(
            Record(
                step=step,
                layer=view.layer,
                positions=seen.positions,
                block_ids=ids,
                hit_rate=hits,
                **measured,
            )
        )
        self._passes[view.layer] = step + 1
        self._latest[view.layer] = block_ids[:, :, -1]

    @staticmethod
    def _measured(selector: Selector, seen: LayerView, ids: Tensor) -> dict[str, Tensor]:
        size, rule = seen.sparsity.block_size, seen.sparsity
        mass = block_mass(seen.queries, seen.all_keys, seen.positions, block_size=size, scale=seen.scale)
        own = ids if type(selector) is Query else Query().select(seen)
        return {
            "block_scores": selector.block_scores(seen),
            "agreement": metrics.agreement(ids, own, seen.positions, seen.n_blocks, rule),
            "mass_recall": metrics.mass_recall(mass, ids),
        }

    def _hit_rate(self, view: LayerView, block_ids: Tensor, step: bool) -> Tensor:
        before = self._latest.get(view.layer)
        if before is None or not step:  # a prompt only seeds
            return torch.full(block_ids.shape[:2], float("nan"))
        return metrics.hit_rate(before, block_ids[:, :, -1])


def _unmeasured(ids: Tensor) -> dict[str, Tensor]:
    nothing = torch.full(ids.shape[:3], float("nan"), device=ids.device)
    return {
        "block_scores": nothing.new_empty(*nothing.shape, 0),
        "agreement": nothing,
        "mass_recall": nothing,
    }
