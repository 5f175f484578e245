"""Figures of chapter 01: tidy tables first, then what is drawn from them."""

import pytest

pytest.importorskip("plotly")
pytest.importorskip("pandas")

from sparda.figures import kv_math, kv_scenario
from sparda.figures.kv_scenario import Scenario
from sparda.spec import model, sparsity

SHAPE, RULE = model("minicpm4.1-8b"), sparsity("minicpm4.1-8b")


def memory():
    return kv_math.memory_table(SHAPE, RULE, contexts=(8192, 131_072), batches=(1, 16))


def decode():
    return kv_math.decode_table(SHAPE, RULE, n_tokens=131_072, batches=(4, 16, 64), hit_rates=(0.89, 1.0))


def roofline():
    return kv_math.roofline_table(SHAPE, batches=(1, 64))


@pytest.mark.parametrize(
    ("table", "draw"),
    [
        (memory, kv_math.memory_figure),
        (decode, kv_math.decode_figure),
        (roofline, kv_math.roofline_figure),
    ],
)
def test_every_series_is_drawn_once_and_stamped_modelled(table, draw):
    rows = table()
    figure = draw(rows, note="a note")
    assert [trace.name for trace in figure.data] == list(dict.fromkeys(rows["series"]))
    assert figure.layout.meta["status"] == "modelled"
    assert "a note" in figure.layout.meta["stamp"]
    assert "modelled" in figure.layout.title.subtitle.text


def test_offloaded_memory_lies_below_the_whole_cache():
    pivot = memory().pivot(index="context_tokens", columns="series", values="gib")
    assert (pivot["offloaded, batch 16"] < pivot["all on the GPU, batch 16"]).all()
    assert (pivot["H100 SXM 80 GB"] == 80).all()


def test_the_decode_table_holds_the_reference_bound_and_the_published_row():
    rows = decode().set_index(["series", "batch"])["tokens_per_s"]
    assert rows["bound, hit rate 0.89", 16] == pytest.approx(16 / 7.04e-3, rel=1e-3)
    assert rows["SparDA, published", 64] == 1000.1


def test_published_points_never_exceed_the_bound_at_full_hit_rate():
    rows = decode()
    ceiling = rows[rows["series"] == "bound, hit rate 1"].set_index("batch")["tokens_per_s"]
    points = rows[(rows["origin"] == "published") & rows["batch"].isin(ceiling.index)]
    assert (points["tokens_per_s"].to_numpy() < ceiling[points["batch"]].to_numpy()).all()


def test_a_missed_block_is_used_at_link_speed():
    rows = roofline().set_index("operation")["tflop_per_s"]
    assert rows["resident blocks"] / rows["missed blocks"] == pytest.approx(3600 / 50.8)


def test_labels_of_the_roofline_keep_off_their_marks_and_no_mark_hides_another():
    drawn = {t.name: t for t in kv_math.roofline_figure(roofline()).data}
    for trace in (drawn["weights"], drawn["attention"], drawn["selection"]):
        for text, place in zip(trace.text, trace.textposition, strict=True):
            assert text.endswith("\u2003") if "left" in place else text.startswith("\u2003")
    ring = drawn["selection"].marker
    assert ring.symbol.endswith("-open")
    assert ring.size > max(drawn["weights"].marker.size, drawn["attention"].marker.size)


def test_series_differ_in_more_than_colour():
    lines = [t for t in kv_math.memory_figure(memory()).data if t.showlegend is not False]
    assert len({(t.line.dash, t.marker.symbol) for t in lines}) == len(lines)


def test_a_scenario_prices_memory_and_time():
    rows = kv_scenario.scenario_table(Scenario(batch=16)).set_index(["item", "part"])["value"]
    assert rows["all on the GPU", "K and V"] == 64
    assert rows["all on the GPU", "capacity"] == 80
    assert rows["bound", "time"] == max(rows["move misses", "time"], rows["read memory", "time"])
    assert rows["move all K and V", "time"] == pytest.approx(16 * 2**32 / 64e9 * 1e3)


def test_a_scenario_takes_another_link_than_the_cards():
    slow = Scenario(link_gb_per_s=8.0)
    assert slow.bound().link_s == pytest.approx(8 * Scenario().bound().link_s)
    assert "(link)" in kv_scenario.scenario_title(slow)


def test_a_context_shorter_than_the_budget_misses_only_its_own_blocks():
    assert Scenario(n_tokens=640, hit_rate=0.0).misses == 10
