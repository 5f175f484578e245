"""The figures of chapter 06 draw what their tables say, with and without measurements."""

from __future__ import annotations

import pytest

from sparda.figures import offloaded_decode as figures
from sparda.figures import what_if
from sparda.figures.benchmarks import named
from sparda.figures.measured import Run
from sparda.spec import HARDWARE, model, sparsity

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")

SHAPE, RULE = model("minicpm4.1-8b"), sparsity("minicpm4.1-8b")
OF = {"shape": SHAPE, "sparsity": RULE, "n_tokens": 131_072}
WHERE = "a device · a day · commit abc"
POINTS = (("query", "demand"), ("forecast", "demand"), ("forecast", "lookahead"))


def a_run(cap: float = float("nan"), choices: str = "replayed") -> Run:
    """Made-up rates: the position in the ladder, times the batch, times the hit rate."""
    columns = ["selector", "transport", "batch", "hit_rate", "tokens_per_s"]
    rows = [
        (*point, batch, hit_rate, 100.0 * (place + 1) * batch * hit_rate)
        for place, point in enumerate(POINTS)
        for batch in (1, 4, 16, 64)
        for hit_rate in (0.5, 0.89, 1.0)
    ]
    rows.append(("all", "none", 4, 1.0, 50.0))
    table = pd.DataFrame(rows, columns=columns)
    same = {"cache_slots": 96, "budget_blocks": 96, "context": 131_072, "status": "ok"}
    same |= {"gpu_memory_gib": cap, "choices": choices, "host_layers_per_store": 1}
    return Run(named(table.assign(**same)), WHERE)


def test_the_floors_are_the_check_values_of_the_bound():
    ms = [1e3 * figures.bound_of(**OF, batch=b, hit_rate=0.89).seconds for b in (4, 8, 16, 64)]
    assert ms == pytest.approx([4.72, 5.04, 7.04, 28.2], rel=3e-3)


def test_without_a_run_the_figures_are_modelled_and_hold_the_published_rows():
    rates = figures.throughput_table(**OF, run=None, batches=(4, 16), hit_rate=0.89)
    assert set(rates["origin"]) == {"modelled", "published"}
    assert figures.throughput_figure(rates).layout.meta["status"] == "modelled"
    gains = figures.gain_table(**OF, run=None, hit_rate=0.89)
    assert figures.gain_figure(gains).layout.meta["status"] == "modelled"
    hits = figures.hit_rate_table(**OF, run=None, batches=(4,))
    assert figures.hit_rate_figure(hits).layout.meta["status"] == "modelled"


def test_a_run_makes_them_measured_and_names_itself():
    rates = figures.throughput_table(**OF, run=a_run(), batches=(4, 16), hit_rate=0.89)
    ours = rates[rates["origin"] == "measured"]
    assert sorted(set(ours["system"])) == ["SparDA", "Sparse"]  # dense and no prefetch are other figures'
    assert len(ours) == 8  # one hit rate each
    figure = figures.throughput_figure(rates, where=WHERE)
    assert figure.layout.meta["status"] == "measured"
    assert WHERE in figure.layout.meta["stamp"]
    assert "hit rate not stated" in figure.layout.meta["stamp"]


def test_rows_under_a_memory_cap_stand_for_another_card_and_are_left_out():
    rates = figures.throughput_table(**OF, run=a_run(cap=80.0), batches=(4,), hit_rate=0.89)
    assert "measured" not in set(rates["origin"])


def test_rows_whose_layers_share_host_pages_give_way_to_those_that_do_not():
    run = a_run()
    shared = run.rows.assign(host_layers_per_store=4, tokens_per_s=1.0)
    rows = figures.measured(Run(pd.concat([shared, run.rows]), WHERE), n_tokens=131_072, hit_rate=0.89)
    assert len(rows) == len(figures.measured(run, n_tokens=131_072, hit_rate=0.89))
    assert rows["tokens_per_s"].min() > 1


def test_the_parts_of_a_gain_come_from_runs_that_shared_host_pages_alike():
    rows = a_run().rows
    large = rows["batch"] == 64
    own = rows[~(large & (rows["system"] == "SparDA, no prefetch"))]  # one part is missing
    shared = rows[large].assign(host_layers_per_store=4, tokens_per_s=lambda t: t["tokens_per_s"] / 2)
    run = Run(pd.concat([own, shared]), WHERE)
    gains = figures.gain_table(**OF, run=run, hit_rate=0.89)
    ours = gains[gains["origin"] == "measured"].pivot(index="batch", columns="system", values="tokens_per_s")
    assert ours.loc[64, "SparDA"] == pytest.approx(ours.loc[16, "SparDA"] * 2)  # 4 x the batch, half the rate
    assert ours.loc[64].notna().all()


def test_recorded_choices_are_no_point_at_an_assumed_hit_rate():
    rates = figures.throughput_table(**OF, run=a_run(choices="recorded"), batches=(4,), hit_rate=0.89)
    assert "measured" not in set(rates["origin"])


def test_the_published_factors_are_those_of_table_10():
    factors = figures.factor_table(figures.gain_table(**OF, run=None, hit_rate=0.89))
    published = factors[factors["origin"] == "published"].set_index("batch")
    assert published["both"].round(2).to_dict() == {4: 1.43, 16: 1.57, 64: 1.27}
    assert published.loc[4, "selector"] == pytest.approx(247.3 / 167.8)
    assert published.loc[64, "batch_gain"] == pytest.approx(1000.1 / 240.2)


def test_factors_multiply_and_by_the_floor_only_overlap_counts():
    factors = figures.factor_table(figures.gain_table(**OF, run=a_run(), hit_rate=0.89))
    assert (factors["selector"] * factors["overlap"]).tolist() == pytest.approx(factors["both"].tolist())
    floor = factors[factors["origin"] == "modelled"]
    assert (floor["selector"] == 1).all()
    assert ((floor["overlap"] > 1) & (floor["overlap"] <= 2)).all()
    ours = factors[factors["origin"] == "measured"].set_index("batch")
    assert ours.loc[16, "selector"] == pytest.approx(2)
    assert ours.loc[16, "overlap"] == pytest.approx(1.5)
    assert ours.loc[64, "batch_gain"] == pytest.approx(16)


def test_a_hit_rate_of_one_is_never_below_another():
    table = figures.hit_rate_table(**OF, run=a_run(), batches=(4, 64))
    modelled = table[table["origin"] == "modelled"].pivot(
        index="batch", columns="hit_rate", values="tokens_per_s"
    )
    assert modelled.max(axis=1).equals(modelled[1.0])
    assert len(table[table["origin"] == "measured"]) == 6
    assert len(figures.hit_rate_figure(table, where=WHERE).data) == 4


def test_a_card_that_is_too_small_has_no_row():
    table = what_if.hardware_table(**OF, cards=HARDWARE, batches=(1, 64), hit_rate=0.89)
    assert set(table.loc[table["card"] == "rtx4090", "batch"]) == {1}
    assert set(table.loc[table["card"] == "a100", "limit"]) == {"memory", "link"}
    figure = what_if.hardware_figure(table)
    assert figure.layout.meta["status"] == "modelled"
    assert len(figure.data) == len(HARDWARE)


def test_a_step_that_was_not_measured_is_named_and_leaves_the_product():
    run = a_run()
    apart = (run.rows["system"] == "SparDA, no prefetch") & (run.rows["batch"] == 64)
    gains = figures.gain_table(**OF, run=Run(run.rows[~apart], WHERE), hit_rate=0.89)
    assert figures.absent(gains) == "not measured: SparDA, no prefetch at batch 64"
    assert figures.absent(gains) in figures.gain_figure(gains, where=WHERE).layout.meta["stamp"]
    ours = figures.factor_table(gains).query("origin == 'measured'").set_index("batch")
    assert ours["overlap"].isna().to_dict() == {4: False, 16: False, 64: True}
    assert ours.loc[64, "both"] == pytest.approx(3)
    assert figures.absent(figures.gain_table(**OF, run=None, hit_rate=0.89)) == ""


def test_a_rate_that_is_not_there_did_not_fit_or_was_not_run():
    rows = [("all", "none", 4, 440.4), ("all", "none", 64, None), ("query", "demand", 4, 512.6)]
    table = pd.DataFrame(rows, columns=["selector", "transport", "batch", "tokens_per_s"])
    table = table.assign(system=table["selector"].map({"all": "Dense", "query": "Sparse"}))
    wide = figures.spelled(table, **OF, memory_gib=141)
    assert wide.loc["Dense"].to_dict() == {4: 440, 64: "does not fit"}
    assert wide.loc["Sparse"].to_dict() == {4: 513, 64: "not run"}
    assert figures.spelled(table, **OF, memory_gib=1000).loc["Dense", 64] == "not run"
