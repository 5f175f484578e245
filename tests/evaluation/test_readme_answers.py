"""The README's table of answers is the committed one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METHODS = {
    "SparDA": "sparda", "SparDA@7": "sparda@7", "Sparse": "sparse", "InfiniGen": "infinigen",
    "oracle": "oracle", "Dense": "dense",
}  # fmt: skip
PLACES = [("4096", "8"), ("8192", "16"), ("8192", "32")]


def lines() -> dict[str, list[str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| | 4,096 tokens") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]
    return {row[0]: row[1:] for row in cells}


def said(row: dict[str, str]) -> str:
    gap, low, high = (100 * float(row[c]) for c in ("difference", "ci_low", "ci_high"))
    middle = f"{gap:+.1f}" if low <= 0 <= high else f"**{gap:+.1f}**"
    return f"{middle} ({low:+.1f} to {high:+.1f})"


@pytest.mark.parametrize("line", list(lines()))
def test_a_line_of_the_table_is_the_measurement(line):
    method, baseline = (METHODS[name] for name in line.split(" less "))
    with open(ROOT / "data/measured/nvidia-h200/pairs.csv", newline="", encoding="utf-8") as file:
        found = {
            (row["context"], row["budget_blocks"]): said(row)
            for row in csv.DictReader(file)
            if (row["method"], row["baseline"], row["task"]) == (method, baseline, "average")
        }
    assert lines()[line] == [found[place] for place in PLACES]
