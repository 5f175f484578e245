"""The paper's ratios with ours beside them: of selection times, and those of the abstract and text."""

from __future__ import annotations

import re
from typing import Any

from sparda import paper
from sparda.figures import offloaded_decode, prefill_rates
from sparda.figures.published_tables import CONTEXT, HIT_RATE, MODEL, Beside, joined, ours, tokens


def selection_ratio() -> Beside:
    """Figure 3: selection time of Sparse over SparDA's at 128K.

    Ours twice in decode: all the work of selection, and the part of it that the layer waits for (SparDA's
    runs beside other work).
    """
    names = {"a prefill": "prefill", "b decode": "decode, batch 4"}
    rows = [
        ("published", names[row["panel"]], row["panel"], float(row["value"]))
        for row in paper.rows("fig3_attention_breakdown")
        if row["value"] and row["metric"].startswith("selection time ratio")
    ]
    run = ours("breakdown")
    mine = [] if run is None else [("measured", name, name, ratio) for name, ratio in _ratios(run.rows)]
    table = joined([(origin, system, system, value) for origin, system, _, value in rows + mine])
    return Beside(table, run.where if run else "")


def _ratios(rows: Any) -> list[tuple[str, float]]:
    def us(phase: str, batch: int, selector: str, *parts: str) -> float:
        at = (rows["phase"] == phase) & (rows["batch"] == batch) & (rows["context"] == CONTEXT)
        at &= (rows["selector"] == selector) & rows["part"].isin(parts)
        return float(rows[at]["us_per_layer"].sum())

    found = []
    for name, phase, batch, parts in (
        ("prefill", "prefill", 1, ("selection",)),
        ("decode, batch 4", "decode", 4, ("selection", "selection_beside")),
        ("decode, batch 4, what the layer waits for", "decode", 4, ("selection",)),
    ):
        sparse, sparda = (us(phase, batch, selector, *parts) for selector in ("query", "forecast"))
        if sparse and sparda:
            found.append((name, sparse / sparda))
    return found


def headline() -> Beside:
    """The ratios of abstract and text that both ends of ours exist for, and theirs."""
    speed, wheres = _speeds()
    rows = []
    for row in paper.rows("headline_ratios"):
        if row["model"] != MODEL or row["hardware"] != "H100" or row["phase"] not in ("prefill", "decode"):
            continue
        name, mine = _ratio(row, speed)
        if name:
            rows.append(("published", name, name, float(row["value"])))
            rows += [("measured", name, name, mine)] if mine else []
    return Beside(joined(rows), _together(wheres))


def _together(wheres: list[str]) -> str:
    """Device, date and commits of several tables, what they share said once.

    >>> _together(["H200 · 2026-11-30 · commit a, b", "H200 · 2026-11-30 · commit b, c"])
    'H200 · 2026-11-30 · commit a, b, c'
    """
    commits: dict[str, list[str]] = {}
    for where in wheres:
        device, _, named = where.partition(" · commit ")
        commits.setdefault(device, []).extend(named.split(", "))
    return "; ".join(
        f"{device} · commit {', '.join(sorted(set(named)))}" for device, named in commits.items()
    )


def _speeds() -> tuple[dict[tuple, float], list[str]]:
    """Ours: (phase, system, context, batch) -> tokens/s, and where they come from."""
    speed: dict[tuple, float] = {}
    wheres = []
    for run, table in ((ours("decode"), "decode"), (ours("prefill"), "prefill")):
        if run is None:
            continue
        wheres.append(run.where)
        if table == "prefill":
            for row in prefill_rates.measured_prefill(run).itertuples():
                speed["prefill", row.system, int(row.context), 4] = float(row.tokens_per_s)
            continue
        for context in sorted(set(run.rows["context"])):
            for row in offloaded_decode.measured(run, n_tokens=context, hit_rate=HIT_RATE).itertuples():
                speed["decode", row.system, int(context), int(row.batch)] = float(row.tokens_per_s)
    return speed, wheres


def _sizes(row: dict[str, str]) -> str:
    """The batches of a ratio, in words.

    >>> _sizes({"numerator": "SparDA (B64)", "matching": "each at its peak feasible batch"})
    'batch 64 to 4'
    """
    if "(B" in row["numerator"]:
        return "batch 64 to 4"
    return (
        "best batch"
        if "maximum" in row["matching"]
        else f"batch {re.findall(r'[0-9]+', row['matching'])[-1]}"
    )


def _ratio(row: dict[str, str], speed: dict[tuple, float]) -> tuple[str, float]:
    """What a published ratio is called, and ours; "" for one that is no ratio of two throughputs."""
    names = {
        "Sparse offload": "Sparse",
        "Sparse no offload": "Sparse, no offload",
        "Dense no offload": "Dense",
    }
    over, under = row["numerator"].split(" (")[0], row["denominator"].split(" (")[0]
    if over != "SparDA" or under not in names:
        return "", 0.0
    context, phase, matching = tokens(row["context"]), row["phase"], row["matching"]
    label = f"{phase} {row['context']}, {_sizes(row)}, over {under}"

    def at(batch: int) -> float:
        mine = speed.get((phase, "SparDA", context, batch), 0.0)
        other = speed.get((phase, names[under], context, batch), 0.0)
        return mine / other if mine and other else 0.0

    if "maximum" in matching:
        return label, max((at(key[3]) for key in speed if key[3] >= 4), default=0.0)
    if "(B" in row["numerator"]:
        ends = (speed.get((phase, "SparDA", context, 64)), speed.get((phase, names[under], context, 4)))
        return label, ends[0] / ends[1] if ends[0] and ends[1] else 0.0
    return label, at(int(matching.rstrip(")").split("B")[-1]) if "B" in matching else 4)
