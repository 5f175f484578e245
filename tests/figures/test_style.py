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


def longest(text: str) -> int:
    return max(map(len, text.split("<br>")))


def crowded():
    """Two panels with long titles, many long names, a stamp of hundreds of characters."""
    from plotly.subplots import make_subplots

    fig = make_subplots(cols=2, subplot_titles=["a title of a panel that is far too long for it"] * 2)
    for number in range(12):
        fig.add_scatter(
            x=["a", "b"], y=[1, 2], name=f"one of many names that take room {number}", row=1, col=1
        )
    fig.update_xaxes(title="a name of an axis that is longer than its panel", tickangle=0)
    fig.update_layout(
        title_text="A title that says much more than a narrow page can hold in a single line of it"
    )
    return style.stamp(fig, "modelled", "word " * 60)


def test_titles_and_stamp_are_broken_for_the_narrowest_page():
    layout = crowded().layout
    assert longest(layout.title.text) <= style.TITLE_CHARS
    assert longest(layout.title.subtitle.text) <= style.LINE_CHARS
    assert longest(layout.annotations[0].text) <= 36
    assert longest(layout.xaxis.title.text) <= 28
    assert layout.xaxis.tickangle is None  # labels may turn
    words = "A title that says much more than a narrow page can hold in a single line of it"
    assert layout.title.text.replace("<br>", " ") == words


def test_room_is_made_for_what_stands_above_and_below_the_plot():
    small, large = style.stamp(titled(), "modelled").layout, crowded().layout
    lines = large.title.text.count("<br>") * 20 + large.title.subtitle.text.count("<br>") * 15
    assert large.margin.t > small.margin.t + lines
    assert (large.legend.orientation, large.legend.yref, large.legend.y) == ("h", "container", 0)
    assert small.height == style.HEIGHT
    assert large.height >= large.margin.t + 12 * 20 + style.LEAST_PLOT


def test_a_figures_own_changes_after_its_stamp_are_fitted_and_once_more_changes_nothing():
    fig = crowded().update_layout(margin_t=20, legend_y=0.5, height=300, title_text="Short")
    once = style.fit(fig).to_dict()
    assert once["layout"]["margin"]["t"] > 100
    assert once["layout"]["legend"]["y"] == 0
    assert style.fit(fig).to_dict() == once


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
