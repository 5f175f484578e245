"""The block-score explorer of chapter 02: layer, head, query and budget over ``score_map_figure``."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from sparda.figures.score_map import ScoreMaps, score_map_figure, score_map_table, thinned, without_nan
from sparda.figures.style import fit
from sparda.widgets import runtime, shell

STATIC_ROWS = 32  # of the heat map in a file, which holds two of them


@dataclass(frozen=True)
class View:
    """What the explorer shows. ``position`` -1 is the prompt's last query."""

    layer: int = 0
    head: int = 0  # KV head
    position: int = -1
    budget_blocks: int = 8  # k, forced blocks included


def explore_blocks(
    maps: ScoreMaps, view: View | None = None, *, note: str = "", live: bool | None = None, **changes
):
    """Show the block scores of one head and what one query reads of them (measured).

    maps : ``figures.score_map.score_maps``
    view : start values; ``changes`` override its fields, such as ``layer=12`` or ``budget_blocks=4``; a
        position between two rows of the map moves to the earlier one
    note : model, text and context, for the stamp
    live : True for sliders, False for two figures, at half and at the end of the prompt, small ones of at
        most 32 rows, without the blocks' texts; default: whether a person's notebook is running

    Raises TypeError for an unknown keyword, ValueError for a value outside of the maps.
    """
    known = [field.name for field in fields(View)]
    shell.check_names("explore_blocks", changes, known, also=("note", "live"))
    view = _within(maps, replace(view or View(), **changes))
    if live if live is not None else runtime.is_live():
        return _live(maps, view, note)
    last = int(maps.positions[-1])
    return [_static(maps, replace(view, position=part * last // 4), note) for part in (2, 4)]


def _within(maps: ScoreMaps, view: View) -> View:
    """The view on a row of the maps; ValueError names the first value that lies outside of them."""
    n_layers, n_heads, _, n_blocks = maps.scores.shape
    last = int(maps.positions[-1])
    view = replace(view, position=last if view.position == -1 else view.position)
    ranges = {
        "layer": (0, n_layers - 1),
        "head": (0, n_heads - 1),
        "position": (int(maps.positions[0]), last),
        "budget_blocks": (maps.sparsity.forced_blocks, max(n_blocks, maps.sparsity.forced_blocks)),
    }
    for name, (low, high) in ranges.items():
        value = getattr(view, name)
        if not low <= value <= high:
            raise ValueError(f"{name} = {value} is not in these maps; choose from {low} to {high}")
    return replace(view, position=int(maps.positions[maps.positions <= view.position][-1]))


def _painter(maps: ScoreMaps, note: str):
    """View -> figure, with the stamp's device and commit looked up once."""
    from sparda.provenance import here

    where = here()

    def draw(view: View, *, hover: bool = True):
        table = score_map_table(maps, layer=view.layer, head=view.head, budget_blocks=view.budget_blocks)
        return score_map_figure(
            table, position=view.position, texts=maps.texts if hover else (), note=note, where=where
        )

    return draw


def _controls(maps: ScoreMaps, view: View) -> dict:
    """One ipywidget a field of View, by the field's name."""
    import ipywidgets as W

    n_layers, n_heads, _, n_blocks = maps.scores.shape
    least = maps.sparsity.forced_blocks
    return {
        "layer": W.IntSlider(view.layer, 0, n_layers - 1, description="layer", **shell.CONTROL),
        "head": W.IntSlider(view.head, 0, n_heads - 1, description="KV head", **shell.CONTROL),
        "position": W.SelectionSlider(
            options=maps.positions.tolist(), value=view.position, description="query", **shell.CONTROL
        ),
        "budget_blocks": W.IntSlider(
            view.budget_blocks, least, max(least, n_blocks), description="budget k", **shell.CONTROL
        ),
    }


def _static(maps: ScoreMaps, view: View, note: str):
    """A small figure for a file: few rows of the map, no texts."""
    maps = thinned(maps, STATIC_ROWS)
    view = replace(view, position=max(view.position, int(maps.positions[0])))
    return fit(_painter(maps, note)(_within(maps, view), hover=False))


def _live(maps: ScoreMaps, view: View, note: str):
    draw: Any = _painter(maps, note)

    def live_draw(chosen: dict):
        figure = draw(View(**chosen))
        figure.data[0].z = without_nan(figure.data[0].z)
        return figure

    twin = _static(maps, view, note)
    return shell.simple(_controls(maps, view), live_draw, figure="block_score_map", twin=twin)
