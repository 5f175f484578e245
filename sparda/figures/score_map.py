"""The map of chapter 02: how every query of one head scores every block, and what one query reads of them."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from sparda import blocks
from sparda.figures.style import HEAT, TEXT, series, stamp
from sparda.selectors import LayerView, Oracle, Query
from sparda.spec import Sparsity

CHOICES = {"forced": "square", "learned": "diamond"}  # how a block that is read is marked
_LEAST_SCORE = 1e-4  # darkest colour of the map; the sum over G heads of a softmax reaches G


def block_texts(tokenizer, input_ids: Tensor, sparsity: Sparsity) -> list[str]:
    """The text of each block of a prompt [1, T]; N strings."""
    return [tokenizer.decode(part) for part in input_ids[0].split(sparsity.block_size)]


@dataclass(frozen=True)
class ScoreMaps:
    """Query scores and true attention mass of every layer and head, for evenly spaced queries of one prompt.

    scores, mass : [L, H, R, N] float32; scores are -inf where no window of a block is visible
    positions    : [R] int64, ascending, the prompt's last token included
    texts        : N strings, the text of each block
    """

    scores: Tensor
    mass: Tensor
    positions: Tensor
    texts: Sequence[str]
    sparsity: Sparsity


def score_maps(views: Sequence[LayerView], texts: Sequence[str], *, most_rows: int = 128) -> ScoreMaps:
    """Score every block for at most ``most_rows`` queries of each layer; views of one sequence each."""
    rows = _spaced(views[0].queries.shape[2], most_rows)
    some = [view.at(rows) for view in views]
    scores = torch.stack([Query().block_scores(view)[0].cpu() for view in some])
    mass = torch.stack([Oracle().block_scores(view)[0].cpu() for view in some])
    return ScoreMaps(scores, mass, some[0].positions[0].cpu(), texts, views[0].sparsity)


def thinned(maps: ScoreMaps, most_rows: int) -> ScoreMaps:
    """The same maps for at most ``most_rows`` of their queries, the last one included."""
    rows = _spaced(len(maps.positions), most_rows)
    return replace(
        maps, scores=maps.scores[:, :, rows], mass=maps.mass[:, :, rows], positions=maps.positions[rows]
    )


def _spaced(count: int, most: int) -> slice:
    """At most ``most`` of ``count`` rows, evenly spaced, the last one included."""
    step = -(-count // most)
    return slice((count - 1) % step, None, step)


def score_map_table(maps: ScoreMaps, *, layer: int, head: int, budget_blocks: int):
    """One head's map: columns layer, head, position, block, score, mass, choice, a row per query and block.

    choice : "forced" or "learned" (read), "left out" (visible, not read) or "future" (after the query)

    ValueError: a budget below the forced blocks.
    """
    import pandas as pd

    rule = replace(maps.sparsity, budget_blocks=budget_blocks)
    scores, positions = maps.scores[layer, head], maps.positions[None]  # [R, N], [1, R]
    n_rows, n_blocks = scores.shape
    read = blocks.block_mask(blocks.select_blocks(scores[None, None], positions, rule), n_blocks)[0, 0]
    forced = blocks.forced_blocks(positions, n_blocks, rule)[0]
    future = torch.arange(n_blocks) > maps.positions[:, None] // rule.block_size
    choice = np.select([forced, read, future], ["forced", "learned", "future"], "left out")
    return pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "position": np.repeat(maps.positions.numpy(), n_blocks),
            "block": np.tile(np.arange(n_blocks), n_rows),
            "score": scores.flatten().numpy(),
            "mass": maps.mass[layer, head].flatten().numpy(),
            "choice": choice.flatten(),
        }
    )


def score_map_figure(
    table, *, position: int, texts: Sequence[str] = (), note: str = "", where: str | None = None
):
    """Scores of every query and block as a heat map; below it, where one query's attention really goes.

    table    : ``score_map_table``
    position : the query whose chosen blocks are marked, one of the table's positions
    texts    : text of each block, shown on hovering; where: as in ``style.stamp``

    ValueError: a position that the table does not hold.
    """
    from plotly.subplots import make_subplots

    query = table[table["position"] == position]
    if query.empty:
        raise ValueError(f"no row for position {position}; take one of the table's, such as the last one")
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=[0.68, 0.32], vertical_spacing=0.06)
    figure.add_trace(_heat_map(table), row=1, col=1)
    hover = np.array([hover_text(texts[b]) for b in query["block"]], dtype=object) if len(texts) else None
    for choice, symbol in CHOICES.items():
        figure.add_trace(_marks(query, choice, symbol), row=1, col=1)
    for choice, pattern in {"forced": "/", "learned": "x", "left out": ""}.items():
        figure.add_trace(_bars(query, choice, pattern, hover), row=2, col=1)
    read = query["choice"].isin(list(CHOICES))
    visible = (query["choice"] != "future").sum()
    figure.update_layout(
        title_text=f"Layer {query['layer'].iloc[0]}, KV head {query['head'].iloc[0]}: query {position} reads "
        f"{read.sum()} of {visible} blocks, mass recall {query['mass'][read].sum():.2f}",
        title_font_size=15,
        barmode="overlay",
    )
    figure.update_yaxes(title="query, token position", autorange="reversed", row=1, col=1)
    figure.update_yaxes(title="attention mass", row=2, col=1)
    figure.update_xaxes(title="block", row=2, col=1)
    stamp(figure, "measured", note, where=where, line_chars=80)  # beside a notebook's margins
    return figure.update_layout(height=640, legend={"y": 0.22})  # beside the bars; the colour bar is above


def _heat_map(table):
    import plotly.graph_objects as go

    grid = table.pivot(index="position", columns="block", values="score")
    score = grid.to_numpy(dtype="float32")
    seen = np.isfinite(score)
    colour = np.full_like(score, np.nan)  # a typed array: a saved figure stays small
    colour[seen] = np.log10(np.maximum(score[seen], _LEAST_SCORE))
    return go.Heatmap(
        x=grid.columns.to_numpy(), y=grid.index.to_numpy(), z=colour, colorscale=HEAT,
        zmin=np.log10(_LEAST_SCORE), zmax=0.5, hoverongaps=False,
        hovertemplate="query %{y}, block %{x}<br>log10 score %{z:.2f}<extra></extra>",
        colorbar={"title": "score, log10", "len": 0.62, "y": 1, "yanchor": "top"},
    )  # fmt: skip


def without_nan(values) -> list:
    """The same rows with None for NaN: a live figure is sent as JSON, which has no NaN."""
    rows = np.asarray(values, dtype="float64").round(3)
    return [[None if np.isnan(x) else x for x in row] for row in rows.tolist()]


def _marks(query, choice: str, symbol: str):
    import plotly.graph_objects as go

    picked = query["choice"] == choice
    return go.Scatter(
        x=query["block"][picked], y=query["position"][picked], mode="markers", name=f"{choice}, read",
        showlegend=True, hovertemplate=f"block %{{x}}, {choice}: its text is at its bar below<extra></extra>",
        marker={"symbol": symbol, "size": 11, "color": "white", "line": {"color": "black", "width": 2}},
    )  # fmt: skip


def _bars(query, choice: str, pattern: str, hover: np.ndarray | None):
    import plotly.graph_objects as go

    index = ["forced", "learned", "left out"].index(choice)
    colour = TEXT if choice == "left out" else series(index)["marker"]["color"]
    ours = (query["choice"] == choice).to_numpy()
    text = "" if hover is None else "<br>%{customdata}"
    return go.Bar(  # its own blocks alone, as typed arrays: a saved figure stays small
        x=query["block"].to_numpy()[ours], y=query["mass"].to_numpy(dtype="float32")[ours], width=0.8,
        name=f"mass, {choice}", customdata=None if hover is None else hover[ours],
        marker={"color": colour, "pattern": {"shape": pattern}},
        hovertemplate=f"block %{{x}}: %{{y:.3f}}{text}<extra></extra>",
    )  # fmt: skip


@lru_cache(maxsize=4096)
def hover_text(text: str) -> str:
    """One block's text in short lines, its signs escaped: plotly reads some HTML."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, 60)[:6])
