"""What the tests of all figures share: whether a trace draws the columns that it should."""

from __future__ import annotations

import numpy as np
import pytest


def _same(drawn, column):
    drawn, column = list(drawn), list(column)
    if any(isinstance(value, str) for value in column):
        assert drawn == column
    else:
        assert np.asarray(drawn, dtype=float) == pytest.approx(np.asarray(column, dtype=float), rel=1e-5)


@pytest.fixture
def draws():
    """draws(traces, rows, by="column", x="column", y="column"): what is drawn are these columns, no more.

    traces : a figure, or some of its traces, each a bar or a scatter
    rows   : a table with a trace for each value of ``by``; or name of a trace -> its rows
    x, y   : names of columns, compared row by row; two names are the two levels of an axis
    error_x, error_y : names of the columns that hold the lower and the upper end of the error bars
    """

    def run(traces, rows, *, x, y, by=None, error_x=None, error_y=None):
        traces = list(getattr(traces, "data", traces))
        wanted = {str(name): part for name, part in (rows.groupby(by) if by else rows.items())}
        assert sorted(str(trace.name) for trace in traces) == sorted(wanted)
        for trace in traces:
            part = wanted[str(trace.name)]
            for axis, column, ends in (("x", x, error_x), ("y", y, error_y)):
                if not isinstance(column, str):
                    for level, name in zip(trace[axis], column, strict=True):
                        _same(level, part[name])
                    continue
                _same(trace[axis], part[column])
                if ends:
                    bars = trace[f"error_{axis}"]
                    assert bars.symmetric is not True
                    _same(bars.array, part[ends[1]] - part[column])
                    _same(bars.arrayminus, part[column] - part[ends[0]])

    return run


@pytest.fixture
def maps():
    """maps(heatmap, rows, x="column", y="column", z="column"): the cell at x and y of each row is its z."""

    def run(heatmap, rows, *, x, y, z):
        across, down = list(heatmap.x), list(heatmap.y)
        assert (len(across), len(down)) == (rows[x].nunique(), rows[y].nunique())
        cells = [heatmap.z[down.index(b)][across.index(a)] for a, b in zip(rows[x], rows[y], strict=True)]
        assert np.asarray(cells, dtype=float) == pytest.approx(rows[z].to_numpy(float), rel=1e-5, nan_ok=True)

    return run
