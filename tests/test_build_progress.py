"""What a build says while it runs: where it is, and an honest word on the time that is left."""

from __future__ import annotations

import time

import pytest

from sparda import build_progress
from sparda.build_progress import Pace, Watch, first_line


def test_the_time_left_is_what_is_expected_scaled_by_what_was_seen():
    pace = Pace({"a": 10, "b": 20, "c": 30})
    assert pace.left(["a", "b", "c"]) == "about 60 s left"
    pace.done("a", 20)  # this machine is half as fast
    assert pace.left(["b", "c"]) == "about 2 min left"
    assert pace.left(["b"], 30) == "about 10 s left"
    assert pace.left(["b"], 41) == "longer than expected"
    assert pace.left([]) == ""


def test_what_is_not_known_is_not_guessed():
    pace = Pace({"a": 10, "b": 0})
    assert pace.left(["a", "b"]) == ""
    assert pace.left(["other"]) == ""
    pace.done("b", 5)
    assert pace.left(["a"]) == "about 10 s left"


def test_a_long_cell_is_named_with_its_time_and_the_rest(monkeypatch, capsys):
    monkeypatch.setattr(build_progress, "EVERY", 0.05)
    watch = Watch("03_training", cells=40, pace=Pace({"03_training": 100}))
    with watch.speaking():
        watch.cell(20, "import torch\n# why\nruns = train(model)\nruns.plot()")
        until = time.monotonic() + 10
        said = ""
        while "train" not in said and time.monotonic() < until:
            time.sleep(0.05)
            said += capsys.readouterr().out
    assert "  03_training: cell 21 of 40 for 1 s: `runs = train(model)`; 1 s so far; about 2 min left" in said
    time.sleep(0.2)
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().out == ""  # silent once it has ended


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("# a\n%time\nx = 1", "`x = 1`"),
        ("import a", "`import a`"),
        ("important = 2\nfrom b import c", "`important = 2`"),
    ],
)
def test_a_cell_is_named_by_its_first_line_that_does_something(source, line):
    assert first_line(source) == line


def test_papermill_tells_the_watch_of_each_cell(tmp_path):
    papermill, nbformat = pytest.importorskip("papermill"), pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"x = {n}") for n in range(3)])
    book.cells.insert(1, nbformat.v4.new_markdown_cell("a text"))
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, tmp_path / "a.ipynb")
    told, watch = [], Watch("a")
    watch.cell = lambda number, source: told.append((number, source))
    papermill.execute_notebook(
        str(tmp_path / "a.ipynb"), None, progress_bar=False, engine_name=build_progress.register_engine(),
        watch=watch, kernel_name="python3", extra_arguments=["--log-level=50"],
    )  # fmt: skip
    assert told == [(0, "x = 0"), (2, "x = 1"), (3, "x = 2")]
    assert watch.cells == 4
