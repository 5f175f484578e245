"""The figures of chapter 05 draw what their tables say, with and without measurements."""

from __future__ import annotations

import pytest

from sparda.figures import attention_time as figures
from sparda.figures import benchmarks, prefill_rates
from sparda.figures.benchmarks import named
from sparda.figures.measured import Run
from sparda.linkmodel import DATA
from sparda.spec import model, sparsity

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")

SHAPE, RULE = model("minicpm4.1-8b"), sparsity("minicpm4.1-8b")
CONTEXTS = (32_768, 131_072)
WHERE = "a device · a day · commit abc"
POINTS = (("all", "none"), ("query", "demand"), ("forecast", "lookahead"))


def a_breakdown() -> Run:
    """Made-up times: 1 us more for every row."""
    columns = ["selector", "transport", "cache_slots", "context", "batch", "phase", "part"]
    rows = [
        (selector, transport, 96, 131_072, batch, phase, part)
        for selector, transport in POINTS
        for phase, batch in (("prefill", 1), ("decode", 4), ("decode", 16))
        for part in ("projection", "selection", "attention", "wait")
    ]
    table = pd.DataFrame(rows, columns=columns).assign(status="ok", attention="sparse_decode")
    return Run(named(table.assign(us_per_layer=range(1, len(table) + 1))), WHERE)


def floors(phase: str):
    return figures.floor_table(SHAPE, RULE, phase=phase, contexts=CONTEXTS, batch=4)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_without_measurements_the_bars_are_the_floors_and_modelled(phase):
    table = floors(phase)
    figure = figures.time_figure(table, phase=phase)
    assert figure.layout.meta["status"] == "modelled"
    drawn = sum(sum(bar.y) for bar in figure.data)
    assert drawn * (1 if phase == "decode" else 1e3) == pytest.approx(table["us"].sum())


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_engines_rows_win_over_kernels_alone(phase):
    kernels = pd.read_csv(DATA / "nvidia-h200" / "kernels.csv")
    alone = figures.measured_table(None, kernels, phase=phase)
    assert set(alone["origin"]) == {"kernels"}
    both = figures.measured_table(a_breakdown(), kernels, phase=phase)
    assert set(both["origin"]) == {"engine"}
    assert len(both) == 9  # three systems, three parts: projections are not attention
    assert not both.duplicated(["system", "context", "part"]).any()


def test_a_system_without_offloading_stands_in_only_where_the_other_is_missing():
    run = a_breakdown()
    bare = run.rows[run.rows["system"] == "Sparse"].assign(system="Sparse, no offload", us_per_layer=1e6)
    both = figures.measured_table(Run(pd.concat([bare, run.rows]), WHERE), phase="decode")
    assert both["us"].max() < 1e6
    rest = run.rows[run.rows["system"] != "Sparse"]
    stand_in = figures.measured_table(Run(pd.concat([bare, rest]), WHERE), phase="decode")
    assert (stand_in.loc[stand_in["system"] == "Sparse", "us"] == 1e6).all()


def test_rows_of_another_batch_are_left_out():
    table = figures.measured_table(a_breakdown(), phase="decode", batch=32)
    assert len(table) == 0


def test_dense_by_cudnn_is_not_mixed_with_dense_by_flash():
    run = a_breakdown()
    twice = pd.concat([run.rows, run.rows.assign(attention="cudnn", us_per_layer=1e6)])
    table = figures.measured_table(Run(twice, WHERE), phase="prefill")
    assert table["us"].max() < 1e6


def test_the_nearest_measured_batch_is_taken():
    assert [figures.nearest_batch(a_breakdown(), batch) for batch in (1, 4, 8, 10, 64)] == [4, 4, 4, 16, 16]


def test_measured_bars_carry_their_run_and_the_floor_is_a_mark():
    table = pd.concat([floors("decode"), figures.measured_table(a_breakdown(), phase="decode")])
    figure = figures.time_figure(table, phase="decode", where=WHERE, note="a model")
    assert figure.layout.meta["status"] == "measured"
    assert figure.layout.meta["stamp"].startswith(f"measured · {WHERE}; floors")
    marks = next(trace for trace in figure.data if trace.type == "scatter")
    assert len(marks.y) == len(CONTEXTS) * 3
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == ["selection", "attention", "wait"]
    assert len({bar.marker.pattern.shape for bar in bars}) == 3


def test_the_ceiling_of_prefill_is_above_all_published_rates_of_its_system():
    table = prefill_rates.throughput_table(SHAPE, RULE, None, contexts=(32_768, 65_536, 98_304, 131_072))
    rates = table.pivot(index=["system", "context"], columns="origin", values="tokens_per_s")
    assert (rates["published"] < rates["modelled"]).all()
    assert prefill_rates.throughput_figure(table).layout.meta["status"] == "modelled"


def test_our_prefill_names_the_backend_of_dense():
    columns = ["selector", "attention", "context", "tokens_per_s", "status"]
    rows = [
        ("all", "flash", 131_072, 9e3, "ok"),
        ("all", "cudnn", 131_072, 1.2e4, "ok"),
        ("forecast", "sparse_prefill", 131_072, 1.9e4, "ok"),
        ("query", "sparse_prefill", 131_072, float("nan"), "out of memory: an example"),
    ]
    run = Run(named(pd.DataFrame(rows, columns=columns)), WHERE)
    table = prefill_rates.throughput_table(SHAPE, RULE, run, contexts=CONTEXTS)
    ours = table[table["origin"] == "measured"]
    assert dict(zip(ours["system"], ours["tokens_per_s"], strict=True)) == {
        "Dense": 9e3,
        "Dense, cuDNN": 1.2e4,
        "SparDA": 1.9e4,
    }
    figure = prefill_rates.throughput_figure(table, where=WHERE)
    assert figure.layout.meta["status"] == "measured"
    assert "SparDA, measured" in {trace.name for trace in figure.data}


def test_selection_grows_and_attention_over_k_blocks_does_not():
    table = figures.growth_table(SHAPE, RULE, contexts=[2**p for p in range(15, 21)])
    lines = table.pivot(index="context", columns="series", values="us")
    assert lines["selection, Sparse"].is_monotonic_increasing
    flat = lines["attention, chosen blocks"]
    assert flat.max() / flat.min() < 1.15
    assert figures.growth_figure(table).layout.meta["status"] == "modelled"


def test_the_stamp_names_the_commits_of_the_bars_and_not_of_other_batches():
    run = benchmarks.read("breakdown")
    assert run is not None
    kernels = pd.read_csv(DATA / "nvidia-h200" / "kernels.csv")
    bars = figures.measured_table(run, kernels, phase="decode", batch=16)
    floor = figures.floor_table(SHAPE, RULE, phase="decode", contexts=sorted(set(bars["context"])))
    figure = figures.time_figure(pd.concat([floor, bars]), phase="decode", where=run.where)
    drawn = set(run.rows.loc[run.rows["batch"] == 16, "commit"])
    for commit in set(run.rows["commit"]):
        assert (commit in figure.layout.meta["stamp"]) == (commit in drawn)
