"""The paper's tables of accuracy, with ours of a small model at shorter contexts on the same axis."""

from __future__ import annotations

from typing import Any

from sparda import paper
from sparda.evaluation.accuracy import COUNTS
from sparda.evaluation.methods import HEADLINE
from sparda.figures import accuracy_data
from sparda.figures import published_tables as tables
from sparda.figures.attention_time import thousands


def table(name: str, x: str, **where: str) -> tables.Beside:
    """A published table of accuracies alone."""
    return tables.Beside(tables.joined(_published(name, x, **where)))


def suites() -> tables.Beside:
    """Table 1: suite averages, and RULER's tasks that count on our model at its longest context."""
    rows, mine = _published("table1_accuracy", "benchmark", model=tables.MODEL), _ours()
    if mine is None or mine.empty:
        return tables.Beside(tables.joined(rows))
    longest = mine[mine["context"] == mine["context"].max()]
    return _beside(rows, longest[longest["share"] == longest["share"].min()], "RULER, ")


def ruler() -> tables.Beside:
    """Table 2: RULER against context, ours at the share of blocks that was measured at most contexts."""
    rows, mine = _published("table2_ruler_by_length", "context", model=tables.MODEL), _ours()
    if mine is None or mine.empty:
        return tables.Beside(tables.joined(rows))
    share = mine.drop_duplicates(["context", "share"])["share"].mode().max()
    return _beside(rows, mine[mine["share"] == share], "")


def _published(name: str, x: str, **where: str) -> list[tuple]:
    return [
        ("published", row["method"], row[x], float(row["value"]))
        for row in paper.rows(name)
        if row["value"] and all(row[c] == v for c, v in where.items())
    ]


def _ours() -> Any:
    """Task averages of the paper's methods, in the contexts and shares at which all of them ran."""
    try:
        answers = accuracy_data.committed(tables.device("accuracy.csv"), tables.DATA)
    except FileNotFoundError:
        return None
    if answers is None:
        return None
    means: Any = accuracy_data.averages(answers.cells)
    means = means[means["method"].isin(HEADLINE)]
    ran = means.groupby(["context", "share"])["method"].transform("nunique")
    return means[ran == len(HEADLINE)].assign(where=answers.where)


def _beside(rows: list[tuple], mine: Any, before: str) -> tables.Beside:
    """Published rows, then ours from the shortest context on."""
    own = []
    for row in mine.sort_values("context", kind="stable").itertuples():
        k = mine[(mine["context"] == row.context) & (mine["method"] != "dense")]["budget_blocks"].iloc[0]
        at = f"ours: {before}{thousands(row.context)}, k {k:g}"
        own.append(("measured", accuracy_data.LABELS[row.method], at, 100 * row.accuracy))
    fewest, most = mine["tasks"].min(), mine["tasks"].max()
    tasks = f"{fewest} to {most}" if fewest < most else f"{most}"
    share = f"k {mine['share'].iloc[0]:g} of the blocks"
    said = f"ours: mean of the {tasks} tasks at which dense scores over {100 * COUNTS:g} %, {share}"
    return tables.Beside(tables.joined([*rows, *own]), mine["where"].iloc[0], said)
