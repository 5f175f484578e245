"""The numbers in kernels/README.md are those of the committed measurement, to the digit."""

from __future__ import annotations

import csv
import json
import re


def test_the_table_of_kernels_is_the_measured_one(root):
    folder = root / "data" / "measured" / "nvidia-h200"
    with (folder / "kernels.csv").open() as file:
        measured = {(r["kernel"], r["case"], r["backend"]): r for r in csv.DictReader(file)}
    text = (root / "kernels" / "README.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\w+) \| ([\w+]+) \| ([\d.e+]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) > 20
    for kernel, case, backend, median, ratio in rows:
        row = measured[kernel, case, backend]
        assert (median, ratio) == (row["median_us"], row["ratio_to_floor"]), (kernel, case, backend)


def test_the_table_of_disturbance_is_the_measured_one(root):
    with (root / "data" / "measured" / "nvidia-h200" / "transfer.csv").open() as file:
        keys = ("transport", "beside", "n_ctas", "in_flight_kib", "gb_per_s", "slowdown")
        measured = {tuple(r[key] for key in keys) for r in csv.DictReader(file)}
    text = (root / "kernels" / "README.md").read_text()
    rows = re.findall(r"^\| (uva|copy_engine) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 5
    for transport, rest in rows:
        assert (transport, *rest.split(" | ")) in measured, rest


def test_the_table_names_the_run_that_it_comes_from(root):
    runs = json.loads((root / "data" / "measured" / "nvidia-h200" / "kernels.json").read_text())
    text = (root / "kernels" / "README.md").read_text()
    for run in runs.values():
        for fact in (run["device"], run["date"], run["commit"], run["driver"]):
            assert fact in text
