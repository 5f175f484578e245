from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparda.widgets.runtime import is_live


@pytest.fixture
def kernel(monkeypatch):
    """Pretend to run inside a Jupyter kernel."""
    pytest.importorskip("ipywidgets")
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.delenv("SPARDA_STATIC", raising=False)


def test_a_person_in_a_notebook_gets_a_live_widget(kernel):
    assert is_live()


def test_a_build_gets_static_figures(kernel, monkeypatch):
    monkeypatch.setenv("SPARDA_STATIC", "1")
    assert not is_live()


def test_plain_python_gets_static_figures(monkeypatch):
    monkeypatch.delenv("SPARDA_STATIC", raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not is_live()
