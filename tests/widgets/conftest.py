"""How a test reaches the parts of a widget, and what holds for each of them."""

from __future__ import annotations

import time

import pytest


def _walk(box):
    for child in getattr(box, "children", ()):
        yield child
        yield from _walk(child)


@pytest.fixture
def control():
    """The control of a widget with this description."""

    def find(box, description):
        return next(c for c in _walk(box) if getattr(c, "description", None) == description)

    return find


@pytest.fixture
def charts():
    """The live figures of a widget, from above."""

    def find(box):
        return [c for c in _walk(box) if hasattr(c, "layout") and hasattr(c, "data")]

    return find


@pytest.fixture
def messages():
    """The text of a widget's status lines."""

    def find(box):
        return " ".join(c.value for c in _walk(box) if 'role="status"' in str(getattr(c, "value", "")))

    return find


@pytest.fixture
def quickest():
    """Seconds of the quickest of some changes, in processor time: other programs may hold the machine up."""

    def measure(control, values):
        times = []
        for value in values:
            start = time.thread_time()
            control.value = value
            times.append(time.thread_time() - start)
        return min(times)

    return measure
