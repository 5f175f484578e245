"""What a chapter shows of an explorer: the widget, or the figures that stand for it."""

import pytest

from sparda.widgets import show

IPython = pytest.importorskip("IPython")


@pytest.mark.parametrize(
    ("view", "number", "seen"),
    [
        ("a widget", None, ["a widget"]),
        ("a widget", 1, ["a widget"]),
        (["one", "two"], None, ["one", "two"]),
        (["one", "two"], 1, ["two"]),
        (["one", "two"], -1, ["two"]),
    ],
)
def test_a_widget_is_shown_as_it_is_and_of_figures_all_or_one(monkeypatch, view, number, seen):
    displayed = []
    monkeypatch.setattr("IPython.display.display", lambda *things: displayed.extend(things))
    show(view, number)
    assert displayed == seen
