"""Offloaded decode on other cards and links: ceilings by datasheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparda.bounds import Rates
from sparda.costs import largest_batch
from sparda.figures.offloaded_decode import bound_of
from sparda.figures.style import series, stamp
from sparda.spec import Hardware, ModelShape, Sparsity


def hardware_table(
    shape: ModelShape, sparsity: Sparsity, cards: Mapping[str, Hardware], *, n_tokens: int,
    batches: Sequence[int], hit_rate: float,
):  # fmt: skip
    """Ceilings by datasheet for other cards and links: columns card, batch, tokens_per_s, limit.

    A batch whose ledger (``costs.gpu_bytes``) passes the card's memory has no row.
    """
    import pandas as pd

    rows, sizes = [], {"shape": shape, "sparsity": sparsity, "n_tokens": n_tokens}
    for name, card in cards.items():
        fits = largest_batch(memory_gib=card.memory_gib, placement="offload", **sizes)
        for batch in (b for b in batches if b <= fits):
            of = {"n_tokens": n_tokens, "hit_rate": hit_rate, "rates": Rates.of(card)}
            floor = bound_of(shape, sparsity, batch=batch, **of)
            rows.append((name, batch, floor.tokens_per_s, floor.limit))
    return pd.DataFrame(rows, columns=["card", "batch", "tokens_per_s", "limit"])


def hardware_figure(table, *, note: str = ""):
    """A line for each card; a large marker where the link is the limit."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, part) in enumerate(table.groupby("card", sort=False)):
        look = series(index)
        look["marker"] |= {"size": [12 if limit == "link" else 6 for limit in part["limit"]]}
        figure.add_scatter(x=part["batch"], y=part["tokens_per_s"], name=name, mode="lines+markers", **look)
    figure.update_xaxes(title="batch, sequences", type="log", tickvals=sorted(set(table["batch"])))
    ticks = [m * 10**p for p in range(1, 5) for m in (1, 2, 5)]
    figure.update_yaxes(title="ceiling of decode, tokens/s", type="log", tickvals=ticks)
    figure.update_layout(title_text="Other cards, other links (large marker: the link is the limit)")
    return stamp(figure, "modelled", note, where="datasheet peaks of sparda/spec.py")
