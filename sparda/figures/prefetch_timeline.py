"""One decode step with prefetch, simulated or measured: its timeline; stall and rate at every batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparda import simulate
from sparda.figures.style import HATCH, TEXT, series, stamp
from sparda.prefetch import RULE, Prefetch
from sparda.timeline import AHEAD, Step
from sparda.units import format_bytes, format_seconds

LOOKS = {"prep": 5, "attention": 0, "rest": 2, "copy": 1, "stall": 4}  # index of series()
MEASURED = LOOKS | {"other": 3}  # what has no mark of its own, the simulator does not know
TOGETHER = {"barmode": "overlay", "uniformtext": {"minsize": 9, "mode": "hide"}}  # a name fits or is left out
LOOK = {  # of every bar, said once in a figure: saved chapters hold several timelines
    "orientation": "h", "textangle": 0, "textposition": "inside", "insidetextanchor": "middle",
    "insidetextfont": {"color": "white"}, "hovertemplate": "%{text}: %{x:.1f} us<extra></extra>",
    "marker": {"pattern": HATCH, "line": {"color": TEXT, "width": 1}},  # neighbours on the link touch
}  # fmt: skip
PATTERNS = {"prep": ".", "attention": "", "rest": "/", "copy": "\\", "stall": "x", "other": "-"}


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
    """Length of the step and its stall; rate and bound only where it is whole (a trace lacks the head)."""
    end = (table["start_us"] + table["us"]).max()
    waits = table.loc[table["kind"] == "stall", "us"].sum()
    share = f"{100 * waits / end:.0f} % of it stall"
    if isinstance(step, Step):
        return f"{format_seconds(end * 1e-6)} in the layers, {share}"
    bound, rate = step.bound(), step.batch / (end * 1e-6)
    most = f"bound {bound.tokens_per_s:.0f} ({bound.limit})"
    return f"{format_seconds(end * 1e-6)} a step, {share}; {rate:.0f} tok/s, {most}"


def timeline_sentence(step: Prefetch) -> str:
    """What the timeline says, for a reader who does not see it: rate, bound, stall, hits and slots."""
    spans, bound = step.spans(), step.bound()
    end, waits = simulate.makespan(spans) * 1e-6, simulate.stall(spans) * 1e-6
    hits = 1 - step.misses / RULE.budget_blocks
    return (
        f"Simulated: {step.batch / end:.0f} tok/s of at most {bound.tokens_per_s:.0f}, the bound of "
        f"{'the link' if bound.limit == 'link' else 'GPU memory'}. A step takes {format_seconds(end)}, "
        f"{format_seconds(waits)} of it exposed stall. Hit rate {hits:.3f} with {step.slots} slots a head, "
        f"which take {format_bytes(step.slot_bytes)} of GPU memory."
    )


def timeline_figure(step: Prefetch | Step, *, shown_layers: int = 4, line_chars: int = 105):
    """Compute and link as rows of bars over time, odd layers paler; the title is about the whole step.

    step : priced (stamped simulated) or traced (stamped measured, with its device, date and commit); traced,
           a selection that runs beside compute has a row of its own, "ahead"
    """
    import plotly.graph_objects as go

    table, looks = timeline_table(step), MEASURED if isinstance(step, Step) else LOOKS
    end = _shown_us(table, shown_layers)
    figure = go.Figure(_bars(table[table["start_us"] < end], looks))
    figure.update_layout(title_text=timeline_title(step, table), title_font_size=15, **TOGETHER)
    figure.update_xaxes(title=f"us; the first {shown_layers} layers", range=[0, end])
    figure.update_yaxes(categoryorder="array", categoryarray=_lanes(table))
    look = {"note": step.note(), "line_chars": line_chars}
    status, where = ("measured", step.where) if isinstance(step, Step) else ("simulated", "event simulator")
    return _alike(stamp(figure, status, where=where, **look))


def _alike(figure):
    """Give all bars the LOOK that they share."""
    return figure.update_layout(template={"data": {"bar": [LOOK]}})


def _bars(table, looks: dict[str, int], legend: bool = True) -> list:
    """A plotly Bar for each kind of task; one legend entry a kind, shared by the panels of a figure."""
    import plotly.graph_objects as go

    bars = []
    for kind, index in looks.items():
        rows = table[table["kind"] == kind]
        look = {
            "color": series(index)["marker"]["color"],
            "pattern": {"shape": PATTERNS[kind]},
            "opacity": np.where(np.array(_layers(rows), dtype=int) % 2, 0.72, 1).astype("float32"),
        }
        start = rows["start_us"].round(1).tolist()  # plotly writes a base as text, every digit of it
        bars.append(go.Bar(
            y=rows["stream"], x=rows["us"].to_numpy(dtype="float32"), base=start, name=kind, marker=look,
            text=_names(kind, rows), legendgroup=kind, showlegend=None if legend else False,
        ))  # fmt: skip
    return bars


def _names(kind: str, rows) -> list[str]:
    """What stands in each bar: its kind and layer; a stall's word is short and bold, it must fit."""
    return ["<b>stall</b>"] * len(rows) if kind == "stall" else rows["task"].tolist()


def _shown_us(table, shown_layers: int) -> float:
    """When compute ends the first layers, us."""
    own = table[table["kind"].isin(["attention", "rest", "other"])]  # a prep may lie in the layer before
    shown = own[[layer < shown_layers for layer in _layers(own)]]
    return (shown["start_us"] + shown["us"]).max()


def _lanes(table) -> list[str]:
    return [lane for lane in (simulate.LINK, AHEAD, simulate.COMPUTE) if lane in set(table["stream"])]


def steps_table(steps: Mapping[str, Step]):
    """``timeline_table`` of several measured steps, with a column system; the names are the keys."""
    import pandas as pd

    return pd.concat([timeline_table(step).assign(system=name) for name, step in steps.items()])


def steps_figure(steps: Mapping[str, Step], *, shown_layers: int = 4, note: str = ""):
    """Measured steps below each other, on one axis of time, each under its name, length and stall."""
    from plotly.subplots import make_subplots

    tables = {name: timeline_table(step) for name, step in steps.items()}
    names = [f"{name}: {timeline_title(steps[name], table)}" for name, table in tables.items()]
    heights = [len(_lanes(table)) for table in tables.values()]
    end = max(_shown_us(table, shown_layers) for table in tables.values())
    figure = make_subplots(
        rows=len(steps), shared_xaxes=True, subplot_titles=names, vertical_spacing=0.14, row_heights=heights
    )
    for row, table in enumerate(tables.values(), 1):
        shown = table[table["start_us"] < end]
        figure.add_traces(_bars(shown, MEASURED, legend=row == 1), rows=row, cols=1)
        figure.update_yaxes(categoryorder="array", categoryarray=_lanes(table), row=row, col=1)
    figure.update_xaxes(range=[0, end])
    title = f"us; the first {shown_layers} layers of the slowest step"
    figure.update_xaxes(title=title, row=len(steps))
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    figure.update_layout(title_text="The same decode step, copied ahead and on demand", **TOGETHER)
    where = "; ".join(dict.fromkeys(step.where for step in steps.values()))
    return _alike(stamp(figure, "measured", note, where=where)).update_layout(height=560, margin_t=132)


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
