"""The Forecast that is committed, and what was measured of it: weights, recall.csv, forecast_ablation.csv.

A file that no run has written yet is not an error: readers return None, and ``missing`` says what makes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from sparda.figures import measured
from sparda.figures.forecast import gap_closed
from sparda.figures.measured import Run
from sparda.text import data_dir
from sparda.training.ablation import TABLE as ABLATION

SERIES = {  # method of sparda.evaluation: what a figure calls it
    "forced": "forced only",
    "sparse": "query",
    "infinigen": "InfiniGen",
    "sparda": "Forecast",
    "oracle": "oracle",
}
WRITTEN_BY = {
    "forecast": "no Forecast weights are committed yet: `data/forecasts/train.sh` trains them, on a GPU",
    "recall": "recall.csv is not committed yet: `sparda eval recall` writes it, on a machine with a GPU",
    "ablation": f"{ABLATION.name}.csv is not committed yet: `python -m sparda.training.ablation` writes it, "
    "on a machine with a GPU",
}


def missing(what: str) -> str:
    """A sentence for a chapter that has nothing to show: of "forecast", "recall" or "ablation"."""
    return WRITTEN_BY[what]


def weights_file(model: str = "smollm2-135m") -> Path | None:
    """The weights that come with a model; of several seeds the first. None where there are none."""
    path = data_dir() / "forecasts" / model / "forecast.safetensors"
    return path if path.is_file() else None


def card(model: str = "smollm2-135m") -> dict | None:
    """The run card beside the weights."""
    path = data_dir() / "forecasts" / model / "card.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def read(what: str, device: str = "nvidia-h200", *, model: str = "smollm2-135m") -> Run | None:
    """A model's rows of "recall" or "ablation" and where they come from; None where it has no Forecast's."""
    name = {"recall": "recall", "ablation": ABLATION.name}[what]
    run = measured.read(name, device, data_dir() / "measured")
    if run is None:
        return None
    rows = run.rows[run.rows["model"] == model].reset_index(drop=True)
    if rows.empty or (what == "recall" and "sparda" not in set(rows["method"])):
        return None
    return Run(rows, run.where)


def need(what: str) -> Any:
    """Weights of "forecast", or rows of "recall" or "ablation"; FileNotFoundError with ``missing``: none."""
    return measured.need(weights_file() if what == "forecast" else read(what), missing(what))


def recalls(run: Run, *, context: int, budget_blocks: int, text: str | None = None):
    """recall.csv at one context and k, as ``forecast_live.compare`` gives it; mean over texts unless named.

    Columns series, layer, head, mass_recall, agreement; no row where nothing was measured.
    """
    rows = run.rows[(run.rows["context"] == context) & (run.rows["budget_blocks"] == budget_blocks)]
    rows = rows[rows["method"].isin(SERIES) & (rows["head"].astype(str) != "mean")]
    rows = rows if text is None else rows[rows["text"] == text]
    rows = rows.assign(
        series=rows["method"].map(SERIES), layer=rows["layer"].astype(int), head=rows["head"].astype(int)
    )
    return rows.groupby(["series", "layer", "head"], as_index=False)[["mass_recall", "agreement"]].mean()


def gains(run: Run, *, context: int, budget_blocks: int):
    """Of each text and layer the mass beyond the query's choice: columns text, layer, gain, low, high.

    Intervals are over sequences, paired.
    """
    rows = run.rows[(run.rows["context"] == context) & (run.rows["budget_blocks"] == budget_blocks)]
    rows = rows[(rows["method"] == "sparda") & (rows["head"].astype(str) == "mean")]
    rows = rows[rows["layer"].astype(str) != "mean"]
    rows = rows.assign(layer=rows["layer"].astype(int)).rename(
        columns={"gain_low": "low", "gain_high": "high"}
    )
    return rows[["text", "layer", "gain", "low", "high"]].sort_values(["text", "layer"])


def overall(run: Run, *, context: int):
    """Means over the layers but layer 0, one row a text, k and method."""
    rows = run.rows[(run.rows["context"] == context) & (run.rows["layer"].astype(str) == "mean")]
    rows = rows.assign(series=rows["method"].map(SERIES).fillna(rows["method"]))
    columns = ["mass_recall", "gain", "gain_low", "gain_high", "agreement", "hit_rate"]
    index = ["text", "budget_blocks", "series"]
    return rows.set_index(index)[columns].sort_values([*index[:2], "mass_recall"])


def closed(run: Run):
    """Gap closed by Forecast and InfiniGen, means over the layers but layer 0, by text, context and k."""
    rows = run.rows[run.rows["layer"].astype(str) == "mean"]
    rows = rows.assign(series=rows["method"].map(SERIES)).dropna(subset=["series"])
    wide = rows.pivot_table(
        index=["text", "context", "budget_blocks"], columns="series", values="mass_recall"
    )
    ours = [name for name in ("Forecast", "InfiniGen") if name in wide]
    return wide[ours].apply(lambda column: gap_closed(column, wide["query"], wide["oracle"]))


def longest(run: Run) -> tuple[int, int]:
    """The longest context of recall.csv, and its smallest k."""
    context = int(run.rows["context"].max())
    return context, int(run.rows.loc[run.rows["context"] == context, "budget_blocks"].min())


def card_gaps(about: dict):
    """Gap closed on a run's own held-out text, means over layers 1 and up: a row a k, a column a seed."""
    import pandas as pd

    means = {name: fmean(values[1:]) for name, values in about["recall"].items()}
    rows = {}
    for budget in sorted({int(name.split("_k")[1].split("_")[0]) for name in means}):
        ends = means[f"query_k{budget}"], means[f"oracle_k{budget}"]
        row = {"proxy": gap_closed(means[f"proxy_k{budget}"], *ends)}
        for n, seed in enumerate(about["seeds"]):
            row[f"seed {seed}"] = gap_closed(means[f"forecast_k{budget}_{n}"], *ends)
        rows[f"k {budget}"] = row
    return pd.DataFrame(rows).T
