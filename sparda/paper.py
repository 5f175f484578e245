"""The published numbers of ``data/paper/``: read, never retyped.

>>> value("table4_decode_throughput", model="MiniCPM4.1-8B", method="SparDA", context="128K", batch="64")
1000.1
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "data" / "paper"


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """All rows of ``data/paper/<name>.csv`` as text; an empty value was not recovered.

    Raises FileNotFoundError that lists the tables there are.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        known = (
            ", ".join(sorted(p.stem for p in FOLDER.glob("*.csv")))
            or "none: work in a clone of the repository"
        )
        raise FileNotFoundError(f"no published table {name!r} in {FOLDER}; known: {known}")
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def value(name: str, **where: str) -> float:
    """The one number of a table whose columns equal ``where``.

    Raises LookupError unless exactly one row matches and has a value.
    """
    found = [row for row in rows(name) if all(row[column] == text for column, text in where.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {name} match {where}; name columns until exactly one does")
    if not found[0]["value"]:
        raise LookupError(f"{name}, {where}: no value ({found[0].get('status') or 'not recovered'})")
    return float(found[0]["value"])
