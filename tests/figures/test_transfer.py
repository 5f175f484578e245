"""The figures of chapter 04 draw what their tables say."""

from __future__ import annotations

import pytest

from sparda import linkmodel
from sparda.figures.prefetch_timeline import (
    batch_figure,
    batch_table,
    steps_figure,
    steps_table,
    timeline_figure,
    timeline_table,
)
from sparda.figures.transfer import ENGINE, ctas_figure, ctas_table, curves_figure, paper_ctas
from sparda.prefetch import ASSUMED_LINK, Prefetch
from sparda.timeline import Event, Step

pytest.importorskip("plotly")
pd = pytest.importorskip("pandas")


def test_the_timeline_accounts_for_every_microsecond_of_compute():
    table = timeline_table(Prefetch(batch=32, n_layers=6))
    compute = table[table["stream"] == "compute"]
    assert compute["us"].sum() == pytest.approx((compute["start_us"] + compute["us"]).max())


def test_the_title_of_the_timeline_names_stall_and_rate():
    figure = timeline_figure(Prefetch(batch=64))
    assert "stall" in figure.layout.title.text
    assert "tok/s" in figure.layout.title.text
    assert figure.layout.meta["status"] == "simulated"


def test_a_measured_step_is_drawn_by_the_same_function_with_its_own_stamp():
    events = (
        Event("layer", 0, 0, 100), Event("prep", 1, 20, 40, beside=True), Event("attention", 0, 30, 60),
        Event("layer", 1, 100, 200), Event("transfer", 1, 45, 130, beside=True), Event("wait", 1, 120, 132),
    )  # fmt: skip
    figure = timeline_figure(Step(events, {"device": "a card", "date": "a day", "commit": "c0"}))
    assert figure.layout.title.text == "200 us in the layers, 5 % of it stall"
    assert figure.layout.meta["status"] == "measured"
    assert "a card · a day · commit c0" in figure.layout.meta["stamp"]
    assert figure.layout.yaxis.categoryarray == ("link", "ahead", "compute")
    drawn = {bar.name: sum(bar.x) for bar in figure.data}
    assert (drawn["stall"], drawn["copy"], drawn["attention"], drawn["other"]) == (10, 85, 30, 160)


def test_measured_steps_stand_below_each_other_on_one_axis_of_time():
    about = {"device": "a card", "date": "a day", "commit": "c0"}
    slow = Step(
        (Event("layer", 0, 0, 300), Event("transfer", 0, 40, 140), Event("attention", 0, 150, 250)), about
    )
    quick = Step((Event("layer", 0, 0, 100), Event("attention", 0, 20, 60)), about)
    steps = {"slow": slow, "quick": quick}
    figure = steps_figure(steps, note="invented")
    assert [text.text for text in figure.layout.annotations] == [
        "slow: 300 us in the layers, 33 % of it stall", "quick: 100 us in the layers, 0 % of it stall"
    ]  # fmt: skip
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range == (0, 300)
    names = [bar.name for bar in figure.data if bar.showlegend]
    assert len(names) == len(set(names))  # one legend for both
    assert figure.layout.meta["stamp"] == "measured · a card · a day · commit c0 · invented"
    table = steps_table(steps)
    assert table.groupby("system")["us"].sum().to_dict() == {"quick": 100, "slow": 400}  # the copy too


def test_the_simulation_knows_no_other_work():
    assert "other" not in {bar.name for bar in timeline_figure(Prefetch(n_layers=5)).data}


def test_a_step_without_transfer_has_no_stall():
    table = batch_table([Prefetch(transport="none")], batches=(1, 16))
    assert (table["stall_ms"] == 0).all()
    assert batch_figure(table, Prefetch()).data[0].name == "none"


def test_each_batch_has_one_pick_and_one_published_count():
    table = ctas_table(ASSUMED_LINK)
    assert (table.groupby("batch")[["best", "paper"]].sum() == 1).all(axis=None)
    assert [paper_ctas(batch) for batch in (16, 31, 32)] == [16, 16, 32]
    assert ctas_figure(table).layout.meta["status"] == "modelled"


def test_measured_curves_carry_the_stamp_of_their_run():
    counts = (1, 4, 16)
    rows = [("uva", "ffn", c, ASSUMED_LINK.bandwidth(c), ASSUMED_LINK.slowdown(c)) for c in counts]
    columns = ["transport", "beside", "n_ctas", "gb_per_s", "slowdown"]
    figure = curves_figure(pd.DataFrame(rows, columns=columns), ASSUMED_LINK, where="a device · a day")
    assert figure.layout.meta["status"] == "measured"
    assert "a device" in figure.layout.meta["stamp"]


def test_the_worst_slow_down_and_the_copy_engine_are_drawn():
    rows = [("uva", "attention", 1, 9.0, 1.05), ("uva", "attention", 32, 46.0, 3.2)]
    rows += [("uva", "attention", 8, 40.0, 1.1), ("copy_engine", "attention", 0, 53.0, 1.04)]
    columns = ["transport", "beside", "n_ctas", "gb_per_s", "slowdown"]
    figure = curves_figure(pd.DataFrame(rows, columns=columns), ASSUMED_LINK, where="a device")
    slow = next(trace for trace in figure.data if trace.xaxis == "x2" and trace.mode == "markers")
    assert figure.layout.yaxis2.type == "log"
    assert figure.layout.yaxis2.range is None
    assert max(slow.y) == pytest.approx(220)
    assert min(slow.x) == ENGINE


def test_the_gain_shows_as_stall_and_as_rate():
    table = batch_table([Prefetch(transport=t) for t in ("demand", "lookahead")], batches=(16, 64))
    figure = batch_figure(table, Prefetch())
    assert [figure.layout[axis].title.text for axis in ("yaxis", "yaxis2")] == [
        "stall, % of the step",
        "tok/s",
    ]
    demand, ahead = (part["tokens_per_s"] for _, part in table.groupby("transport", sort=False))
    assert (ahead.values > demand.values).all()


def test_copies_of_neighbouring_layers_differ_in_shade():
    figure = timeline_figure(Prefetch(n_layers=5))
    copies = next(bar for bar in figure.data if bar.name == "copy")
    assert all(a != b for a, b in zip(copies.marker.opacity, copies.marker.opacity[1:], strict=False))
    assert figure.layout.template.data.bar[0].marker.line.width == 1


def test_an_unmeasured_device_gives_nothing(tmp_path):
    assert linkmodel.measured("no-such-device", tmp_path) is None
