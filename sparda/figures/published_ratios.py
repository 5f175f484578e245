"""The paper's ratios with ours beside them: of selection times, and those of the abstract and text."""

from __future__ import annotations

import re
from typing import Any

from sparda import paper
from sparda.figures import offloaded_decode, prefill_rates
from sparda.figures.measured import source
from sparda.figures.published_cap import CAP_GIB, within_cap
from sparda.figures.published_tables import CONTEXT, HIT_RATE, MODEL, Beside, joined, ours, tokens

NAMES = {  # denominators of the paper's ratios: what a figure calls them
    "Sparse offload": "Sparse",
    "Sparse no offload": "Sparse, no offload",
    "Dense no offload": "Dense",
}
BEST = "each at its peak feasible batch"


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
    used = None if run is None else run.rows[run.rows["context"].eq(CONTEXT) & run.rows["batch"].isin((1, 4))]
    mine = [] if used is None else [("measured", name, name, ratio) for name, ratio in _ratios(used)]
    table = joined([(origin, system, system, value) for origin, system, _, value in rows + mine])
    return Beside(table, "" if used is None else source(used))


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
    """The ratios of abstract and text that both ends of ours exist for, and theirs.

    Those of the best batches stand twice: ours at their batches, and ours at the best that fit their card.
    """
    parts = _ours()
    speed, capped = _speeds(parts[:-1]), _best(parts[-1])
    rows = []
    for row in paper.rows("headline_ratios"):
        if row["model"] != MODEL or row["hardware"] != "H100" or row["phase"] not in ("prefill", "decode"):
            continue
        name, mine = _ratio(row, speed)
        pairs = [(name, mine)] if name else []
        if name and BEST in row["matching"]:
            under = row["denominator"].split(" (")[0]
            best = capped.get("SparDA", 0.0) / capped.get(NAMES[under], float("inf"))
            pairs.append((f"decode {row['context']}, best that fits {CAP_GIB} GiB, over {under}", best))
        for label, ratio in pairs:
            rows.append(("published", label, label, float(row["value"])))
            rows += [("measured", label, label, ratio)] if ratio else []
    return Beside(joined(rows), _where(parts))


def _ours() -> list[Any]:
    """Our rows that ratios are made of: decode at each context, prefill, and last the best under the cap."""
    run, prefills = ours("decode"), ours("prefill")
    contexts = [] if run is None else sorted(set(run.rows["context"]))
    parts = [
        offloaded_decode.measured(run, n_tokens=context, hit_rate=HIT_RATE).assign(phase="decode")
        for context in contexts
    ]
    if prefills is not None:
        parts.append(prefill_rates.measured_prefill(prefills).assign(phase="prefill", batch=4))
    capped = within_cap(run).sort_values("value", na_position="first")
    parts.append(capped.drop_duplicates("system", keep="last"))
    return [part[part["system"].isin(["SparDA", *NAMES.values()]) & (part["batch"] >= 4)] for part in parts]


def _where(parts: list[Any]) -> str:
    import pandas as pd

    return source(pd.concat([part for part in parts if len(part)])) if any(map(len, parts)) else ""


def _speeds(parts: list[Any]) -> dict[tuple, float]:
    """Ours: (phase, system, context, batch) -> tokens/s."""
    return {
        (row.phase, row.system, int(row.context), int(row.batch)): float(row.tokens_per_s)
        for part in parts
        for row in part.itertuples()
    }


def _best(capped: Any) -> dict[str, float]:
    """Ours under the cap: system -> its best rate."""
    return dict(zip(capped["system"], capped["value"], strict=True))


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
    over, under = row["numerator"].split(" (")[0], row["denominator"].split(" (")[0]
    if over != "SparDA" or under not in NAMES:
        return "", 0.0
    context, phase, matching = tokens(row["context"]), row["phase"], row["matching"]
    label = f"{phase} {row['context']}, {_sizes(row)}, over {under}"

    def at(batch: int) -> float:
        mine = speed.get((phase, "SparDA", context, batch), 0.0)
        other = speed.get((phase, NAMES[under], context, batch), 0.0)
        return mine / other if mine and other else 0.0

    if "maximum" in matching:
        return label, max((at(key[3]) for key in speed if key[3] >= 4), default=0.0)
    if "(B" in row["numerator"]:
        ends = (speed.get((phase, "SparDA", context, 64)), speed.get((phase, NAMES[under], context, 4)))
        return label, ends[0] / ends[1] if ends[0] and ends[1] else 0.0
    return label, at(int(matching.rstrip(")").split("B")[-1]) if "B" in matching else 4)
