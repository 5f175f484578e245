"""Tidy CSV files of measurements: rows are replaced by key, and a JSON sidecar says which run made them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparda import files


@dataclass(frozen=True)
class Table:
    """A file ``<name>.csv`` with its columns, of which some name a row and the rest were measured."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def row(self, **values: object) -> dict[str, str]:
        """A row as it is written: 4 digits a number, "" for what is missing; TypeError: no such column."""
        unknown = sorted(set(values) - set(self.columns))
        if unknown:
            raise TypeError(f"{self.name}.csv has no column {', '.join(unknown)}; it has {self.columns}")
        return {column: printed(values.get(column, "")) for column in self.columns}


def printed(value: object) -> str:
    """Numbers with 4 significant digits, as all measured files have them.

    >>> printed(0.123456), printed(131072), printed("ok"), printed(float("nan"))
    ('0.1235', '131072', 'ok', '')
    """
    if isinstance(value, float):
        return f"{value:.4g}" if value == value else ""
    return str(value)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def merge(path: Path, columns: Sequence[str], key: Sequence[str], rows: Iterable[Mapping]) -> None:
    """Write the rows into the file: those of the same key are replaced, the others stay; sorted by key."""
    kept = {_key(row, key): row for row in [*read(path), *rows]}
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(kept[one] for one in sorted(kept))
    files.write_text(path, text.getvalue())


def _key(row: Mapping, names: Sequence[str]) -> tuple:
    """Numbers sort as numbers, before words."""
    return tuple(_order(str(row.get(name, ""))) for name in names)


def _order(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)


def keep(table: Table, rows: Sequence[Mapping], folder: Path, about: Mapping) -> Path:
    """Merge rows into ``folder/<name>.csv`` and note the run (commit, date, command ...) in the sidecar.

    A row names its run by commit and date; the sidecar keeps the runs that rows still name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, sidecar = folder / f"{table.name}.csv", folder / f"{table.name}.json"
    merge(path, table.columns, table.key, rows)
    runs = json.loads(sidecar.read_text(encoding="utf-8"))["runs"] if sidecar.exists() else []
    runs = [run for run in runs if run != dict(about)] + [dict(about)]
    named = {(row.get("commit"), row.get("date")) for row in read(path)}
    runs = [run for run in runs if (run["commit"], run["date"]) in named]
    files.write_text(sidecar, json.dumps({"runs": runs}, indent=1, sort_keys=True) + "\n")
    return path
