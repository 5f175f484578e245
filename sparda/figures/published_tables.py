"""The paper's tables with ours beside them: columns origin (published | measured), system, x, value, status.

status : "ok", or "out of memory" without a value. Ours are those of this machine's device where it has
measured, else the committed ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sparda import paper, provenance
from sparda.figures import offloaded_decode as decode
from sparda.figures import prefill_rates
from sparda.figures.benchmarks import PUBLISHED, read
from sparda.figures.measured import Run, source
from sparda.linkmodel import DATA

MODEL, HIT_RATE, CONTEXT = "MiniCPM4.1-8B", 0.89, 131_072
SYSTEMS = (
    "SparDA",
    "SparDA, no prefetch",
    "Sparse",
    "InfiniGen",
    "InfiniGen over UVA",
    "Sparse, no offload",
    "Dense",
    "Dense, cuDNN",
)
COLUMNS = ["origin", "system", "x", "value"]
NO_ROOM = "out of memory"


@dataclass(frozen=True)
class Beside:
    """A table, and of our rows where they come from ("" where there are none) and what else they say."""

    table: Any
    where: str = ""
    said: str = ""


def device(name: str) -> str:
    """The folder of data/measured/ whose ``name`` counts: this machine's GPU, else nvidia-h200, else any.

    Raises FileNotFoundError where nothing is committed.
    """
    from sparda.measure.bench import _slug

    have = sorted(path.parent.name for path in DATA.glob(f"*/{name}"))
    for wanted in (_slug(provenance.device()), "nvidia-h200"):
        if wanted in have:
            return wanted
    if not have:
        raise FileNotFoundError(f"no {name} in {DATA}; `make reproduce PROFILE=gpu` measures it")
    return have[0]


def ours(name: str) -> Run | None:
    """Our rows of a benchmark, None where it was not measured."""
    try:
        return read(name, device(f"{name}.csv"))
    except FileNotFoundError:
        return None


def joined(rows: list[tuple], *more: Any) -> Any:
    """Rows of COLUMNS, and of COLUMNS and status, as one table; a row without a status came to its end."""
    import pandas as pd

    columns = [*COLUMNS, "status"]
    parts = [pd.DataFrame(rows, columns=COLUMNS), *(part for part in more if part is not None)]
    parts = [({"status": "ok"} | dict(part.items())) for part in parts if len(part)]
    return pd.concat([pd.DataFrame(part).reindex(columns=columns) for part in parts], ignore_index=True)


def tokens(context: str) -> int:
    """Tokens of a context such as 128K.

    >>> tokens("128K")
    131072
    """
    return 1024 * int(context.removesuffix("K"))


def published(name: str, x: str, **where: str) -> list[tuple]:
    """Rows of a published table of throughputs, of MiniCPM4.1-8B, as COLUMNS."""
    found = []
    for row in paper.rows(name):
        if row["value"] and all(row[c] == v for c, v in ({"model": MODEL} | where).items()):
            at = tokens(row["context"]) if x == "context" else int(row["batch"])
            found.append(("published", PUBLISHED[row["method"], row["kv_location"]], at, float(row["value"])))
    return found


def no_room(rows: list[tuple]) -> Any:
    """Published batches at 128K that ran out of memory, up to the largest that did not."""
    import pandas as pd

    found = [
        (PUBLISHED[row["method"], row["kv_location"]], int(row["batch"]))
        for row in paper.rows("table4_decode_throughput")
        if (row["model"], row["context"], row["status"]) == (MODEL, "128K", "OOM")
    ]
    found = [(system, batch) for system, batch in found if batch <= max(row[2] for row in rows)]
    return pd.DataFrame(found, columns=COLUMNS[1:3]).assign(origin="published", status=NO_ROOM)


def decode_vs_batch(table: str = "table4_decode_throughput") -> Beside:
    """Table 4 at 128K against batch; or Figure 1c, whose points were read off the chart."""
    run, failed = ours("decode"), None
    if table.startswith("fig1c"):
        rows = [
            ("published", PUBLISHED[row["method"], row["kv_location"]], int(batch), float(row["value"]))
            for row in paper.rows(table)
            for batch in re.findall(r"\d+", row["batch"])  # a flat line is drawn from 4 to 64
        ]
    else:
        rows = published(table, "batch", context="128K")
        failed = no_room(rows)
    mine = decode.measured(run, n_tokens=CONTEXT, hit_rate=HIT_RATE)
    mine = mine[mine["system"].isin({row[1] for row in rows})]
    mine = mine.assign(x=mine["batch"], value=mine["tokens_per_s"])
    return Beside(joined(rows, failed, mine), source(mine))


def decode_vs_context() -> Beside:
    """Table 4 at batch 4 against context."""
    import pandas as pd

    run = ours("decode")
    rows = [
        row for row in published("table4_decode_throughput", "context", batch="4")
        if row[1] in ("SparDA", "Sparse, no offload")
    ]  # fmt: skip
    parts = []
    for context in sorted({row[2] for row in rows}):
        mine = decode.measured(run, n_tokens=context, hit_rate=HIT_RATE)
        mine = mine[mine["system"].isin({row[1] for row in rows}) & (mine.get("batch") == 4)]
        parts.append(mine.assign(x=context, value=mine["tokens_per_s"]))
    return Beside(joined(rows, *parts), source(pd.concat(parts)))


def prefill() -> Beside:
    """Table 3: prefill rate against context."""
    run = ours("prefill")
    mine = None
    if run is not None:
        mine = prefill_rates.measured_prefill(run)
        mine = mine.assign(x=mine["context"], value=mine["tokens_per_s"])
    table = joined(published("prefill_throughput", "context"), mine)
    return Beside(table, "" if mine is None else source(mine))


def gain_parts() -> Beside:
    """Table 10: Sparse, SparDA without prefetch, SparDA, at three batches."""
    run = ours("decode")
    rows = published("table10_decode_breakdown", "batch")
    mine = decode.measured(run, n_tokens=CONTEXT, hit_rate=HIT_RATE, compared=decode.LADDER)
    mine = mine[mine["batch"].isin({row[2] for row in rows})]
    mine = mine.assign(x=mine["batch"], value=mine["tokens_per_s"])
    return Beside(joined(rows, mine), source(mine))


def ctas() -> Beside:
    """Table 7: CTAs of the transfer against batch: the paper's rule, and ours fitted to measured curves."""
    import json

    batches = (1, 4, 8, 16, 32, 64)
    below, above = (
        int(paper.value("table7_ctas", origin="paper rule", hardware="H100", batch_condition=condition))
        for condition in ("B < 32", "B >= 32")
    )
    rows = [("published", "CTAs", batch, below if batch < 32 else above) for batch in batches]
    try:
        path = DATA / device("transfer.json") / "transfer.json"
    except FileNotFoundError:
        return Beside(joined(rows))
    run = json.loads(path.read_text(encoding="utf-8"))
    mine = [("measured", "CTAs", int(batch), count) for batch, count in run["ctas_by_batch"].items()]
    where = f"{run['device']} · {run['date']} · commit {run['commit']}"
    return Beside(joined(rows + sorted(mine, key=lambda row: row[2])), where)
