from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sparda.figures import publish, style

go = pytest.importorskip("plotly.graph_objects")
pd = pytest.importorskip("pandas")


def titled():
    return go.Figure(go.Scatter(x=[1, 2], y=[3, 4]), layout={"title": {"text": "A figure"}})


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("paper", ["#ffffff", "#111111"])
def test_lines_and_text_can_be_read_on_light_and_dark_paper(paper):
    assert all(contrast(colour, paper) >= 3 for colour in style.PALETTE)
    assert contrast(style.TEXT, paper) >= 4


def test_two_series_never_differ_in_colour_alone():
    looks = [style.series(index) for index in range(len(style.PALETTE))]
    assert len({look["line"]["dash"] for look in looks}) == len(looks)
    assert len({look["marker"]["symbol"] for look in looks}) == len(looks)


def test_the_stamp_is_drawn_and_kept_as_data():
    fig = style.stamp(titled(), "modelled", "hit rate 0.89")
    assert fig.layout.title.subtitle.text == "modelled · hit rate 0.89"
    assert fig.layout.meta == {"status": "modelled", "stamp": "modelled · hit rate 0.89"}


def test_a_measured_stamp_names_device_date_and_commit(monkeypatch):
    monkeypatch.setenv("SPARDA_COMMIT", "abc123")
    line = style.stamp(titled(), "measured", "SmolLM2").layout.meta["stamp"]
    status, device, date, commit, note = line.split(" · ")
    assert (status, commit, note) == ("measured", "commit abc123", "SmolLM2")
    assert "cores" in device or "NVIDIA" in device
    assert len(date) == 10


def test_frozen_measurements_keep_the_place_they_were_made_at():
    fig = style.stamp(titled(), "measured", where="NVIDIA H200 · 2026-11-20 · commit 1234567")
    assert fig.layout.meta["stamp"] == "measured · NVIDIA H200 · 2026-11-20 · commit 1234567"


def test_a_long_stamp_is_broken_into_lines():
    assert "<br>" in style.stamp(titled(), "modelled", "word " * 60).layout.title.subtitle.text


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="measured, modelled, simulated"):
        style.stamp(titled(), "guessed")


def test_a_figure_without_a_title_is_refused():
    with pytest.raises(ValueError, match="title"):
        style.stamp(go.Figure(), "modelled")


def test_publish_writes_json_and_csv_only_inside_a_build(tmp_path, monkeypatch):
    fig, table = style.stamp(titled(), "modelled"), pd.DataFrame({"x": [1, 2], "y": [0.1, 1 / 3]})
    monkeypatch.delenv("SPARDA_BUILD_DIR", raising=False)
    assert publish("a_figure", fig, table) is fig
    monkeypatch.setenv("SPARDA_BUILD_DIR", str(tmp_path))
    publish("a_figure", fig, table)
    assert json.loads((tmp_path / "a_figure.json").read_text())["layout"]["meta"]["status"] == "modelled"
    assert (tmp_path / "a_figure.csv").read_text() == "x,y\n1,0.1\n2,0.333333333\n"


@pytest.mark.parametrize("name", ["Recall", "../up", "a b", ""])
def test_publish_refuses_a_name_that_is_no_file_name(name):
    with pytest.raises(ValueError, match="figure name"):
        publish(name, style.stamp(titled(), "modelled"), pd.DataFrame({"x": [1]}))


def test_publish_refuses_a_figure_without_a_stamp_and_an_empty_table():
    with pytest.raises(ValueError, match="no stamp"):
        publish("a_figure", titled(), pd.DataFrame({"x": [1]}))
    with pytest.raises(ValueError, match="empty table"):
        publish("a_figure", style.stamp(titled(), "modelled"), pd.DataFrame({"x": []}))


def test_a_published_figure_is_displayed_without_the_seconds_that_grammars_take():
    code = (
        "import sys, pandas, plotly.graph_objects as go\n"
        "from sparda.figures import publish, style\n"
        "figure = style.stamp(go.Figure(layout_title_text='a'), 'modelled')\n"
        "publish('a', figure, pandas.DataFrame({'x': [1]}))._repr_mimebundle_()\n"
        "print('nbformat' in sys.modules, 'lark' in sys.modules, 'rfc3987_syntax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
