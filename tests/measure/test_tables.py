"""Tidy files: columns, rounding, replaced rows, and a sidecar that knows the runs."""

from __future__ import annotations

import json

import pytest

from sparda.measure import tables
from sparda.measure.tables import Table

TABLE = Table("speed", ("what", "batch", "us", "date", "commit"), ("what", "batch"))


def about(commit):
    return {"device": "NVIDIA Test", "date": "2026-01-01", "commit": commit, "command": f"run {commit}"}


def row(what, batch, us, commit="a"):
    return TABLE.row(what=what, batch=batch, us=us, date="2026-01-01", commit=commit)


def test_a_row_is_replaced_by_its_key_and_numbers_sort_as_numbers(tmp_path):
    path = tables.keep(TABLE, [row("x", 16, 1.0), row("x", 4, 2.0)], tmp_path, about("a"))
    tables.keep(TABLE, [row("x", 16, 3.0, "b"), row("w", 64, 1.23456, "b")], tmp_path, about("b"))
    assert path.read_text().splitlines() == [
        "what,batch,us,date,commit",
        "w,64,1.235,2026-01-01,b",
        "x,4,2,2026-01-01,a",
        "x,16,3,2026-01-01,b",
    ]


def test_the_sidecar_keeps_the_runs_that_rows_still_name(tmp_path):
    tables.keep(TABLE, [row("x", 4, 1.0)], tmp_path, about("a"))
    tables.keep(TABLE, [row("x", 4, 2.0, "b")], tmp_path, about("b"))
    runs = json.loads((tmp_path / "speed.json").read_text())["runs"]
    assert [run["command"] for run in runs] == ["run b"]


def test_a_run_that_keeps_row_after_row_stands_once(tmp_path):
    for batch in (1, 2, 3):
        tables.keep(TABLE, [row("x", batch, 1.0)], tmp_path, about("a"))
    assert len(json.loads((tmp_path / "speed.json").read_text())["runs"]) == 1


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(TypeError, match=r"speed\.csv has no column speed"):
        TABLE.row(what="x", speed=3)


def test_the_committed_kernel_table_is_written_back_to_the_byte(root, tmp_path):
    committed = root / "data" / "measured" / "nvidia-h200" / "kernels.csv"
    copy = tmp_path / "kernels.csv"
    copy.write_bytes(committed.read_bytes())
    tables.merge(copy, list(tables.read(copy)[0]), ("kernel", "case", "backend"), [])
    assert copy.read_bytes() == committed.read_bytes()
