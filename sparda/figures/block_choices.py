"""One token, one head: which blocks query, Forecast and proxy would read, and what each of them misses."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sparda import blocks
from sparda.figures.choices_live import Choices
from sparda.figures.score_map import hover_text
from sparda.figures.style import HATCH, PALETTE, TEXT, stamp

ORACLE = "oracle"  # chooses by the true mass, which no real system knows in time
PALE = "rgba(128,128,128,0.4)"
LOOKS = {"forced": (PALETTE[0], "/"), "learned": (PALETTE[1], "x"), "left out": (PALE, "")}
COLOURS = [[i / (len(LOOKS) - 1), colour] for i, (colour, _) in enumerate(LOOKS.values())]
MISSED = {"symbol": "triangle-down", "size": 12, "color": PALETTE[4], "line": {"color": TEXT, "width": 1}}
CUT = 1.12  # forced blocks may score far higher than what there is to choose from: their bars end here


@dataclass(frozen=True)
class At:
    """Where to look. head: KV head; step: token of the reply, 0 first; budget_blocks: k."""

    layer: int = 0
    head: int = 0
    step: int = 0
    budget_blocks: int = 8


def within(choices: Choices, at: At) -> At:
    """``at`` itself, step -1 as the last; ValueError names the first value that is not in ``choices``."""
    n_layers, n_heads, n_steps, n_blocks = choices.mass.shape
    at = replace(at, step=n_steps - 1 if at.step == -1 else at.step)
    least = choices.sparsity.forced_blocks
    ranges = {
        "layer": (0, n_layers - 1), "head": (0, n_heads - 1), "step": (0, n_steps - 1),
        "budget_blocks": (least, max(least, n_blocks)),
    }  # fmt: skip
    for name, (low, high) in ranges.items():
        value = getattr(at, name)
        if not low <= value <= high:
            raise ValueError(f"{name} = {value} is not in these choices; choose from {low} to {high}")
    return at


def choices_table(choices: Choices, at: At):
    """A row a selector and block: layer, head, position, selector, block, score, height, mass, choice,
    missed.


    height : the score as it is drawn, 0 the least and 1 the best of the blocks that are not forced
    choice : "forced" or "learned" (read), "left out"
    missed : the oracle, with as many blocks, reads it and this selector does not
    """
    import pandas as pd

    rule = replace(choices.sparsity, budget_blocks=at.budget_blocks)
    position = choices.positions[at.step]
    n_seen = int(position) // rule.block_size + 1  # later blocks do not exist yet
    mass = choices.mass[at.layer, at.head, at.step, :n_seen]
    scores = [s[at.layer, at.head, at.step, :n_seen] for s in choices.scores.values()] + [mass]
    stacked = torch.stack(scores)  # [selectors, N]
    asked = position.expand(len(scores), 1)
    ids = blocks.select_blocks(stacked[:, None, None], asked, rule)  # [selectors, 1, 1, k]
    read = blocks.block_mask(ids, n_seen)[:, 0, 0]
    forced = blocks.forced_blocks(position[None, None], n_seen, rule)[0, 0]
    missed, names = read[-1] & ~read, [*choices.scores, ORACLE]
    choice = np.select([forced.expand_as(read), read], ["forced", "learned"], "left out")
    return pd.DataFrame(
        {
            "layer": at.layer,
            "head": at.head,
            "position": int(position),
            "selector": np.repeat(names, n_seen),
            "block": np.tile(np.arange(n_seen), len(names)),
            "score": stacked.flatten().numpy(),
            "height": torch.stack([_height(row, forced) for row in stacked]).flatten().numpy(),
            "mass": mass.repeat(len(names)).numpy(),
            "choice": choice.flatten(),
            "missed": missed.flatten().numpy(),
        }
    )


def _height(scores: torch.Tensor, forced: torch.Tensor) -> torch.Tensor:
    free = scores[~forced & scores.isfinite()]
    low, high = (free.min(), free.max()) if len(free) else (0.0, 1.0)
    scaled = (scores - low) / max(float(high - low), 1e-12)
    return scaled.nan_to_num(0.0, CUT, 0.0).clamp(0.0, CUT)


def sums(table):
    """By selector: its mass recall, what it misses of the oracle's mass, and the blocks that it misses."""
    rows = {}
    for name, part in table.groupby("selector", sort=False):
        read = part["choice"] != "left out"
        missed = part[part["missed"]]
        rows[name] = (float(part["mass"][read].sum()), float(missed["mass"].sum()), missed["block"].tolist())
    return rows


def choices_figure(
    table, *, token: str = "", texts: Sequence[str] = (), note: str = "", where: str | None = None
):
    """A row of bars for each selector, the oracle below; a triangle where the oracle's block is missed.

    table : ``choices_table``; token : what this step wrote; texts : of each block, shown on hovering with
        the numbers; without them a bar says only its height
    """
    import plotly.graph_objects as go

    parts = dict(iter(table.groupby("selector", sort=False)))
    axes = [f"y{row if row > 1 else ''}" for row in range(1, len(parts) + 1)]
    traces = _legend()
    for axis, part in zip(axes, parts.values(), strict=True):
        traces += [trace | {"yaxis": axis} for trace in _bars(part, texts)]
    layer, head, position = (table[name].iloc[0] for name in ("layer", "head", "position"))
    layout = {
        "title": {
            "text": f"Layer {layer}, KV head {head}, token {position} writes “{_visible(token)}”",
            "font": {"size": 15},
        },
        "grid": {"subplots": [[f"x{axis}"] for axis in axes], "ygap": 0.3},
        "annotations": [_row_title(axis, of) for axis, of in zip(axes, sums(table).items(), strict=True)],
        "xaxis": {"title": {"text": "block"}},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.16, "yanchor": "top"},
        "barmode": "overlay",
        "bargap": 0.1,
        "coloraxis": {"cmin": 0, "cmax": len(LOOKS) - 1, "colorscale": COLOURS, "showscale": False},
        "height": 190 + 120 * len(parts),
        "margin": {"t": 132, "b": 100},  # room for a stamp of three lines, and for the legend
    }
    scale = {"range": [0, 1.4], "tickvals": [0, 1]}
    layout |= {axis.replace("y", "yaxis"): dict(scale) for axis in axes}
    layout[axes[len(axes) // 2].replace("y", "yaxis")]["title"] = {"text": "score (1: best to choose)"}
    figure = go.Figure({"data": traces, "layout": layout})
    own = {name: layout[name] for name in ("height", "legend", "margin")}
    return stamp(figure, "measured", note, where=where, line_chars=80).update_layout(own)


def _row_title(axis: str, sums_of: tuple[str, tuple[float, float, list[int]]]) -> dict:
    """A line above a row: its selector, what that holds and what it misses."""
    name, (recall, missed_mass, missed) = sums_of
    if name == ORACLE:
        text = f"{name}: the true attention; the best {recall:.3f} that as many blocks can hold"
    else:
        which = ", ".join(map(str, missed[:6])) + (" …" if len(missed) > 6 else "")
        miss = f"misses {missed_mass:.3f} in block {which}" if missed else "misses nothing"
        text = f"{name}: mass recall {recall:.3f}, {miss}"
    place = {
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1,
        "yref": f"{axis} domain",
        "yanchor": "bottom",
    }
    return {"text": text, "font": {"size": 13}, "showarrow": False, **place}


def _visible(token: str) -> str:
    return html.escape(token.replace("\n", "⏎")) or "(nothing)"


def _legend() -> list[dict]:
    """An entry for each kind of bar and for the triangle; the bars themselves change their kind."""
    shown = {"x": [None], "y": [None], "showlegend": True}
    bars = [
        {"type": "bar", "name": f"{kind}, read" if kind != "left out" else kind, **shown,
         "marker": {"color": colour, "pattern": {"shape": shape, **HATCH}}}
        for kind, (colour, shape) in LOOKS.items()
    ]  # fmt: skip
    missed = {"type": "scatter", "name": "missed: the oracle reads it", "mode": "markers", "marker": MISSED}
    return [*bars, missed | shown]


def _bars(part, texts: Sequence[str]) -> list[dict]:
    kinds = part["choice"].map(list(LOOKS).index).to_numpy(dtype="uint8")  # typed: a saved figure stays small
    shapes = [LOOKS[kind][1] for kind in part["choice"]]
    hover, say = None, "block %{x}: %{y:.2f} of the best"
    if len(texts):
        numbers = zip(*(part[name].tolist() for name in ("block", "choice", "score", "mass")), strict=True)
        hover = [
            f"{choice}: score {score:.3g}, mass {mass:.3f}<br>{hover_text(texts[block])}"
            for block, choice, score, mass in numbers
        ]
        say = "block %{x}, %{customdata}"
    block, height = part["block"].to_numpy(), np.maximum(part["height"].to_numpy().round(3), 0.02)
    missed = part["missed"].to_numpy()
    return [
        {
            "type": "bar", "x": block, "y": height, "showlegend": False, "customdata": hover,
            "marker": {"color": kinds, "coloraxis": "coloraxis", "pattern": {"shape": shapes, **HATCH}},
            "hovertemplate": f"{say}<extra></extra>",
        },
        {
            "type": "scatter", "x": block[missed], "y": height[missed] + 0.13, "mode": "markers",
            "marker": MISSED, "showlegend": False, "hoverinfo": "skip",
        },
    ]  # fmt: skip


def block_sentence(table, block: int, texts: Sequence[str], block_size: int) -> str:
    """What the figure shows about one block, for a reader who does not hover: who reads it, and its text."""
    rows = table[table["block"] == block]
    if rows.empty:
        return f"Block {block} does not exist yet."
    readers = rows["selector"][rows["choice"] != "left out"].tolist()
    losers = rows["selector"][rows["missed"]].tolist()
    forced = "; it is forced" if (rows["choice"] == "forced").any() else ""
    first = block * block_size
    said = (
        f"Block {block}, tokens {first} to {first + block_size - 1}, holds {rows['mass'].iloc[0]:.3f} of the "
    )
    said += f"attention. Read by {', '.join(readers) or 'nobody'}{forced}."
    if losers:
        said += f" Missed by {', '.join(losers)}."
    return f"{said} Text: “{texts[block].strip()}”"
