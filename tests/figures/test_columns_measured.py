"""Chapters 05 to 07 and the published tables: each figure draws the columns of its table."""

from __future__ import annotations

import pytest

from sparda.evaluation.accuracy import AVERAGE
from sparda.figures import (
    accuracy,
    accuracy_needle,
    attention_time,
    cache_slots,
    offloaded_decode,
    prefill_rates,
    published_figures,
    what_if,
)
from sparda.figures.published_tables import NO_ROOM, Beside

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")

LIMITS = ("low", "high")


@pytest.mark.parametrize(("phase", "scale"), [("decode", 1), ("prefill", 1000)])
def test_attention_time_by_part_and_the_floor(draws, phase, scale):
    rows = [
        (origin, system, context, part, (2 if origin == "engine" else 1) * (10 * i + j + context / 1e4))
        for origin in ("modelled", "engine")
        for context in (32_768, 131_072)
        for i, system in enumerate(("Dense", "SparDA"), 1)
        for j, part in enumerate(("selection", "attention"))
    ]
    table = pd.DataFrame(rows, columns=attention_time.COLUMNS)
    table = table.assign(at=[f"{n // 1024}K" for n in table["context"]], y=table["us"] / scale)
    floors, bars = (table[table["origin"] == origin] for origin in ("modelled", "engine"))
    total = floors.groupby(["at", "system", "context"], sort=False, as_index=False)["y"].sum()
    figure = attention_time.time_figure(table, phase=phase, where="here")
    drawn = pd.concat([bars, total.assign(part="floor, modelled")])
    draws(figure, drawn, by="part", x=("at", "system"), y="y")
    draws(attention_time.time_figure(floors, phase=phase), floors, by="part", x=("at", "system"), y="y")


def test_floors_and_rates_of_prefill_against_context(draws):
    rows = [(name, n, n / 1e5 + place) for place, name in enumerate(("a", "b")) for n in (32_768, 65_536)]
    table = pd.DataFrame(rows, columns=["series", "context", "us"])
    draws(attention_time.growth_figure(table), table, by="series", x="context", y="us")
    rows = [
        (origin, system, n, n / 8 + place)
        for place, origin in enumerate(("modelled", "published", "measured"))
        for system in ("Dense", "SparDA")
        for n in (32_768, 65_536)
    ]
    table = pd.DataFrame(rows, columns=["origin", "system", "context", "tokens_per_s"])
    table["name"] = table["system"] + ", " + table["origin"].replace("modelled", "ceiling")
    figure = prefill_rates.throughput_figure(table, where="here")
    draws(figure, table, by="name", x="context", y="tokens_per_s")


@pytest.fixture
def decode():
    rows = [
        (origin, system, batch, 1000.0 * place + 10 * index + batch)
        for place, origin in enumerate(("modelled", "published", "measured"), 1)
        for index, system in enumerate(offloaded_decode.LADDER)
        for batch in (64, 4)
    ]
    return pd.DataFrame(rows, columns=offloaded_decode.COLUMNS)


def test_decode_against_batch(draws, decode):
    table = decode[decode["system"] != "SparDA, no prefetch"]
    table = table.assign(system=table["system"].mask(table["origin"] == "modelled", "ceiling"))
    table = table.drop_duplicates(["origin", "system", "batch"]).sort_values("batch")
    table["name"] = table["system"] + ", " + table["origin"]
    figure = offloaded_decode.throughput_figure(table, where="here")
    draws(figure, table, by="name", x="batch", y="tokens_per_s")


def test_the_parts_of_a_gain_and_a_better_hit_rate(draws, decode):
    table = decode.sort_values("batch", kind="stable")
    table["group"] = [f"batch {batch}" for batch in table["batch"]]
    table["step"] = table["system"].replace("SparDA, no prefetch", "no<br>prefetch")
    figure = offloaded_decode.gain_figure(table, where="here")
    draws(figure, table, by="origin", x=("group", "step"), y="tokens_per_s")
    rows = [
        (o, b, h, 7 * b + h + len(o)) for o in ("modelled", "measured") for b in (4, 16) for h in (0.5, 1.0)
    ]
    table = pd.DataFrame(rows, columns=["origin", "batch", "hit_rate", "tokens_per_s"])
    names = table["origin"].replace("modelled", "ceiling")
    table["name"] = "batch " + table["batch"].astype(str) + ", " + names
    figure = offloaded_decode.hit_rate_figure(table, where="here")
    draws(figure, table, by="name", x="hit_rate", y="tokens_per_s")


def test_other_cards_and_more_slots(draws):
    rows = [(card, b, 10.0 * b + place, "link") for place, card in enumerate(("a", "b")) for b in (4, 16)]
    table = pd.DataFrame(rows, columns=["card", "batch", "tokens_per_s", "limit"])
    draws(what_if.hardware_figure(table), table, by="card", x="batch", y="tokens_per_s")
    rows = [
        (f"{slots} slots", layer, slots, slots / 20 + layer / 90) for slots in (8, 12) for layer in (1, 2)
    ]
    table = pd.DataFrame(rows, columns=["name", "layer", "slots", "hit_rate"])
    draws(cache_slots.slots_figure(table), table, by="name", x="layer", y="hit_rate")


def test_rates_and_hit_rates_over_slots(draws):
    rows = [
        ("SparDA", batch, slots, slots / 200, 7.0 * slots * batch, 9.0, 11.0 * slots * batch)
        for batch in (4, 16)
        for slots in (96, 144)
    ]
    table = pd.DataFrame(rows, columns=[*cache_slots.KEPT, "bound_tokens_per_s"])
    figure = cache_slots.recorded_figure(table, where="here")
    draws(figure.select_traces(col=1), {"hit rate": table.head(2)}, x="cache_slots", y="hit_rate")
    table["name"] = [f"batch {batch}" for batch in table["batch"]]
    rates = table.assign(name="SparDA, " + table["name"], y=table["tokens_per_s"])
    bounds = table.assign(name="ceiling, " + table["name"], y=table["bound_tokens_per_s"])
    draws(figure.select_traces(col=2), pd.concat([rates, bounds]), by="name", x="cache_slots", y="y")


@pytest.fixture
def answers():
    """Two methods on two tasks and their average at two contexts; low and high are the limits in percent."""
    rows = [
        (context, 0.125, method, task, 0.1 * i + 0.05 * j + context / 1e5)
        for context in (4096, 8192)
        for i, method in enumerate(("sparse", "sparda"), 1)
        for j, task in enumerate(("niah_a", "niah_b", AVERAGE))
    ]
    table = pd.DataFrame(rows, columns=["context", "share", "method", "task", "accuracy"])
    value = table["accuracy"]
    table = table.assign(ci_low=value - 0.02, ci_high=value + 0.05, y=100 * value, low=100 * value - 2)
    return table.assign(high=table["y"] + 5, name=table["method"].map(accuracy.LABELS))


def test_answers_task_by_task(draws, answers):
    shift = answers["method"].map({"sparse": -0.055, "sparda": 0.055})
    place = answers["task"].map({"niah_a": 0, "niah_b": 1, AVERAGE: 2})
    table = answers.assign(x=place + shift)
    figure = accuracy.task_figure(answers, where="here")
    for row, context in enumerate((4096, 8192), 1):
        part = table[table["context"] == context]
        draws(figure.select_traces(row=row, col=1), part, by="name", x="x", y="y", error_y=LIMITS)


def test_averages_against_context(draws, answers):
    table = answers[answers["task"] == AVERAGE].assign(panel="ours")
    figure = accuracy.context_figure(table, where="here")
    draws(figure, table, by="name", x="context", y="y", error_y=LIMITS)


def test_paired_differences(draws, answers):
    ours = answers.rename(columns={"accuracy": "difference", "method": "baseline", "y": "x"})
    shift = ours["baseline"].map({"sparse": -0.1, "sparda": 0.1})
    place = ours["task"].map({"niah_a": 0, "niah_b": 1, AVERAGE: 2})
    table = ours.assign(y=-place - shift, name="SparDA − " + ours["name"])
    figure = accuracy.pair_figure(ours, where="here")
    for col, context in enumerate((4096, 8192), 1):
        part = table[table["context"] == context]
        draws(figure.select_traces(col=col), part, by="name", x="x", y="y", error_x=LIMITS)


def test_answers_against_recall(draws, answers):
    table = answers[answers["task"] == AVERAGE].assign(mass_recall=[0.5, 0.6, 0.7, 0.85])
    traces = accuracy.recall_figure(table, where="here").data
    marks = [trace for trace in traces if trace.mode == "markers"]
    draws(marks, table, by="name", x="mass_recall", y="y", error_y=LIMITS)
    lines = [trace for trace in traces if trace.mode == "lines"]
    for line, (_, part) in zip(lines, table.groupby("context"), strict=True):
        draws([line], {None: part}, x="mass_recall", y="y")


def test_mass_on_the_needle(draws):
    rows = [
        (4096, 8, hay, method, layer, 0.4 + layer / 10, 0.1 + layer / 20 + len(method) / 100)
        for hay in accuracy_needle.HAYS
        for method in ("sparse", "sparda")
        for layer in (0, 1)
    ]
    columns = ["context", "budget_blocks", "hay", "method", "layer", "mass", "caught"]
    table = pd.DataFrame(rows, columns=columns)
    table = table.assign(missed=table["mass"] - table["caught"])
    figure = accuracy_needle.needle_figure(table, where="here")
    for row, (method, label) in enumerate((("sparse", "Sparse"), ("sparda", "SparDA")), 1):
        for col, hay in enumerate(accuracy_needle.HAYS, 1):
            part = table[(table["method"] == method) & (table["hay"] == hay)]
            wanted = {f"caught by {label}": 100 * part["caught"], "missed": 100 * part["missed"]}
            wanted = {name: part.assign(y=y) for name, y in wanted.items()}
            draws(figure.select_traces(row=row, col=col), wanted, x="layer", y="y")


def test_what_exchanging_a_layer_gains(draws):
    rows = [
        (4096, 8, "sparda", task, layer, gain, gain - 0.1, gain + 0.3)
        for task, base in (("a", 0.5), ("b", -0.5))
        for layer, gain in (("0", base), ("1", 2 * base), ("all", 3 * base))
    ]
    columns = ["context", "budget_blocks", "method", "task", "layer", "gain", "gain_low", "gain_high"]
    table = pd.DataFrame(rows, columns=columns)
    figure = accuracy_needle.exchange_figure(table, where="here")
    for col, (_, part) in enumerate(table.groupby("task"), 1):
        bar, line = figure.select_traces(col=col)
        single = part[part["layer"] != "all"].assign(x=[0, 1])
        draws([bar], {bar.name: single}, x="x", y="gain", error_y=("gain_low", "gain_high"))
        assert list(line.y) == 2 * part.loc[part["layer"] == "all", "gain"].tolist()


@pytest.fixture
def beside():
    rows = [
        (origin, system, x, 100.0 * place + 10 * index + x, "ok")
        for place, origin in enumerate(("measured", "published"))
        for index, system in enumerate(("SparDA", "Sparse"))
        for x in (4, 64)
    ]
    return pd.DataFrame(rows, columns=["origin", "system", "x", "value", "status"])


LOOK = {"title": "a title", "note": "a note"}


def test_published_lines_and_what_had_no_room(draws, beside):
    failed = pd.DataFrame([("published", "Dense", 8, None, NO_ROOM)], columns=beside.columns)
    table = pd.concat([beside, failed]).astype({"value": float})
    figure = published_figures.lines(Beside(table, "here"), x="batch", y="tokens/s", **LOOK)
    beside["name"] = beside["system"] + ", " + beside["origin"].map(published_figures.LOOK)
    crosses = [trace for trace in figure.data if trace.name == NO_ROOM]
    draws([t for t in figure.data if t.name != NO_ROOM], beside, by="name", x="x", y="value")
    assert [list(cross.x) for cross in crosses] == [[8]]


def test_published_bars_and_ratios(draws, beside):
    figure = published_figures.bars(Beside(beside, "here"), y="tokens/s", by="batch", **LOOK)
    table = beside.assign(
        group=[f"batch {x}" for x in beside["x"]], name=beside["origin"].map(published_figures.LOOK)
    )
    order = table.assign(later=table["system"] == "SparDA").sort_values(["x", "later"], kind="stable")
    draws(figure, order, by="name", x=("group", "system"), y="value")
    some = table[table["x"] == 4]
    figure = published_figures.ratios(Beside(some, "here"), x="times", **LOOK)
    draws(figure, some, by="name", x="value", y="system")


def test_published_accuracies(draws, beside):
    table = beside.assign(x=["A", "B"] * 4).drop_duplicates(["system", "x"])
    figure = published_figures.accuracies(Beside(table, "here"), y="%", **LOOK)
    wanted = {method: table[table["system"] == method] for method in published_figures.METHODS}
    draws(figure, wanted, x="x", y="value")
