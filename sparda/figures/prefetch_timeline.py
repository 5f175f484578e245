"""One decode step with prefetch, simulated or measured: its timeline; stall and rate at every batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparda import simulate
from sparda.figures.style import TEXT, series, stamp
from sparda.prefetch import Prefetch
from sparda.timeline import AHEAD, Step
from sparda.units import format_seconds

LOOKS = {"prep": 4, "attention": 0, "rest": 2, "copy": 1, "stall": 5}  # index of series()
MEASURED = LOOKS | {"other": 3}  # what has no mark of its own, the simulator does not know
PATTERNS = {"prep": "x", "attention": "", "rest": "/", "copy": "\\", "stall": ".", "other": "-"}


def timeline_table(step: Prefetch | Step):
    """Columns task, kind, stream, start_us, us: every task and every stall of compute."""
    import pandas as pd

    rows = []
    for span in step.spans():
        if span.task.stream == simulate.COMPUTE and span.waited > 1e-6:
            name = f"stall before {span.task.name}"
            rows.append((name, "stall", simulate.COMPUTE, span.start - span.waited, span.waited))
        kind = span.task.name.split()[0]
        rows.append((span.task.name, kind, span.task.stream, span.start, span.end - span.start))
    return pd.DataFrame(rows, columns=["task", "kind", "stream", "start_us", "us"])


def timeline_title(step: Prefetch | Step, table) -> str:
    """Length of the step and its stall; a rate only where the step is whole (a trace leaves out the head)."""
    end = (table["start_us"] + table["us"]).max()
    waits = table.loc[table["kind"] == "stall", "us"].sum()
    share = f"{100 * waits / end:.0f} % of it stall"
    if isinstance(step, Step):
        return f"{format_seconds(end * 1e-6)} in the layers, {share}"
    return f"{format_seconds(end * 1e-6)} a step, {share}; {step.batch / (end * 1e-6):.0f} tok/s"


def timeline_figure(step: Prefetch | Step, *, shown_layers: int = 4, line_chars: int = 105):
    """Compute and link as rows of bars over time, odd layers paler; the title is about the whole step.

    step : priced (stamped simulated) or traced (stamped measured, with its device, date and commit); traced,
           a selection that runs beside compute has a row of its own, "ahead"
    """
    import plotly.graph_objects as go

    table, figure = timeline_table(step), go.Figure()
    for kind, index in (MEASURED if isinstance(step, Step) else LOOKS).items():
        rows = table[table["kind"] == kind]
        look = {
            "color": series(index)["marker"]["color"],
            "pattern": {"shape": PATTERNS[kind]},
            "opacity": [0.55 if layer % 2 else 1.0 for layer in _layers(rows)],
            "line": {"color": TEXT, "width": 1},  # neighbours on the link touch
        }
        figure.add_bar(
            y=rows["stream"], x=rows["us"], base=rows["start_us"], name=kind, orientation="h", marker=look,
            customdata=rows["task"], hovertemplate="%{customdata}: %{x:.1f} us<extra></extra>",
        )  # fmt: skip
    own = table[table["kind"].isin(["attention", "rest", "other"])]  # a prep may lie in the layer before
    shown = own[[layer < shown_layers for layer in _layers(own)]]
    figure.update_layout(barmode="overlay", title_text=timeline_title(step, table), title_font_size=15)
    figure.update_xaxes(
        title=f"us; the first {shown_layers} layers", range=[0, (shown["start_us"] + shown["us"]).max()]
    )
    lanes = [lane for lane in (simulate.LINK, AHEAD, simulate.COMPUTE) if lane in set(table["stream"])]
    figure.update_yaxes(categoryorder="array", categoryarray=lanes)
    look = {"note": step.note(), "line_chars": line_chars}
    if isinstance(step, Step):
        return stamp(figure, "measured", where=step.where, **look)
    return stamp(figure, "simulated", where="event simulator", **look)


def _layers(rows) -> list[int]:
    return [int(task.split()[-1]) for task in rows["task"]]


def batch_table(states: Sequence[Prefetch], batches: Iterable[int] = (1, 2, 4, 8, 16, 32, 64)):
    """Columns transport, batch, step_ms, stall_ms, tokens_per_s for every state at every batch."""
    import pandas as pd

    rows = []
    for state in states:
        for batch in batches:
            spans = replace(state, batch=batch).spans()
            ms = simulate.makespan(spans) / 1e3
            rows.append((state.transport, batch, ms, simulate.stall(spans) / 1e3, 1e3 * batch / ms))
    return pd.DataFrame(rows, columns=["transport", "batch", "step_ms", "stall_ms", "tokens_per_s"])


def batch_figure(table, state: Prefetch):
    """Share of a step that compute stands idle, and tokens a second, against batch; one line a transport."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, horizontal_spacing=0.12)
    for index, (transport, rows) in enumerate(table.groupby("transport", sort=False)):
        look = {"name": str(transport), "legendgroup": str(transport), "mode": "lines+markers"} | series(
            index
        )
        share = 100 * rows["stall_ms"] / rows["step_ms"]
        figure.add_scatter(x=rows["batch"], y=share, **look, row=1, col=1)
        figure.add_scatter(x=rows["batch"], y=rows["tokens_per_s"], showlegend=False, **look, row=1, col=2)
    figure.update_xaxes(title="batch", type="log", tickvals=sorted(set(table["batch"])))
    figure.update_yaxes(title="stall, % of the step", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="tok/s", rangemode="tozero", row=1, col=2)
    figure.update_layout(title_text="Looking one layer ahead hides the link until the link itself is full")
    note = replace(state, batch=1).note().replace("batch 1, ", "")
    return stamp(figure, "simulated", note, where="event simulator")
