"""What all widgets share: sentences instead of tracebacks, and a picture where no widget runs."""

from __future__ import annotations

import re

import pytest

from sparda.figures.style import stamp
from sparda.widgets import shell

W = pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")
go = pytest.importorskip("plotly.graph_objects")


def figure(height: float):
    bars = go.Figure(go.Bar(x=["a"], y=[height], name="bars"), layout={"title": {"text": f"high {height}"}})
    return stamp(bars, "modelled", "a note")


@pytest.fixture
def box():
    """A widget that cannot draw the number three."""

    def draw(chosen):
        if chosen["n"] == 3:
            raise ValueError("three is too much; take two")
        return figure(chosen["n"])

    return shell.simple({"n": W.IntSlider(1, 0, 9, description="n")}, draw, figure="prefetch_timeline")


def test_a_callback_that_fails_says_so_and_keeps_the_last_figure(box, control, charts, messages):
    control(box, "n").value = 2
    control(box, "n").value = 3
    assert "three is too much; take two. The figure is the one from before." in messages(box)
    assert "<b>Problem:</b>" in messages(box)
    assert list(charts(box)[0].data[0].y) == [2]


def test_the_next_good_value_takes_the_sentence_away(box, control, charts, messages):
    for value in (3, 5):
        control(box, "n").value = value
    assert "Problem" not in messages(box)
    assert list(charts(box)[0].data[0].y) == [5]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("no such <b>card</b>"), "no such &lt;b&gt;card&lt;/b&gt;. The"),
        (MemoryError(), "MemoryError. The"),
        (RuntimeError("it broke."), "it broke. The"),
        (KeyboardInterrupt(), "Stopped."),
    ],
)
def test_no_exception_escapes_a_callback(error, said):
    line = shell.status_line()

    def fails(_change):
        raise error

    shell.guarded(line, fails)(None)
    assert said in line.value


def test_a_live_stamp_is_a_part_of_the_title(box, charts):
    title = charts(box)[0].layout.title
    assert title.subtitle.text is None
    assert re.sub("<[^>]*>", "|", title.text) == "high 1||modelled · a note|"


def test_a_redraw_needs_the_same_traces(charts, box):
    with pytest.raises(ValueError, match="zip"):
        shell.redraw(charts(box)[0], go.Figure(layout=figure(1).layout))


def test_a_cell_shows_its_widget_a_sentence_and_a_twin_that_needs_no_kernel(box, root, monkeypatch):
    monkeypatch.chdir(root / "notebooks")
    widget, sentence, twin = box.outputs()
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert "application/vnd.plotly.v1+json" not in widget  # Lab would show the widget's type alone
    assert "here is the one that the cell drew first" in sentence["text/html"]
    assert twin["application/vnd.plotly.v1+json"]["data"][0]["y"] == [1]
    assert 'src="../figures/prefetch_timeline.png"' in twin["text/html"]


def test_a_twin_stays_as_the_cell_drew_it_and_is_no_live_figure(box, control, charts):
    control(box, "n").value = 2
    assert list(charts(box)[0].data[0].y) == [2]
    drawn = box.outputs()[2]["application/vnd.plotly.v1+json"]
    assert drawn["data"][0]["y"] == [1]
    assert drawn["layout"]["title"]["subtitle"]["text"] == "modelled · a note"


def test_displaying_a_widget_shows_all_its_outputs(box, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    box._ipython_display_()
    assert shown == box.outputs()


@pytest.mark.parametrize("place", ["VSCODE_PID", "COLAB_NOTEBOOK_ID"])
def test_where_outputs_are_laid_out_in_another_way_there_is_no_twin(box, monkeypatch, place):
    monkeypatch.setenv(place, "1")
    assert [set(bundle) & {"application/vnd.jupyter.widget-view+json"} for bundle in box.outputs()] == [
        {"application/vnd.jupyter.widget-view+json"}
    ]


def test_a_picture_that_no_build_has_drawn_is_named():
    box = shell.explorer([], figure="nowhere", twin=figure(1))
    assert "No build has drawn nowhere yet" in box.outputs()[2]["text/html"]


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(TypeError, match="explore does not know c; it takes a, b, note and live"):
        shell.check_names("explore", {"c": 1}, ["a", "b"], also=("note", "live"))
