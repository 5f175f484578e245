"""What all live widgets share: a figure that updates, callbacks that answer in a sentence, and a last resort.

A callback that raises would print a traceback where nobody looks, or nothing at all. Here it says what is
wrong below the figure, which stays the last good one. Where the widget does not run (a saved notebook without
its kernel, Lab without the extension, a browser or a policy that blocks scripts), the cell shows its twin,
the figure as first drawn. The twin is an output of its own: of one output Lab shows the widget's type alone.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from sparda.figures.style import TOOLBAR, fit
from sparda.provenance import ROOT

AT_ONCE = {"style": {"description_width": "104px"}, "layout": {"width": "330px"}}  # a choice: nothing between
CONTROL = {"continuous_update": False, **AT_ONCE}  # a slider draws when it is let go
PLOTLY = "application/vnd.plotly.v1+json"
AXIS_KEYS = ("range", "categoryarray", "title.text")  # what a redraw may change in an axis
INSTEAD = (
    "No live figure here? Then here is the one that the cell drew first. Run the cell again for its "
    "controls; if none come, <code>sparda doctor</code> says what is missing."
)
# beside a live figure no twin, and beside a twin not the error of a widget whose kernel is gone, a bare text
_ONE_OF_BOTH = """<style>
.jp-OutputArea:has(.sparda-live .js-plotly-plot) .jp-OutputArea-child:has(> .jp-RenderedPlotly, .sparda-twin),
.jp-OutputArea:has(.sparda-twin) .jp-OutputArea-output.jupyter-widgets:not(:has(*)) { display: none; }
</style>"""
_OWN_OUTPUTS = {"VSCODE_PID", "COLAB_NOTEBOOK_ID"}  # they lay out a cell's outputs in other ways than Lab


def check_names(
    function: str, changes: Mapping, known: Sequence[str], also: Sequence[str] = ("live",)
) -> None:
    """TypeError with the known names, if ``changes`` holds others."""
    if unknown := sorted(set(changes) - set(known)):
        names = ", ".join([*known, *also[:-1]])
        raise TypeError(f"{function} does not know {', '.join(unknown)}; it takes {names} and {also[-1]}")


def live_figure(figure: Any) -> Any:
    """A FigureWidget that follows the width of the page, its stamp a part of the title.

    Lab draws a live figure before it is on the page; plotly then measures the title as nothing and would put
    the subtitle on top of it, and makes the figure 700 px wide. So once it has been drawn it is sized again.
    """
    import plotly.graph_objects as go

    chart: Any = go.FigureWidget(_for_life(figure))
    chart._config = {**chart._config, "responsive": True}

    def drawn(_change: Any) -> None:
        chart.layout.autosize = True

    chart.observe(drawn, names="_js2py_traceDeltas")  # the page's first answer
    return chart


def _for_life(figure: Any) -> Any:
    """Laid out anew after a figure's own changes, and the stamp moved into the title."""
    title = figure.layout.title
    if not title.subtitle.text:  # moved already
        return figure
    fit(figure)
    wrapped = title.subtitle.text.split("<br>")
    lines = [title.text, *(f'<span style="font-size:12px">{line}</span>' for line in wrapped)]
    title.text, title.subtitle, title.pad.t = "<br>".join(lines), None, TOOLBAR
    figure.layout.margin.t += 6 * len(wrapped)  # lines of a title are higher than those of a subtitle
    return figure


def redraw(chart: Any, figure: Any) -> None:
    """Make a live figure show what a figure with the same traces shows; only what differs is sent."""
    fresh = _for_life(figure)
    with chart.batch_update():
        for old, new in zip(chart.data, fresh.data, strict=True):
            shown = _leaves(old.to_plotly_json())
            for key, value in _leaves(new.to_plotly_json()).items():
                if not _same(shown.get(key), value):
                    old[key] = value
        for key, value in _changed_layout(chart.layout, fresh.layout).items():
            chart.layout[key] = value


def _leaves(tree: Mapping, path: str = "") -> dict[str, Any]:
    """Values of a nested mapping by their dotted path."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _leaves(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return found


def _same(one: Any, other: Any) -> bool:
    """Equal values, whichever mixture of lists and arrays holds them."""
    if one is other or one is None or other is None:
        return one is other
    return np.array_equal(np.asarray(one, dtype=object), np.asarray(other, dtype=object))


def _changed_layout(old: Any, new: Any) -> dict[str, Any]:
    """Titles and their room, ranges, lanes and notes that differ."""
    names = [
        "title.text",
        "title.pad.t",
        "margin.t",
        *(f"{axis}.{key}" for axis in ("xaxis", "yaxis") for key in AXIS_KEYS),
    ]
    names += [f"annotations[{i}].text" for i in range(len(new.annotations))]
    return {name: new[name] for name in names if new[name] is not None and not _same(old[name], new[name])}


def status_line(text: str = "") -> Any:
    """A line of text that a screen reader reads out when it changes; see ``say``."""
    import ipywidgets as W

    line = W.HTML()
    say(line, text)
    return line


def say(line: Any, text: str, *, problem: bool = False) -> None:
    """Write plain text into a status line; a problem is marked by a word and a frame, not only by colour."""
    escaped = html.escape(text)
    look = "border-left: 4px solid #c94a4a; padding-left: 8px" if problem else ""
    start = "<b>Problem:</b> " if problem else ""
    line.value = f'<div role="status" aria-live="polite" style="{look}">{start}{escaped}</div>'


def guarded(line: Any, callback: Callable[..., None]) -> Callable[..., None]:
    """The callback, made to say in ``line`` what went wrong instead of raising; a stop is no error."""

    def call(*args: Any) -> None:
        try:
            callback(*args)
        except KeyboardInterrupt:
            say(line, "Stopped. The figure is the one from before.", problem=True)
        except Exception as error:  # whatever it is: a reader gets a sentence
            said = error.args[0] if isinstance(error, KeyError) and error.args else error
            what = str(said) or type(error).__name__
            say(line, f"{what}. The figure is the one from before.".replace("..", "."), problem=True)

    return call


def watch(controls: Mapping[str, Any], line: Any, callback: Callable[[Any], None]) -> None:
    """Call back, guarded, on each change of a control's value."""
    for control in controls.values():
        control.observe(guarded(line, callback), names="value")


def values(controls: Mapping[str, Any]) -> dict[str, Any]:
    """What the controls say now, by name."""
    return {name: control.value for name, control in controls.items()}


def columns(controls: Mapping[str, Any]) -> Any:
    """The controls in two columns, in their order; below each other where the page is narrow."""
    import ipywidgets as W

    boxes = list(controls.values())
    half = -(-len(boxes) // 2)
    layout = {"flex_flow": "row wrap"}
    return W.HBox([W.VBox(boxes[:half]), W.VBox(boxes[half:])], layout=layout)


def explorer(children: Sequence[Any], *, figure: str, twin: Any) -> Any:
    """The widget of these parts.

    twin   : plotly figure that is shown where the widget does not run
    figure : its name in figures/, whose picture stands in where plotly does not run either
    """
    box = _explorer_class()(list(children))
    box.figure, box.twin = figure, fit(twin)
    return box.add_class("sparda-live")


@cache
def _explorer_class() -> type:
    import ipywidgets as W

    class Explorer(W.VBox):
        """A VBox that displays itself and its twin."""

        figure: str = ""
        twin: Any = None

        def _repr_mimebundle_(self, **kwargs: Any) -> Any:
            bundle = dict(super()._repr_mimebundle_(**kwargs) or {})
            return {**bundle, "text/html": "", "text/plain": ""}  # the twin says it all

        def outputs(self) -> list[dict[str, Any]]:
            """What the cell shows, by mime type: the widget, a sentence, the twin."""
            plain = INSTEAD.replace("<code>", "`").replace("</code>", "`")
            sentence = f'{_ONE_OF_BOTH}<p class="sparda-twin">{INSTEAD}</p>'
            drawn = {**json.loads(self.twin.to_json()), "config": {"responsive": True}}
            twin = {PLOTLY: drawn, "text/html": _picture(self.figure), "text/plain": f"{self.figure}.png"}
            shown = [self._repr_mimebundle_(), {"text/html": sentence, "text/plain": plain}, twin]
            return shown[:1] if _OWN_OUTPUTS & set(os.environ) else shown

        def _ipython_display_(self) -> None:
            from IPython.display import display

            for bundle in self.outputs():
                display(bundle, raw=True)

    return Explorer


def _picture(name: str) -> str:
    """An <img> of the committed picture by its path from here: a saved notebook stays small."""
    path = ROOT / "figures" / f"{name}.png"
    if not path.is_file():
        return f"<p>No build has drawn {html.escape(name)} yet: <code>make reproduce</code> does.</p>"
    source = os.path.relpath(path).replace(os.sep, "/")
    return f'<img alt="{html.escape(name)}, as last built" style="max-width: 100%" src="{source}">'


def simple(controls: dict[str, Any], draw: Callable[[dict], Any], *, figure: str, twin: Any = None) -> Any:
    """A widget of controls and one figure: ``draw`` turns their values into it, on each change.

    figure, twin : as of ``explorer``; default of the twin: the figure of the controls' first values
    """
    chart, line = live_figure(draw(values(controls))), status_line()

    def changed(_change: Any) -> None:
        redraw(chart, draw(values(controls)))
        say(line, "")

    watch(controls, line, changed)
    parts = [columns(controls), chart, line]
    return explorer(parts, figure=figure, twin=twin or draw(values(controls)))
