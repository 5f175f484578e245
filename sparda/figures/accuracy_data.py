"""Chapter 07's tables: answers, pairs and recall of an evaluation, committed or made on the spot.

A file that no run has written yet is not an error: ``read`` returns None, and ``missing`` says what makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from sparda.evaluation.accuracy import AVERAGE, COUNTS, Result, pairs
from sparda.figures import measured
from sparda.figures.measured import Run
from sparda.linkmodel import DATA
from sparda.waits import MARK

SUBJECT = "smollm2-135m"  # the model that the chapter is about
LABELS = {  # methods of sparda.evaluation: what a figure calls them
    "dense": "Dense",
    "sparse": "Sparse",
    "infinigen": "InfiniGen",
    "sparda": "SparDA",
    "streaming": "streaming",
    "random": "random",
    "oracle": "oracle",
}
COMPARED = ("sparse", "sparda")  # with less there is nothing to say
MISSING = {
    "accuracy": "accuracy.csv and samples.csv hold no context and budget yet at which both Sparse "
    "and SparDA ran: `sparda eval accuracy` writes them, on a machine with a GPU",
    "recall": "recall.csv is not committed yet: `sparda eval recall` writes it, on a machine with a GPU",
    "needle": "needle.csv is not committed yet: `sparda eval needle` writes it, on a machine with a GPU",
    "waiting": "accuracy.csv has no sparda@7 yet: `sparda eval accuracy --methods sparda@7` writes it, on a "
    "machine with a GPU",
    "exchange": "exchange.csv is not committed yet: `sparda eval exchange` writes it, on a processor too",
}
_CELL = ["context", "share", "budget_blocks", "method"]
_SHARE = ["n", "accuracy", "ci_low", "ci_high"]


@dataclass(frozen=True)
class Evaluation:
    """Answers of one evaluation, of its first seed.

    cells   : DataFrame, rows of accuracy.csv, and ``share``: k over the blocks of the context
    samples : rows of samples.csv as text
    pairs   : DataFrame, rows of pairs.csv, and ``share``
    where   : device, date and commit
    """

    cells: Any
    samples: Sequence[dict[str, str]]
    pairs: Any
    where: str


def missing(name: str) -> str:
    """A sentence for a chapter that lacks "accuracy", "recall", "needle", "waiting" or "exchange"."""
    return MISSING[name]


def read(name: str, device: str = "nvidia-h200", folder: Path = DATA, *, model: str = SUBJECT) -> Run | None:
    """One model's rows of an evaluation's file and where they come from; None where none are committed."""
    run = measured.read(name, device, folder, dtype={"right": str, "layer": str, "head": str})
    if run is None or model not in set(run.rows["model"]):
        return None
    rows = run.rows[run.rows["model"] == model]
    return Run(rows[rows["seed"] == rows["seed"].min()].reset_index(drop=True), run.where)


def committed(
    device: str = "nvidia-h200", folder: Path = DATA, *, model: str = SUBJECT, waits: bool = False
) -> Evaluation | None:
    """A model's committed answers; None unless both its tables have a cell of each of ``COMPARED``.

    waits : with those of methods of which a layer waits, such as sparda@7, too
    """
    cells, samples = (read(name, device, folder, model=model) for name in ("accuracy", "samples"))
    if cells is None or samples is None:
        return None
    ran = cells.rows.groupby(["context", "budget_blocks"])["method"].agg(set)
    if not any(methods >= set(COMPARED) for methods in ran):
        return None
    wanted = [rows if waits else _plain(rows) for rows in (cells.rows, samples.rows)]
    texts = [{str(k): str(v) for k, v in row.items()} for row in wanted[1].to_dict("records")]
    kept = read("pairs", device, folder, model=model)
    compared = paired(texts) if kept is None else kept.rows if waits else _plain(kept.rows)
    return Evaluation(_with_share(wanted[0], 64), texts, _with_share(compared, 64), cells.where)


def need(name: str, model: str = SUBJECT) -> Any:
    """A model's answers ("accuracy"; "waiting": with methods of which a layer waits), or another file's rows.

    FileNotFoundError with ``missing``: none are committed.
    """
    if name not in ("accuracy", "waiting"):
        return measured.need(read(name, model=model), missing(name))
    return measured.need(committed(model=model, waits=name == "waiting"), missing(name))


def _plain(rows):
    """Without methods of which a layer waits; of pairs, without their comparisons."""
    names = rows[[column for column in ("method", "baseline") if column in rows]]
    some = names.apply(lambda column: column.str.contains(MARK, regex=False)).any(axis=1)
    return rows[~some].reset_index(drop=True)


def live(results: Iterable[Result], model: str, *, block_size: int, where: str) -> Evaluation:
    """The same tables from results that were made just now."""
    import pandas as pd

    rows = [result.rows(model, 0, {"date": "now", "commit": "here"}) for result in results]
    cells = numbers(pd.DataFrame([cell for cell, _ in rows]))
    samples = [sample for _, sample in rows]
    compared = _with_share(paired(samples), block_size)
    return Evaluation(_with_share(cells, block_size), samples, compared, where)


def paired(samples: Sequence[dict[str, str]]):
    """Rows of pairs.csv from rows of samples.csv, as a DataFrame of numbers."""
    import pandas as pd

    return numbers(pd.DataFrame(pairs(samples)))


def numbers(table):
    """Columns of text as numbers, where all of one are; what is missing is NaN."""
    for column in table:
        try:
            table[column] = table[column].replace("", "nan").astype(float)
        except ValueError:
            continue
    return table


def spread(table, rows, values: str, columns: str = "method"):
    """``values`` for reading: methods by name and in order, or columns as they come; "–" where nothing is."""
    wide, found = table.pivot(index=rows, columns=columns, values=values), list(dict.fromkeys(table[columns]))
    order = [m for m in LABELS if m in found] if columns == "method" else found
    return wide[order].rename(columns=LABELS).astype(object).fillna("–")


def _with_share(table, block_size: int):
    if table.empty:
        return table
    blocks = [ceil(context / block_size) for context in table["context"]]
    return table.assign(share=(table["budget_blocks"] / blocks).round(4))


def points(table) -> list[tuple[int, float]]:
    """(context, share) at which a choice of blocks was measured, ascending; dense reads all and has none."""
    chosen = table[table["method"] != "dense"]
    return sorted({(int(c), float(s)) for c, s in zip(chosen["context"], chosen["share"], strict=True)})


def nearest(table, context: int, share: float) -> tuple[int, float]:
    """The measured (context, share) nearest to the one that is wanted; ValueError: nothing was measured."""
    found = points(table)
    if not found:
        raise ValueError("no method that chooses blocks was measured; evaluate sparse or sparda too")
    return min(found, key=lambda at: (abs(at[0] - context), abs(at[1] - share)))


def counted(cells, context: int, share: float) -> list[str]:
    """Tasks of a cell's average: where dense scores more than ``COUNTS``, or all where there is no dense."""
    here = cells[cells["context"] == context]
    dense = here[here["method"] == "dense"].set_index("task")["accuracy"]
    tasks = here.loc[(here["method"] != "dense") & (here["share"] == share), "task"].drop_duplicates()
    return [task for task in tasks if dense.empty or dense.get(task, 0.0) > COUNTS]


def at(cells, context: int, share: float):
    """Cells of one context and share of the tasks that count there; dense among them."""
    here = cells[(cells["context"] == context) & ((cells["share"] == share) | (cells["method"] == "dense"))]
    return here[here["task"].isin(counted(cells, context, share))].assign(share=share)


def average(
    values: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> tuple[float, float, float]:
    """Mean of independent shares and its interval, from theirs.

    Distances to the limits add in squares (Zou and Donner 2008), so that limits stay inside 0..1 and an
    interval of width zero cannot arise.

    >>> [round(x, 3) for x in average([0.5, 1.0], [0.4, 0.9], [0.6, 1.0])]
    [0.75, 0.679, 0.8]
    """
    n, mean = len(values), sum(values) / len(values)
    below, above = (
        sqrt(sum((v - limit) ** 2 for v, limit in zip(values, limits, strict=True))) / n
        for limits in (low, high)
    )
    return mean, mean - below, mean + above


def averages(cells):
    """Task averages: columns context, share, budget_blocks, method, tasks, n, accuracy, ci_low, ci_high.

    Only methods that were measured on every counted task of a context and share: others have no average that
    could be compared. Dense stands at each share.
    """
    import pandas as pd

    rows = []
    for context, share in points(cells):
        here, tasks = at(cells, context, share), len(counted(cells, context, share))
        for method in (m for m in LABELS if m in set(here["method"])):
            part = here[here["method"] == method]
            if len(part) == tasks:
                mean = average(*(part[c].tolist() for c in _SHARE[1:]))
                place = (context, share, part["budget_blocks"].iloc[0], method)
                rows.append((*place, tasks, part["n"].sum(), *mean))
    return pd.DataFrame(rows, columns=[*_CELL, "tasks", *_SHARE])


def task_table(cells, wanted: Sequence[tuple[int, float]]):
    """Cells and averages at some (context, share): task by task, then ``AVERAGE``."""
    import pandas as pd

    means, columns = averages(cells).assign(task=AVERAGE), [*_CELL, "task", *_SHARE]
    parts = []
    for context, share in wanted:
        mean = means[(means["context"] == context) & (means["share"] == share)]
        parts += [at(cells, context, share)[columns], mean[columns]]
    return pd.concat(parts, ignore_index=True)


def pair_table(pairs, wanted: Sequence[tuple[int, float]], baselines: Sequence[str], method: str = "sparda"):
    """Paired differences of a method with others at some (context, share): tasks, then their mean."""
    import pandas as pd

    rows = pairs[(pairs["method"] == method) & pairs["baseline"].isin(baselines)]
    places = [place in wanted for place in zip(rows["context"], rows["share"], strict=True)]
    rows = rows[places].assign(last=lambda t: t["task"] == AVERAGE)
    rows["baseline"] = pd.Categorical(rows["baseline"], list(baselines), ordered=True)
    rows = rows.sort_values(["context", "share", "last", "task", "baseline"], ignore_index=True)
    return rows.drop(columns="last").astype({"baseline": str})


def with_recall(means, recall):
    """Task averages beside the mean mass recall of the same method, context and k, over texts.

    recall : rows of recall.csv; those of a layer or head are not used
    """
    rows = recall[(recall["layer"].astype(str) == "mean") & (recall["head"].astype(str) == "mean")]
    key = ["method", "context", "budget_blocks"]
    mass = rows.groupby(key, as_index=False)[["mass_recall", "agreement", "hit_rate"]].mean()
    return means.merge(mass, on=key).sort_values(["context", "share", "mass_recall"]).reset_index(drop=True)


def said(samples: Sequence[dict[str, str]], tasks: Sequence[str], context: int, budget_blocks: int):
    """Of tasks with several answers: share of the samples with none, some or all right; task by method."""
    import pandas as pd

    rows = []
    for row in samples:
        many, dense = int(float(row["of"])), row["method"] == "dense"
        if many == 1 or row["task"] not in tasks or float(row["context"]) != context:
            continue
        if dense or float(row["budget_blocks"]) == budget_blocks:
            right = [int(r) for r in row["right"].split()]
            none, full = (sum(r == goal for r in right) / len(right) for goal in (0, many))
            rows.append((row["task"], LABELS[row["method"]], none, 1 - none - full, full))
    return pd.DataFrame(rows, columns=["task", "method", "none", "some", "all"])
