"""The README's decode speeds are the committed measurement's; the paper's are the paper's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOST = {
    "context": "131072", "hit_rate": "0.89", "cache_slots": "96", "choices": "replayed",
}  # fmt: skip


def rows(path: str) -> list[dict[str, str]]:
    with open(ROOT / path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measured(selector: str, transport: str, batch: str, cap: str = "") -> dict[str, str]:
    wanted = HOST | {"selector": selector, "transport": transport, "batch": batch, "gpu_memory_gib": cap}
    found = [
        row
        for row in rows("data/measured/nvidia-h200/decode.csv")
        if all(row[name] == value for name, value in wanted.items())
    ]
    assert found, (selector, transport, batch)
    return min(found, key=lambda row: int(row["host_layers_per_store"]))  # of several, what shares least


def published(batch: str) -> str:
    wanted = ("MiniCPM4.1-8B", "SparDA", "CPU offload", "128K", batch, "ok")
    for row in rows("data/paper/table4_decode_throughput.csv"):
        if tuple(row[c] for c in ("model", "method", "kv_location", "context", "batch", "status")) == wanted:
            return f"{float(row['value']):.0f}"
    return "-"


def lines() -> dict[str, list[str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| batch | SparDA |") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: row for row in cells}


@pytest.mark.parametrize("batch", ["1", "4", "8", "16", "32", "64"])
def test_a_line_of_the_table_is_the_measurement(batch):
    ours, sparse = measured("forecast", "lookahead", batch), measured("query", "demand", batch)
    gain = float(ours["tokens_per_s"]) / float(sparse["tokens_per_s"])
    share = f"{100 * float(ours['ratio_to_bound']):.0f} %"
    want = [batch, f"{float(ours['tokens_per_s']):.0f}", share, f"{float(sparse['tokens_per_s']):.0f}"]
    capped = "-"
    if batch != "1":
        capped = f"{float(measured('forecast', 'lookahead', batch, '80')['tokens_per_s']):.0f}"
    assert lines()[batch] == [*want, f"{gain:.2f}", capped, published(batch)]
