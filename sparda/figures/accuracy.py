"""Figures of chapter 07: answers by task and by context, paired differences, and answers against recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparda import paper
from sparda.evaluation.accuracy import AVERAGE
from sparda.evaluation.methods import HEADLINE
from sparda.figures.accuracy_data import LABELS
from sparda.figures.style import GRID, TEXT, series, stamp

LOOKS = {method: index for index, method in enumerate(LABELS)}  # method: index of series()
PUBLISHED = {"MiniCPM4.1-8B": "64K", "NOSA-8B": "32K"}  # model: its native context


def context_name(tokens: float) -> str:
    """A context as it is named in text.

    >>> context_name(8192), context_name(256)
    ('8K', '256')
    """
    return f"{tokens / 1024:g}K" if tokens >= 1024 else f"{tokens:g}"


def task_name(task: str) -> str:
    """A task as an axis shows it, in two lines where it has a text.

    >>> task_name("niah_multikey_prose"), task_name("common_words"), task_name("average")
    ('multikey<br>prose', 'common<br>words', 'average')
    """
    return "<br>".join(task.removeprefix("niah_").replace("variable_tracking", "tracking").split("_"))


def _mark(method: str) -> dict:
    """Marker keywords of a method, line and all."""
    look = series(LOOKS[method])
    if LOOKS[method] >= 6:  # the palette begins again: an open mark
        look["marker"] = look["marker"] | {"symbol": f"{look['marker']['symbol']}-open"}
    return look


def _limits(part, value: str) -> dict | None:
    """Error bars from ci_low and ci_high around a column, in percent; None where there are none."""
    if part["ci_low"].isna().all():
        return None
    above, below = part["ci_high"] - part[value], part[value] - part["ci_low"]
    return {
        "symmetric": False,
        "array": (100 * above).astype("float32"),  # half the bytes in a chapter's output
        "arrayminus": (100 * below).astype("float32"),
        "thickness": 1.5,
        "width": 3,
    }


def short_place(context: float, share: float) -> str:
    """A context and budget in few letters.

    >>> short_place(8192, 0.125)
    '8K, 12.5 %'
    """
    return f"{context_name(context)}, {100 * share:g} %"


def _tasks(table) -> list[str]:
    """A table's tasks in one order for all figures, the average last."""
    return [*sorted(set(table["task"]) - {AVERAGE}), AVERAGE]


def _panels(titles: Sequence[str], columns: int = 1, **keywords):
    from plotly.subplots import make_subplots

    rows = -(-len(titles) // columns)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=list(titles), **keywords)
    figure.update_annotations(font={"size": 13, "color": TEXT})
    return figure, [(i // columns + 1, i % columns + 1) for i in range(len(titles))]


def _upright(figure, x: float, line: dict, row: int, column: int) -> None:
    panel: Any = {"row": row, "col": column}  # the stubs know only "all"
    figure.add_vline(x=x, line=line, **panel)


def place_name(context: float, share: float) -> str:
    """What a panel says of its context and budget.

    >>> place_name(8192, 0.125)
    '8K tokens, k 12.5 % of the blocks'
    """
    return f"{context_name(context)} tokens, k {100 * share:g} % of the blocks"


def task_figure(table, *, note: str = "", where: str = ""):
    """Accuracy of each task and method with its interval, the average last; a panel for each context."""
    places = list(dict.fromkeys(zip(table["context"], table["share"], strict=True)))
    figure, cells = _panels([place_name(*place) for place in places], vertical_spacing=0.16)
    tasks = _tasks(table)
    methods = [method for method in LABELS if method in set(table["method"])]
    seen: set[str] = set()
    for (context, share), (row, column) in zip(places, cells, strict=True):
        here = table[(table["context"] == context) & (table["share"] == share)]
        for index, method in enumerate(methods):
            part = here[here["method"] == method]
            if part.empty:
                continue
            shift = 0.11 * (index - (len(methods) - 1) / 2)
            figure.add_scatter(
                x=[tasks.index(task) + shift for task in part["task"]], y=100 * part["accuracy"],
                error_y=_limits(part, "accuracy"), mode="markers", name=LABELS[method], legendgroup=method,
                marker=_mark(method)["marker"], row=row, col=column,
                showlegend=method not in seen,
            )  # fmt: skip
            seen.add(method)
        _upright(figure, len(tasks) - 1.5, {"color": GRID, "width": 2}, row, column)
    ticks = {"tickvals": list(range(len(tasks))), "ticktext": [task_name(task) for task in tasks]}
    figure.update_xaxes(
        **ticks, range=[-0.6, len(tasks) - 0.4], showgrid=False, tickangle=0, tickfont_size=10
    )
    figure.update_yaxes(title="right answers, %", range=[-3, 103])
    figure.update_layout(title_text="Right answers task by task, with 95 % intervals")
    return stamp(figure, "measured", note, where=where).update_layout(
        height=190 + 320 * len(places), margin_t=132
    )


def published_ruler(model: str):
    """Published RULER averages of one model: columns method, context (tokens), accuracy, 0 to 1."""
    import pandas as pd

    names = {label: method for method, label in LABELS.items()}
    rows = [row for row in paper.rows("table2_ruler_by_length") if row["model"] == model]
    found = [(names[r["method"]], 1024 * int(r["context"][:-1]), float(r["value"]) / 100) for r in rows]
    return pd.DataFrame(found, columns=["method", "context", "accuracy"])


def context_table(means):
    """Ours and the published averages by context: origin, panel, method, context, accuracy and limits."""
    import pandas as pd

    ours = means.assign(origin="measured", panel=[f"SmolLM2-135M, k {100 * s:g} %" for s in means["share"]])
    parts = [ours.sort_values(["share", "context"])]
    for model in PUBLISHED:
        parts.append(published_ruler(model).assign(origin="published", panel=f"{model}, published"))
    columns = ["origin", "panel", "method", "context", "accuracy", "ci_low", "ci_high"]
    return pd.concat(parts, ignore_index=True)[columns]


def context_figure(table, *, note: str = "", where: str = ""):
    """Task averages against context; panels of ours, a budget each, and of the published models."""
    panels = list(dict.fromkeys(table["panel"]))
    figure, cells = _panels(panels, columns=2, vertical_spacing=0.2, horizontal_spacing=0.09)
    seen: set[str] = set()
    for panel, (row, column) in zip(panels, cells, strict=True):
        here = table[table["panel"] == panel]
        for method in (m for m in LABELS if m in set(here["method"])):
            part = here[here["method"] == method].sort_values("context")
            figure.add_scatter(
                x=part["context"], y=100 * part["accuracy"], error_y=_limits(part, "accuracy"),
                mode="lines+markers", name=LABELS[method], legendgroup=method,
                showlegend=method not in seen, row=row, col=column, **_mark(method),
            )  # fmt: skip
            seen.add(method)
        ticks = sorted(set(here["context"]))
        names = {"tickvals": ticks, "ticktext": [context_name(t) for t in ticks]}
        figure.update_xaxes(type="log", **names, title="context, tokens", row=row, col=column)
    figure.update_yaxes(range=[-3, 103])
    figure.update_yaxes(title="task average, %", col=1)
    figure.update_layout(title_text="Task averages by context: ours, and other models' as published")
    return stamp(figure, "measured", note, where=where).update_layout(height=750, margin_t=132)


def pair_figure(table, *, note: str = "", where: str = "", method: str = "SparDA"):
    """Paired differences with intervals, task by task and their mean; a panel for each context."""
    places = list(dict.fromkeys(zip(table["context"], table["share"], strict=True)))
    narrow = len(places) > 2
    titles = [(short_place if narrow else place_name)(*place) for place in places]
    figure, cells = _panels(titles, columns=len(places), shared_yaxes=True)
    tasks = _tasks(table)
    baselines = [name for name in LABELS if name in set(table["baseline"])]
    seen: set[str] = set()
    for (context, share), (row, column) in zip(places, cells, strict=True):
        here = table[(table["context"] == context) & (table["share"] == share)]
        for index, baseline in enumerate(baselines):
            part = here[here["baseline"] == baseline]
            if part.empty:
                continue
            shift = 0.2 * (index - (len(baselines) - 1) / 2)
            figure.add_scatter(
                x=100 * part["difference"], y=[-tasks.index(t) - shift for t in part["task"]],
                error_x=_limits(part, "difference"), mode="markers", name=f"{method} − {LABELS[baseline]}",
                legendgroup=baseline, marker=_mark(baseline)["marker"], row=row, col=column,
                showlegend=baseline not in seen,
            )  # fmt: skip
            seen.add(baseline)
        _upright(figure, 0, {"color": TEXT, "width": 1.5}, row, column)
    ticks = [-i for i in range(len(tasks))], [task_name(t).replace("<br>", " ") for t in tasks]
    figure.update_yaxes(tickvals=ticks[0], ticktext=ticks[1], range=[0.6 - len(tasks), 0.6])
    figure.update_xaxes(title="points" if narrow else "difference, percent points")
    figure.update_layout(title_text=f"{method} less others on the same prompts, with 95 % intervals")
    return stamp(figure, "measured", note, where=where).update_layout(
        height=260 + 42 * len(tasks), margin_t=132
    )


def recall_figure(table, *, note: str = "", where: str = ""):
    """Task averages against mass recall, a mark for each method; one line joins a context and budget."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for (context, share), part in table.groupby(["context", "share"]):
        last = part.sort_values("mass_recall").iloc[-1]
        figure.add_scatter(
            x=part["mass_recall"], y=100 * part["accuracy"], mode="lines", hoverinfo="skip", showlegend=False,
            line={"color": TEXT, "width": 1, "dash": "dot"},
        )  # fmt: skip
        name = short_place(context, share)
        place: Any = {"x": last["mass_recall"], "y": 100 * last["ci_high"], "yanchor": "bottom", "yshift": 4}
        figure.add_annotation(**place, text=name, showarrow=False, font={"size": 12})
    for method in (m for m in LABELS if m in set(table["method"])):
        part = table[table["method"] == method]
        figure.add_scatter(
            x=part["mass_recall"], y=100 * part["accuracy"], error_y=_limits(part, "accuracy"),
            mode="markers", name=LABELS[method], marker=_mark(method)["marker"],
        )  # fmt: skip
    figure.update_xaxes(title="mass recall, mean over layers and texts", tickformat=".2f")
    figure.update_yaxes(title="task average, %")
    figure.update_layout(title_text="Does more attention mass bring more answers?")
    return stamp(figure, "measured", note, where=where).update_layout(margin_t=132, height=470)


def kept_of_dense(means, places: Sequence[tuple[int, float]]):
    """Accuracy over dense's: a row for each of our (context, share), then for each column of Table 1."""
    import pandas as pd

    names = [LABELS[method] for method in HEADLINE]
    kept = {}
    for context, share in places:
        here = means[(means["context"] == context) & (means["share"] == share)].set_index("method")[
            "accuracy"
        ]
        if "dense" in here:
            kept[f"ours, {place_name(context, share)}"] = here.rename(LABELS).to_dict()
    for model in PUBLISHED:
        for suite in ("HELMET", "LongBench", "RULER", "Reasoning", "Average"):
            of = {"model": model, "benchmark": suite}
            kept[f"{model}, {suite}"] = {m: paper.value("table1_accuracy", method=m, **of) for m in names}
    table = pd.DataFrame(kept).T.reindex(columns=names)
    return table.div(table[names[0]], axis=0)
