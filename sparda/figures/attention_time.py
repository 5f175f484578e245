"""Where attention time goes in prefill and decode: dense, Sparse, SparDA; floors, ours, and the paper's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparda.bounds import H200_RATES, Rates
from sparda.figures.measured import SOURCE, Run, source
from sparda.figures.style import TEXT, series, stamp
from sparda.layer_work import decode_work, prefill_work
from sparda.spec import ModelShape, Sparsity

COLUMNS = ["origin", "system", "context", "part", "us"]
SELECTOR = {"Dense": "all", "Sparse": "query", "SparDA": "forecast"}
KERNELS = {  # phase: (system, part): the rows of kernels.csv that add up to it
    "decode": {
        ("Sparse", "selection"): [
            ("score_blocks_query", "decode_b4_128k", "triton"),
            ("topk_difference", "decode_b4_128k", "triton"),
        ],
        ("Sparse", "attention"): [("sparse_decode", "decode_b4_128k", "triton")],
        ("SparDA", "selection"): [("score_and_difference", "decode_b4_128k", "triton")],
        ("SparDA", "attention"): [("sparse_decode", "decode_b4_128k", "triton")],
    },
    "prefill": {
        ("Dense", "attention"): [("dense", "prefill_128k", "flash")],
        ("Sparse", "selection"): [("score_blocks_query", "prefill_128k", "triton+topk")],
        ("Sparse", "attention"): [("sparse_prefill", "prefill_128k_alike", "triton")],
        ("SparDA", "selection"): [("score_blocks", "prefill_128k", "triton+topk")],
        ("SparDA", "attention"): [("sparse_prefill", "prefill_128k_alike", "triton")],
    },
}
PATTERNS = {"selection": "/", "attention": "", "wait": "."}
LOOKS = {"selection": 1, "attention": 0, "wait": 4}  # index of series()
RATES = "floors: rates measured on one H200, 2026-11"


def thousands(tokens: int) -> str:
    """A context as it is named in text.

    >>> thousands(131_072)
    '128K'
    """
    return f"{tokens // 1024}K"


def floor_table(
    shape: ModelShape, sparsity: Sparsity, *, phase: str, contexts: Sequence[int], batch: int = 4,
    rates: Rates = H200_RATES,
):  # fmt: skip
    """Modelled floor of selection and attention in one layer, us: of one step, or of a whole prompt.

    phase : "decode" for a step of ``batch`` sequences, "prefill" for one prompt
    """
    import pandas as pd

    rows = []
    for context in contexts:
        for system, selector in SELECTOR.items():
            of = {"shape": shape, "sparsity": sparsity, "n_tokens": context, "selector": selector}
            work = decode_work(batch=batch, **of) if phase == "decode" else prefill_work(**of)
            for part in ("selection", "attention"):
                rows.append(("modelled", system, context, part, work[part].floor_us(rates)))
    return pd.DataFrame(rows, columns=COLUMNS)


def measured_table(run: Run | None, kernels=None, *, phase: str, batch: int = 4):
    """Measured times of the same parts: from breakdown.csv, where it lacks a bar from kernels timed alone.

    kernels : kernels.csv as a DataFrame; its sums have no launch gaps and no neighbours
    """
    import pandas as pd

    tables = [] if run is None else [_inside(run, phase, batch)]
    tables += [] if kernels is None or batch != 4 else [_alone(kernels, phase)]
    table = pd.concat(tables) if tables else pd.DataFrame(columns=COLUMNS)
    bars = table[["system", "context"]].apply(tuple, axis=1)
    inside = set(bars[table["origin"] == "engine"]) if len(table) else set()
    kept = [
        origin == "engine" or bar not in inside for origin, bar in zip(table["origin"], bars, strict=True)
    ]
    return table[kept].reset_index(drop=True)


def _inside(run: Run, phase: str, batch: int):
    """Rows of breakdown.csv, dense by flash; one without offloading stands in for a missing one.

    Selection that ran beside other parts took no time of the layer and is not among them.
    """
    rows = run.rows[run.rows["phase"].eq(phase) & run.rows["part"].isin(PATTERNS)]
    rows = rows[(rows["attention"] != "cudnn") & ((phase == "prefill") | (rows["batch"] == batch))]
    bare = rows["system"].str.removesuffix(", no offload")
    rows = rows.assign(system=bare, origin="engine", us=rows["us_per_layer"], stand_in=bare != rows["system"])
    rows = rows[rows["system"].isin(SELECTOR)].sort_values("stand_in", kind="stable")
    rows = rows.drop_duplicates(COLUMNS[:4])
    return rows[[*COLUMNS, *(name for name in SOURCE if name in rows)]]


def nearest_batch(run: Run, batch: int) -> int:
    """The batch of the measured decode steps that is nearest to ``batch``; of equals the smaller."""
    measured = set(run.rows.loc[run.rows["phase"] == "decode", "batch"])
    return min(sorted(measured), key=lambda b: abs(math.log(b / batch)), default=batch)


def _alone(kernels, phase: str):
    """Sums of kernels.csv at 131072 tokens, where every kernel of a bar was timed."""
    import pandas as pd

    times = kernels.set_index(["kernel", "case", "backend"])["median_us"]
    rows = []
    for (system, part), names in KERNELS[phase].items():
        if all(name in times.index for name in names):
            rows.append(("kernels", system, 131_072, part, sum(times[name] for name in names)))
    return pd.DataFrame(rows, columns=COLUMNS)


def time_figure(table, *, phase: str, note: str = "", where: str = ""):
    """Stacked bars of a layer's selection, attention and wait, a group for each context.

    Bars are measured where anything was, and a diamond is the floor; else the bars are the floor.
    where : of bars that do not say where they come from
    """
    import plotly.graph_objects as go

    measured = bool((table["origin"] != "modelled").any())
    scale, unit = (1, "us a step") if phase == "decode" else (1e3, "ms a prompt")
    floors = table[table["origin"] == "modelled"]
    bars = table[table["origin"] != "modelled"] if measured else floors
    figure = go.Figure()
    if measured:  # first: they stand at every place, so they order the axis
        total = floors.groupby(["context", "system"], sort=False, as_index=False)["us"].sum()
        look = {"symbol": "diamond", "size": 11, "color": TEXT, "line": {"color": "white", "width": 1.5}}
        name, y = "floor, modelled", total["us"] / scale
        figure.add_scatter(x=_places(total), y=y, mode="markers", name=name, marker=look)
    for part in (name for name in PATTERNS if name in set(bars["part"])):
        rows = bars[bars["part"] == part]
        look = {"color": series(LOOKS[part])["marker"]["color"], "pattern": {"shape": PATTERNS[part]}}
        figure.add_bar(x=_places(rows), y=rows["us"] / scale, name=part, marker=look)
    figure.update_xaxes(title="context, and who reads it", tickangle=0, tickfont_size=11)
    figure.update_yaxes(title=f"{unit} and layer")
    title = f"Attention time of a layer in {phase}" + ("" if measured else ": what must be done")
    figure.update_layout(barmode="stack", title_text=title)
    status = "measured" if measured else "modelled"
    if set(bars["origin"]) == {"engine"}:
        where = source(bars) or where
    return stamp(figure, status, note, where=f"{where}; {RATES}" if measured else RATES)


def _places(rows) -> list[list[str]]:
    """Two levels of the axis: context, then system."""
    return [[thousands(n) for n in rows["context"]], list(rows["system"])]


def growth_table(
    shape: ModelShape, sparsity: Sparsity, *, contexts: Sequence[int], rates: Rates = H200_RATES
):
    """Floors of one layer in prefill against context, us a prompt token: columns series, context, us."""
    import pandas as pd

    rows = []
    for context in contexts:
        for system, selector in SELECTOR.items():
            work = prefill_work(shape=shape, sparsity=sparsity, n_tokens=context, selector=selector)
            names = {"selection": f"selection, {system}", "attention": f"attention, {system}"}
            if system == "Dense":
                names.pop("selection")
            elif system == "Sparse":
                names["attention"] = "attention, chosen blocks"
            else:
                names.pop("attention")  # the same blocks, the same time
            rows += [(name, context, work[part].floor_us(rates) / context) for part, name in names.items()]
    return pd.DataFrame(rows, columns=["series", "context", "us"])


def growth_figure(table, *, note: str = ""):
    """Lines of growth_table on two logarithmic axes."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, part) in enumerate(table.groupby("series", sort=False)):
        figure.add_scatter(x=part["context"], y=part["us"], name=name, mode="lines+markers", **series(index))
    contexts = sorted(set(table["context"]))
    ticks = {"tickvals": contexts, "ticktext": [thousands(n) for n in contexts], "tickangle": 0}
    figure.update_xaxes(type="log", title="context, tokens (K is 1024)", **ticks)
    figure.update_yaxes(type="log", title="prefill, us a token and layer", dtick=1)
    figure.update_layout(title_text="Attention over k blocks stays flat; choosing them does not")
    return stamp(figure, "modelled", note, where=RATES)
