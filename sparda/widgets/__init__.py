"""Widgets: thin live shells over the pure figures of ``sparda.figures``, one file per topic."""

from __future__ import annotations

from typing import Any


def show(view: Any, number: int | None = None) -> None:
    """Display a widget; where there is none, of the static figures that stand for it all, or that ``number``.

    view : what a function ``explore_...`` returned
    """
    from IPython.display import display

    figures = view if isinstance(view, list) else [view]
    display(*(figures if number is None or view is not figures else [figures[number]]))
