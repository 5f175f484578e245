from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparda.widgets.runtime import is_live


@pytest.fixture
def kernel(monkeypatch):
    """Pretend to run inside a Jupyter kernel."""
    pytest.importorskip("ipywidgets")
    pytest.importorskip("anywidget")
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.delenv("SPARDA_STATIC", raising=False)


def test_a_person_in_a_notebook_gets_a_live_widget(kernel):
    assert is_live()


@pytest.mark.parametrize("package", ["ipywidgets", "anywidget"])
def test_a_kernel_without_the_widget_packages_says_so_and_stays_static(package, kernel, monkeypatch, capsys):
    monkeypatch.setattr(
        "sparda.widgets.runtime.find_spec", lambda name: None if name == package else object()
    )
    assert not is_live()
    assert f"figures instead of widgets: {package} is missing" in capsys.readouterr().out


def test_a_build_gets_static_figures(kernel, monkeypatch):
    monkeypatch.setenv("SPARDA_STATIC", "1")
    assert not is_live()


def test_plain_python_gets_static_figures(monkeypatch):
    monkeypatch.delenv("SPARDA_STATIC", raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not is_live()
