"""Mass recall of real attention under the selectors: what chapter 02 measures.

``layer_views`` runs a model densely once and keeps what each layer's selector sees; ``recall_table`` asks
every selector what it would have read, at every budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sparda import blocks
from sparda.figures.style import series, stamp
from sparda.metrics import mass_recall
from sparda.selectors import LayerView, Oracle, Selector, make
from sparda.spec import Sparsity


def layer_views(model, input_ids: Tensor, sparsity: Sparsity) -> list[LayerView]:
    """Run the model densely over one prompt; return what the selector of each layer sees, in order.

    input_ids [B, T]; memory: queries and keys of all layers, about L * B * T * (H_q + H) * d * 4 bytes
    """
    from sparda.models.attach import attach
    from sparda.models.probe import Probe

    class Views(Probe):
        def record(self, selector, view, block_ids, decoding=True):
            seen.append(view)

    seen: list[LayerView] = []
    # "streaming" looks at no key, so that asking it costs next to nothing
    with torch.no_grad(), attach(model, selector="streaming", sparsity=sparsity, phases=(), probe=Views()):
        model(input_ids, logits_to_keep=1)
    return seen


def recall_table(
    views: Sequence[LayerView], *, budgets: Sequence[int], selectors: Sequence[str | Selector], queries: slice
):
    """Mass recall of several selectors at several budgets, on the same dense model.

    selectors : names of ``sparda.selectors.SELECTORS``, or selectors, whose own names then stand in the table
        (not "all", which ignores the budget)
    queries   : which queries of the prompt are averaged, such as ``slice(1024, None, 16)``
    Columns selector, layer, budget_blocks, share_kept (blocks read over blocks visible), mass_recall; each
    row is a mean over heads and queries.
    """
    import pandas as pd

    rows = []
    for view in (view.at(queries) for view in views):
        mass, own = Oracle().block_scores(view), view.positions[:, None] // view.sparsity.block_size
        for selector in map(make, selectors):
            scores = selector.block_scores(view)
            for budget in budgets:
                rule = replace(view.sparsity, budget_blocks=budget)
                ids = blocks.select_blocks(scores, view.positions, rule)
                share = ((ids >= 0).sum(-1) / (own + 1)).mean().item()
                rows.append((selector.name, view.layer, budget, share, mass_recall(mass, ids).mean().item()))
    return pd.DataFrame(rows, columns=["selector", "layer", "budget_blocks", "share_kept", "mass_recall"])


def recall_means(table):
    """The mean over layers of ``recall_table``: columns selector, budget_blocks, share_kept, mass_recall."""
    groups = table.groupby(["selector", "budget_blocks"], sort=False, as_index=False)
    return groups[["share_kept", "mass_recall"]].mean()


def recall_figure(means, *, note: str = "", where: str | None = None):
    """Mass recall against the share of visible blocks that is read, one line a selector."""
    figure = _lines(means, x="share_kept", hover="budget_blocks", hover_name="k")
    figure.update_xaxes(title="blocks read, share of the visible ones", tickformat=".0%")
    figure.update_layout(title_text="How much of the true attention lies in the chosen blocks")
    return stamp(figure, "measured", note, where=where)


def recall_by_layer_figure(table, *, budget_blocks: int, note: str = "", where: str | None = None):
    """Mass recall of each layer at one budget, one line a selector; ValueError: a budget not in the table."""
    rows = table[table["budget_blocks"] == budget_blocks]
    if rows.empty:
        known = ", ".join(str(k) for k in sorted(set(table["budget_blocks"])))
        raise ValueError(f"no row for a budget of {budget_blocks} blocks; the table has {known}")
    figure = _lines(rows, x="layer", hover="share_kept", hover_name="share")
    figure.update_xaxes(title="layer")
    figure.update_layout(title_text=f"Mass recall layer by layer, budget {budget_blocks} blocks")
    return stamp(figure, "measured", note, where=where)


def _lines(table, *, x: str, hover: str, hover_name: str):
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, part) in enumerate(table.groupby("selector", sort=False)):
        figure.add_scatter(
            x=part[x], y=part["mass_recall"], name=name, mode="lines+markers", customdata=part[[hover]],
            hovertemplate=f"%{{y:.3f}}, {hover_name} %{{customdata[0]:.3g}}", **series(index),
        )  # fmt: skip
    least = 0.1 * math.floor(10 * table["mass_recall"].min())
    return figure.update_yaxes(title="mass recall", range=[least, 1.02])
