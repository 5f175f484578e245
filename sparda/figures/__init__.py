"""Figures: pure functions, a tidy table in and a plotly Figure out, one file per topic.

A chapter hands each figure over with one call::

    publish("recall_by_budget", recall_figure(table), table)

which shows the figure and, during a build (`sparda reproduce`), also writes its JSON and CSV.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from sparda.figures.style import fit

NAME = re.compile(r"[a-z][a-z0-9_]*")


def publish(name: str, figure, table):
    """Return ``figure`` for display; inside a build also write ``<name>.json`` and ``<name>.csv``.

    name   : the key of the figure in figures/figures.yml, such as "recall_by_budget"
    figure : plotly Figure that went through ``sparda.figures.style.stamp``
    table  : pandas DataFrame, tidy (one observation a row): the numbers that the figure draws

    The folder is the environment variable SPARDA_BUILD_DIR, which the build sets.
    Raises ValueError for a bad name, a figure without a stamp or an empty table.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"figure name {name!r}: use small letters, digits and _, starting with a letter")
    if not (figure.layout.meta or {}).get("status"):
        raise ValueError(f"figure {name!r} has no stamp; pass it through sparda.figures.style.stamp first")
    if len(table) == 0:
        raise ValueError(f"figure {name!r} has an empty table; hand over the rows that it draws")
    fit(figure)
    folder = os.environ.get("SPARDA_BUILD_DIR")
    if folder:
        Path(folder, f"{name}.json").write_text(figure.to_json() + "\n", encoding="utf-8")
        table.to_csv(Path(folder, f"{name}.csv"), index=False, float_format="%.9g", lineterminator="\n")
    _import_display()
    return figure


def _import_display() -> None:
    """Import what plotly displays a figure with, less the grammars for IRIs, 2 s of each kernel."""
    name = "rfc3987_syntax"  # optional to jsonschema; no notebook is checked for an IRI
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import plotly.io._renderers  # noqa: F401
    finally:
        del sys.modules[name]
