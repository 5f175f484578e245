"""Chapter 03's tables and figures say what was measured, on made-up choices and files."""

from __future__ import annotations

import json

import pytest

from sparda.figures import forecast, forecast_ablation, forecast_data
from sparda.figures.measured import Run

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")

LEVEL = {"query": 0.5, "oracle": 0.9, "Forecast": 0.6, "proxy": 0.4}


def choices(layers=3, heads=2):
    """The same recall everywhere, but for layer 0 (where all is 0) and one head that hardly has a gap."""
    rows = [
        (name, layer, head, level * (layer > 0), 1.0 if name == "query" else level)
        for name, level in LEVEL.items()
        for layer in range(layers)
        for head in range(heads)
    ]
    table = pd.DataFrame(rows, columns=["series", "layer", "head", "mass_recall", "agreement"])
    narrow = (table["layer"] == 2) & (table["head"] == 1) & (table["series"] == "oracle")
    return table.assign(mass_recall=table["mass_recall"].mask(narrow, 0.501))


def test_the_gap_closed_is_one_ratio_of_means_over_layers_from_1_on():
    table = choices()
    oracle = (0.9 + 0.9 + 0.9 + 0.501) / 4
    assert forecast.closed_by(table) == pytest.approx(0.1 / (oracle - 0.5))
    assert forecast.closed_by(table, "proxy") < 0
    assert forecast.closed_by(table[table["series"] != "Forecast"]) != forecast.closed_by(table)  # nan


def test_a_forecast_of_some_layers_is_compared_with_the_others_there():
    table = choices(4)
    some = table[(table["series"] != "Forecast") | (table["layer"] == 1)]
    assert forecast.closed_by(some) == pytest.approx(0.25)
    assert set(forecast.gap_table(some)["layer"]) == {1}


def test_a_share_of_hardly_any_gap_is_left_empty():
    gaps = forecast.gap_table(choices()).set_index(["layer", "head"])
    assert gaps.loc[(1, 0), "closed"] == pytest.approx(0.25)
    assert gaps.loc[(1, 0), "won"] == pytest.approx(0.1)
    assert pd.isna(gaps.loc[(2, 1), "closed"])
    assert pd.isna(gaps.loc[(0, 0), "closed"])


def test_the_heat_maps_have_a_row_a_head_and_a_column_a_layer():
    figure = forecast.gap_figure(forecast.gap_table(choices()), where="here")
    assert [trace.z.shape for trace in figure.data] == [(2, 3), (2, 3)]
    assert figure.data[1].zmin == -figure.data[1].zmax


def test_gain_is_mass_beyond_the_querys_and_the_query_is_no_mark():
    points = forecast.yardstick_table(choices()).set_index(["series", "layer"])
    assert points.loc[("Forecast", 1), "gain"] == pytest.approx(0.1)
    assert "query" not in points.index.get_level_values("series")
    figure = forecast.yardstick_figure(points.reset_index(), where="here")
    assert len({trace.marker.symbol for trace in figure.data}) == len(figure.data) == 3


def test_layers_and_training_are_drawn_with_lines_that_differ_in_more_than_colour():
    table = choices()
    figure = forecast.layers_figure(table, where="here")
    assert len({trace.line.dash for trace in figure.data}) == len(figure.data) == 4
    learned = pd.DataFrame({"step": [0, 0, 5, 5], "layer": [1, 2, 1, 2], "mass_recall": [0.4, 0.4, 0.6, 0.7]})
    figure = forecast.training_figure(learned, table, where="here")
    assert [trace.name for trace in figure.data][:4] == ["Forecast", "query", "proxy", "oracle"]
    assert list(figure.data[4].y) == [0.4, 0.7]
    assert list(figure.data[5].y) == [0.5, 0.5]


def test_gains_without_intervals_are_drawn_as_well():
    gains = pd.DataFrame({"text": "one", "layer": [0, 1], "gain": [0.0, 0.1], "low": float("nan")})
    figure = forecast.gain_figure(gains.assign(high=gains["low"]), where="here")
    assert list(figure.data[0].y) == [0.0, 0.1]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with nothing in it."""
    monkeypatch.setenv("SPARDA_DATA", str(tmp_path))
    (tmp_path / "measured" / "a-device").mkdir(parents=True)
    return tmp_path


def write(data, name, rows):
    path = data / "measured" / "a-device" / f"{name}.csv"
    rows.to_csv(path, index=False)
    path.with_suffix(".json").write_text(
        json.dumps({"runs": [{"device": "a device", "date": "a day", "commit": "abc"}]})
    )


@pytest.mark.parametrize("what", ["recall", "ablation"])
def test_what_is_not_committed_is_none_and_a_sentence_says_what_writes_it(data, what):
    assert forecast_data.read(what, "a-device") is None
    assert "not committed yet" in forecast_data.missing(what)
    assert forecast_data.weights_file() is None
    assert forecast_data.card() is None
    assert "train" in forecast_data.missing("forecast")
    for needed in (what, "forecast"):
        with pytest.raises(FileNotFoundError, match="committed yet"):
            forecast_data.need(needed)


def recall_rows():
    """Of two texts, layers and heads, and the means that sparda.evaluation.recall adds."""
    rows = [
        (text, method, layer, head, level, 0.1, 0.05, 0.15, 0.7)
        for text in ("jargon_file", "king_james")
        for method, level in (
            ("sparse", 0.5),
            ("oracle", 0.9),
            ("sparda", 0.6 + 0.2 * (text == "king_james")),
        )
        for layer, head in ((0, 0), (0, "mean"), (1, 0), (1, "mean"), ("mean", "mean"))
    ]
    columns = ["text", "method", "layer", "head", "mass_recall", "gain", "gain_low", "gain_high", "agreement"]
    return pd.DataFrame(rows, columns=columns).assign(
        model="smollm2-135m", context=8192, budget_blocks=16, hit_rate=0.9
    )


def test_recall_is_read_by_layer_and_head_without_the_means(data):
    another = recall_rows().assign(model="another", mass_recall=0.0)  # which must change nothing
    write(data, "recall", pd.concat([another, recall_rows()]))
    run = forecast_data.read("recall", "a-device")
    assert run is not None
    assert run.where == "a device · a day · commit abc"
    assert forecast_data.longest(run) == (8192, 16)
    table = forecast_data.recalls(run, context=8192, budget_blocks=16)
    assert len(table) == 3 * 2
    assert set(table.loc[table["series"] == "Forecast", "mass_recall"].round(6)) == {0.7}  # mean of texts
    gains = forecast_data.gains(run, context=8192, budget_blocks=16)
    assert gains["layer"].tolist() == [0, 1, 0, 1]
    assert gains["low"].tolist() == [0.05] * 4
    assert len(forecast_data.overall(run, context=8192)) == 6
    assert forecast_data.closed(run)["Forecast"].tolist() == pytest.approx([0.25, 0.75])


def test_a_recall_file_without_a_forecast_counts_as_missing(data):
    rows = recall_rows()
    write(data, "recall", rows[rows["method"] != "sparda"])
    assert forecast_data.read("recall", "a-device") is None


def test_the_cards_gaps_leave_out_layer_0():
    recall = {"query_k16": [0, 0.5], "oracle_k16": [0, 0.9], "proxy_k16": [1, 0.4]}
    about = {"seeds": [0, 7], "recall": recall | {"forecast_k16_0": [1, 0.6], "forecast_k16_1": [1, 0.7]}}
    gaps = forecast_data.card_gaps(about)
    assert gaps.loc["k 16"].round(6).to_dict() == {"proxy": -0.25, "seed 0": 0.25, "seed 7": 0.5}


def test_the_ablation_has_only_what_was_published_until_ours_is_there():
    rows = forecast_ablation.table(None)
    assert set(rows["panel"]) == {"difference"}
    assert len(forecast_ablation.figure(rows, where="published").data) == 1


def test_our_difference_is_fine_minus_compressed_in_points_of_recall():
    ours = pd.DataFrame({
        "variant": ["ours", "paper", "coarse"], "budget_blocks": 16,
        "mass_recall": [0.9, 0.86, 0.85], "gap_closed": [0.4, 0.2, 0.1],
    })  # fmt: skip
    rows = forecast_ablation.table(Run(ours, "here"))
    mine = rows[(rows["panel"] == "difference") & (rows["budget_blocks"] == "16")]
    assert mine["value"].tolist() == pytest.approx([1.0])
    figure = forecast_ablation.figure(rows, where="here")
    assert {trace.name for trace in figure.data} == {"published", "ours", "k 16"}
    assert list(figure.data[-1].x) == [0.4, 0.2, 0.1]


def test_variants_stand_in_one_order_and_an_unknown_one_under_its_own_name():
    ours = pd.DataFrame({
        "variant": ["a_new_one", "coarse", "ours"], "budget_blocks": 16,
        "mass_recall": 0.9, "gap_closed": 0.1,
    })  # fmt: skip
    rows = forecast_ablation.table(Run(ours, "here"))
    names = rows.loc[rows["panel"] == "gap closed", "name"].tolist()
    assert names == [forecast_ablation.OURS, "compressed keys", "a new one"]
