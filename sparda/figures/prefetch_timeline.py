"""One decode step with prefetch, simulated: its timeline, and its stall and rate at every batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparda import simulate
from sparda.figures.style import TEXT, series, stamp
from sparda.prefetch import Prefetch
from sparda.units import format_seconds

LOOKS = {"prep": 4, "attention": 0, "rest": 2, "copy": 1, "stall": 5}  # index of series()
PATTERNS = {"prep": "x", "attention": "", "rest": "/", "copy": "\\", "stall": "."}


def timeline_table(state: Prefetch):
    """Columns task, kind, stream, start_us, us: every task and every stall of compute."""
    import pandas as pd

    rows = []
    for span in state.spans():
        if span.task.stream == simulate.COMPUTE and span.waited > 1e-6:
            name = f"stall before {span.task.name}"
            rows.append((name, "stall", simulate.COMPUTE, span.start - span.waited, span.waited))
        kind = span.task.name.split()[0]
        rows.append((span.task.name, kind, span.task.stream, span.start, span.end - span.start))
    return pd.DataFrame(rows, columns=["task", "kind", "stream", "start_us", "us"])


def timeline_title(state: Prefetch, table) -> str:
    end = (table["start_us"] + table["us"]).max()
    waits = table.loc[table["kind"] == "stall", "us"].sum()
    rate = state.batch / (end * 1e-6)
    return f"{format_seconds(end * 1e-6)} a step, {100 * waits / end:.0f} % of it stall; {rate:.0f} tok/s"


def timeline_figure(state: Prefetch, *, shown_layers: int = 4, line_chars: int = 105):
    """Compute and link as two rows of bars over time, odd layers paler; the title is about the whole step."""
    import plotly.graph_objects as go

    table = timeline_table(state)
    figure = go.Figure()
    last = table.loc[table["task"] == f"rest {min(shown_layers, state.n_layers) - 1}"].iloc[0]
    for kind, index in LOOKS.items():
        rows = table[table["kind"] == kind]
        odd = [int(task.split()[-1]) % 2 for task in rows["task"]]
        look = {
            "color": series(index)["marker"]["color"],
            "pattern": {"shape": PATTERNS[kind]},
            "opacity": [0.55 if is_odd else 1.0 for is_odd in odd],
            "line": {"color": TEXT, "width": 1},  # neighbours on the link touch
        }
        figure.add_bar(
            y=rows["stream"], x=rows["us"], base=rows["start_us"], name=kind, orientation="h", marker=look,
            customdata=rows["task"], hovertemplate="%{customdata}: %{x:.1f} us<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", title_text=timeline_title(state, table), title_font_size=15)
    figure.update_xaxes(
        title=f"us; the first {shown_layers} layers", range=[0, last["start_us"] + last["us"]]
    )
    figure.update_yaxes(categoryorder="array", categoryarray=[simulate.LINK, simulate.COMPUTE])
    return stamp(figure, "simulated", state.note(), where="event simulator", line_chars=line_chars)


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
