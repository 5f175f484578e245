"""Chapters 00 to 04: each figure draws the columns of its table, on the axes that name them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparda.figures import (
    block_choices,
    forecast,
    forecast_ablation,
    kv_math,
    kv_scenario,
    prefetch_timeline,
    score_map,
    selection,
    start,
    transfer,
)
from sparda.figures.choices_live import Choices
from sparda.prefetch import ASSUMED_LINK, Prefetch
from sparda.spec import Sparsity, model, sparsity

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")

SHAPE, RULE = model("minicpm4.1-8b"), sparsity("minicpm4.1-8b")


def test_answers_against_the_budget(draws):
    rows = [("query", 8, 3, 5, 0.7), ("query", 4, 1, 5, 0.2), ("oracle", 4, 5, 5, 0.1), ("all", 32, 5, 5, 1)]
    counts = pd.DataFrame(rows, columns=["selector", "budget_blocks", "right", "asked", "reads_needle"])
    some = counts[counts["selector"] != "all"].sort_values("budget_blocks")
    counts = pd.concat([counts, pd.DataFrame([("random", 4, 1, 5, 0.0)], columns=counts.columns)])
    some = pd.concat([some, counts.tail(1)])
    some["x"] = some["budget_blocks"] + (some["selector"] == "random") * (8 - 4) / 40  # beside the query's
    figure = start.budget_figure(counts, where="here")
    draws(figure, some, by="selector", x="x", y="right")
    assert [line.y0 for line in figure.layout.shapes] == [5]


def test_blocks_read(maps):
    rows = [("a", layer, block, 3 * layer + block, block == 1) for layer in range(4) for block in range(3)]
    rows += [("b", layer, block, heads + 20, n) for _, layer, block, heads, n in rows]
    table = pd.DataFrame(rows, columns=["run", "layer", "block", "heads", "needle"])
    for heat, run in zip(start.blocks_read_figure(table, where="here").data, ("a", "b"), strict=True):
        maps(heat, table[table["run"] == run], x="block", y="layer", z="heads")


@pytest.fixture
def recalls():
    rows = [
        (name, layer, k, k / 40 + layer / 100, base + k / 100 + layer / 50)
        for name, base in (("query", 0.4), ("oracle", 0.6))
        for layer in (0, 1)
        for k in (8, 16)
    ]
    return pd.DataFrame(rows, columns=["selector", "layer", "budget_blocks", "share_kept", "mass_recall"])


def test_recall_against_the_share_read_and_layer_by_layer(draws, recalls):
    means = selection.recall_means(recalls)
    figure = selection.recall_figure(means, where="here")
    draws(figure, means, by="selector", x="share_kept", y="mass_recall")
    some = recalls[recalls["budget_blocks"] == 16]
    figure = selection.recall_by_layer_figure(recalls, budget_blocks=16, where="here")
    draws(figure, some, by="selector", x="layer", y="mass_recall")


def test_the_score_map_and_the_bars_below_it(draws, maps):
    choices = [["forced", "forced", "future"], ["forced", "learned", "left out"]]
    rows = [
        (0, 0, 40 + 16 * q, b, 10.0 ** (q - b), 0.5 / (1 + q + b), choices[q][b])
        for q in range(2)
        for b in range(3)
    ]
    columns = ["layer", "head", "position", "block", "score", "mass", "choice"]
    table = pd.DataFrame(rows, columns=columns)
    figure = score_map.score_map_figure(table, position=56, where="here")
    heat, marks, bars = figure.data[0], figure.data[1:3], figure.data[3:]
    maps(heat, table.assign(log=np.log10(table["score"])), x="block", y="position", z="log")
    query = table[table["position"] == 56].assign(bar="mass, " + table["choice"])
    read = query[query["choice"] != "left out"]
    draws(marks, read.assign(mark=read["choice"] + ", read"), by="mark", x="block", y="position")
    draws(bars, query, by="bar", x="block", y="mass")


def test_the_bars_of_all_ways_to_choose(draws):
    mass = torch.tensor([0.3, 0.1, 0.05, 0.15, 0.2, 0.2])[None, None, None]
    scores = {"query": torch.tensor([4.0, 1.0, 2.5, 3.0, 0.0, 1.5])[None, None, None]}
    rule = Sparsity(3, block_size=16, local_blocks=0)
    seen = Choices("", scores, mass, torch.tensor([90]), ["x"], ["t"] * 6, rule)
    table = block_choices.choices_table(seen, block_choices.At(budget_blocks=3))
    figure = block_choices.choices_figure(table, where="here")
    drawn = [trace for trace in figure.data if not trace.showlegend]
    table = table.assign(drawn=np.maximum(table["height"].round(3), 0.02), above=lambda t: t["drawn"] + 0.13)
    for name, bar, marks in zip(("query", "oracle"), drawn[::2], drawn[1::2], strict=True):
        part = table[table["selector"] == name]
        draws([bar], {None: part}, x="block", y="drawn")
        draws([marks], {None: part[part["missed"]]}, x="block", y="above")
    assert table["missed"].any()


def test_memory_against_context_and_rates_against_batch(draws):
    table = kv_math.memory_table(SHAPE, RULE, contexts=(8192, 131_072), batches=(1, 16))
    draws(kv_math.memory_figure(table), table, by="series", x="context_tokens", y="gib")
    table = kv_math.decode_table(SHAPE, RULE, n_tokens=131_072, batches=(4, 16), hit_rates=(0.89,))
    draws(kv_math.decode_figure(table), table, by="series", x="batch", y="tokens_per_s")
    table = kv_math.roofline_table(SHAPE, batches=(1, 64))
    draws(kv_math.roofline_figure(table), table, by="series", x="flop_per_byte", y="tflop_per_s")


def test_a_scenarios_memory_and_times(draws):
    table = kv_scenario.scenario_table(kv_scenario.Scenario(batch=4))
    memory, time = (table[table["panel"] == name] for name in ("memory", "time"))
    figure = kv_scenario.scenario_figure(kv_scenario.Scenario(batch=4))
    draws(figure.select_traces(col=1), memory, by="part", x="item", y="value")
    (bars,) = figure.select_traces(col=2)
    assert list(bars.y) == time["value"].tolist()
    assert [label.replace("<br>", " ") for label in bars.x] == time["item"].tolist()


@pytest.fixture
def choices():
    levels = {"query": 0.5, "proxy": 0.45, "oracle": 0.9, "Forecast": 0.6}
    rows = [
        (name, layer, head, level + layer / 50 + head / 30, 0.3 + level / 7 + layer / 9)
        for name, level in levels.items()
        for layer in range(3)
        for head in range(2)
    ]
    return pd.DataFrame(rows, columns=["series", "layer", "head", "mass_recall", "agreement"])


def test_recall_while_a_forecast_learns(draws, choices):
    rows = [(step, layer, 0.4 + step / 90 + layer / 70) for layer in (1, 2) for step in (0, 5, 10)]
    learned = pd.DataFrame(rows, columns=["step", "layer", "mass_recall"])
    figure = forecast.training_figure(learned, choices, where="here")
    means = choices.groupby(["series", "layer"])["mass_recall"].mean()
    for col, layer in enumerate((1, 2), 1):
        wanted = {"Forecast": learned[learned["layer"] == layer]}
        for name in ("query", "proxy", "oracle"):
            wanted[name] = pd.DataFrame({"step": [0, 10], "mass_recall": means[name, layer]})
        draws(figure.select_traces(col=col), wanted, x="step", y="mass_recall")


def test_recall_layer_by_layer_and_what_is_gained(draws, choices):
    means = choices.groupby(["series", "layer"], as_index=False)["mass_recall"].mean()
    draws(forecast.layers_figure(choices, where="here"), means, by="series", x="layer", y="mass_recall")
    rows = [(t, n, 0.1 * n, 0.1 * n - 0.01, 0.1 * n + 0.03) for t in ("one", "two") for n in (0, 1)]
    gains = pd.DataFrame(rows, columns=["text", "layer", "gain", "low", "high"])
    beside = gains.assign(x=gains["layer"] + 0.2 * (gains["text"] == "two"))
    figure = forecast.gain_figure(gains, where="here")
    draws(figure, beside, by="text", x="x", y="gain", error_y=("low", "high"))


def test_gaps_and_agreement_with_the_query(draws, maps, choices):
    gaps = forecast.gap_table(choices)
    for heat, column in zip(forecast.gap_figure(gaps, where="here").data, ("gap", "closed"), strict=True):
        maps(heat, gaps.assign(name=gaps["head"].astype(str)), x="layer", y="name", z=column)
    points = forecast.yardstick_table(choices)
    figure = forecast.yardstick_figure(points, where="here")
    draws(figure, points, by="series", x="agreement", y="gain")


def test_the_parts_of_the_recipe(draws):
    rows = [
        ("difference", "a suite, published", "", 1.5), ("difference", "mass recall, k 8", "8", 0.5),
        ("gap closed", "ours", "8", 0.4), ("gap closed", "coarse", "8", 0.1),
        ("gap closed", "ours", "16", 0.3),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["panel", "name", "budget_blocks", "value"])
    figure = forecast_ablation.figure(table, where="here")
    names = ["published", "ours", "k 8", "k 8", "k 16"]
    draws(figure, table.assign(bar=names), by="bar", x="value", y="name")


def test_the_timeline_of_a_step(draws):
    step = Prefetch(batch=32, n_layers=4)
    table = prefetch_timeline.timeline_table(step)
    drawn = prefetch_timeline.timeline_figure(step)
    wanted = {kind: table[table["kind"] == kind] for kind in prefetch_timeline.LOOKS}
    draws(drawn, wanted, x="us", y="stream")
    for bars in drawn.data:
        assert list(bars.base) == wanted[bars.name]["start_us"].round(1).tolist()


def test_stall_and_rate_against_batch(draws):
    states = [Prefetch(transport=name) for name in ("demand", "lookahead")]
    table = prefetch_timeline.batch_table(states, batches=(16, 64))
    table["share"] = 100 * table["stall_ms"] / table["step_ms"]
    figure = prefetch_timeline.batch_figure(table, Prefetch())
    draws(figure.select_traces(col=1), table, by="transport", x="batch", y="share")
    draws(figure.select_traces(col=2), table, by="transport", x="batch", y="tokens_per_s")


def test_the_measured_rate_of_the_gather_and_its_fitted_curves(draws):
    rows = [("uva", beside, c, 9.0 * c + place, 1.5 + c / 10)
            for place, beside in enumerate(("alone", "ffn")) for c in (1, 4)]  # fmt: skip
    rows.append(("copy_engine", "ffn", 0, 53.0, 1.04))
    columns = ["transport", "beside", "n_ctas", "gb_per_s", "slowdown"]
    table = pd.DataFrame(rows, columns=columns)
    figure = transfer.curves_figure(table, ASSUMED_LINK, where="here")
    place = table.assign(
        x=table["n_ctas"].replace(0, transfer.ENGINE), slow=100 * (table["slowdown"] - 1),
        name=table["beside"] + ", measured",
    )  # fmt: skip
    at = pd.DataFrame({"x": [1, 4]})
    model_of = {
        "alone, model": ASSUMED_LINK.idle,
        "ffn, model": ASSUMED_LINK.bandwidth,
        "slow-down of a layer, model": lambda c: 100 * (ASSUMED_LINK.slowdown(c) - 1),
    }
    curves = {name: at.assign(y=[of(c) for c in (1, 4)]) for name, of in model_of.items()}
    for col, value, names in ((1, "gb_per_s", list(model_of)[:2]), (2, "slow", list(model_of)[2:])):
        measured = (place if col == 1 else place[place["beside"] != "alone"]).groupby("name")
        wanted = {name: rows.assign(y=rows[value]) for name, rows in measured}
        draws(figure.select_traces(col=col), wanted | {name: curves[name] for name in names}, x="x", y="y")


def test_the_time_of_a_layer_over_the_best(draws):
    table = transfer.ctas_table(ASSUMED_LINK, batches=(4, 16))
    best = table.groupby("batch")["layer_us"].transform("min")
    table = table.assign(ratio=table["layer_us"] / best, name=[f"batch {b}" for b in table["batch"]])
    rule = table[table["paper"]].assign(name=lambda t: "paper's rule, " + t["name"])
    assert table["ratio"].min() == 1
    draws(transfer.ctas_figure(table), pd.concat([table, rule]), by="name", x="n_ctas", y="ratio")
