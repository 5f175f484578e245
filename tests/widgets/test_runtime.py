from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparda.widgets.runtime import is_live


def asked_with(**content):
    """A kernel whose present cell was sent with this content."""
    return SimpleNamespace(get_parent=lambda channel: {"content": content})


@pytest.fixture
def kernel(monkeypatch):
    """Pretend to run inside a Jupyter kernel."""
    pytest.importorskip("ipywidgets")
    pytest.importorskip("anywidget")
    shell = SimpleNamespace(kernel=asked_with(allow_stdin=True))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.delenv("SPARDA_STATIC", raising=False)
    return shell


def test_a_person_in_a_notebook_gets_a_live_widget(kernel):
    assert is_live()


@pytest.mark.parametrize("package", ["ipywidgets", "anywidget"])
def test_a_kernel_without_the_widget_packages_says_so_and_stays_static(package, kernel, monkeypatch, capsys):
    monkeypatch.setattr(
        "sparda.widgets.runtime.find_spec", lambda name: None if name == package else object()
    )
    assert not is_live()
    assert f"figures instead of widgets: {package} is missing" in capsys.readouterr().out


def test_a_kernel_that_nobody_looks_at_gets_static_figures_unless_it_asks_for_live_ones(kernel, monkeypatch):
    kernel.kernel = asked_with(allow_stdin=False)
    assert not is_live()
    monkeypatch.setenv("SPARDA_STATIC", "0")
    assert is_live()


@pytest.mark.parametrize("other", [object(), asked_with(), SimpleNamespace(get_parent=lambda channel: {})])
def test_a_kernel_that_does_not_say_who_looks_is_taken_for_a_persons(other, kernel):
    kernel.kernel = other
    assert is_live()


def test_a_notebook_that_is_run_from_a_command_holds_figures_and_no_widget(monkeypatch):
    """With nbclient, as papermill and nbconvert do. The last cell shows what a live widget would cost."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for name in ("SPARDA_STATIC", "PLOTLY_RENDERER"):
        monkeypatch.delenv(name, raising=False)
    widget = "from sparda.widgets.prefetch_timeline import explore_prefetch as explore\n"
    cells = [f"{widget}explore()[0]", "import os\nos.environ['SPARDA_STATIC'] = '0'", "explore()"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    static, _, live = ([dict(out.get("data", {})) for out in cell.outputs] for cell in book.cells)
    assert [set(data) for data in static] == [{"application/vnd.plotly.v1+json"}]
    assert len(str(static)) < 50_000
    assert "application/vnd.jupyter.widget-view+json" in live[0]
    assert len(str(book.metadata.widgets)) > 1_000_000


def test_a_build_gets_static_figures(kernel, monkeypatch):
    monkeypatch.setenv("SPARDA_STATIC", "1")
    assert not is_live()


def test_plain_python_gets_static_figures(monkeypatch):
    monkeypatch.delenv("SPARDA_STATIC", raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not is_live()
