"""The KV calculator without a browser: set a value, look at the figure."""

import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")
pytest.importorskip("plotly")

from sparda.widgets.kv_calculator import explore_kv


@pytest.fixture
def bars(charts):
    return lambda box: {trace.name: list(trace.y) for trace in charts(box)[0].data}


def test_the_batch_slider_scales_keys_and_values(control, bars):
    box = explore_kv(live=True, batch=4)
    before = bars(box)["K and V"]
    control(box, "batch").value = 8
    assert bars(box)["K and V"] == pytest.approx([2 * y for y in before])


def test_a_slower_link_lengthens_the_step(control, bars, charts):
    box = explore_kv(live=True, batch=64)
    before = bars(box)["one step"]
    control(box, "link, GB/s").value = 16
    after = bars(box)["one step"]
    assert after[0] == pytest.approx(4 * before[0])
    assert after[3] > before[3]
    assert "(link)" in charts(box)[0].layout.title.text


def test_a_higher_hit_rate_moves_fewer_bytes_and_the_same_whole_cache(control, bars):
    box = explore_kv(live=True, hit_rate=0.5)
    before = bars(box)["one step"]
    control(box, "hit rate").value = 0.95
    after = bars(box)["one step"]
    assert after[1] < before[1]
    assert after[0] == before[0]


def test_another_card_brings_its_own_link_and_capacity(control, bars):
    box = explore_kv(live=True)
    control(box, "GPU").value = "gh200"
    assert control(box, "link, GB/s").value == 450
    assert bars(box)["capacity"] == [96, 96]
    control(box, "GPU").value = "rtx4090"
    assert control(box, "link, GB/s").value == 32


def test_back_to_the_first_card_its_link_is_the_one_that_it_started_with(control):
    box = explore_kv(live=True, gpu="h200", link_gb_per_s=50.8)
    for gpu, link in (("gh200", 450), ("h200", 50.8), ("h100", 64)):
        control(box, "GPU").value = gpu
        assert control(box, "link, GB/s").value == link


def test_a_model_beyond_its_own_context_gets_a_word(control, charts):
    box = explore_kv(live=True, model="smollm2-135m", n_tokens=8192)
    assert "beyond" not in charts(box)[0].layout.title.text
    control(box, "context").value = 16_384
    assert "16384 tokens (beyond its own context of 8192)" in " ".join(
        charts(box)[0].layout.title.text.split("<br>")
    )


def test_bars_carry_their_values(control, charts):
    box = explore_kv(live=True, batch=4)
    said = {bar.name: list(bar.text) for bar in charts(box)[0].data if bar.type == "bar"}
    assert said["K and V"][0] == "16"
    control(box, "batch").value = 8
    bars = {bar.name: bar for bar in charts(box)[0].data if bar.type == "bar"}
    assert bars["K and V"].text[0] == "32"
    assert list(bars["one step"].text) == ["537", *(f"{ms:.3g}" for ms in bars["one step"].y[1:])]


def test_the_static_twin_is_three_stamped_figures():
    figures = explore_kv(live=False, gpu="h200")
    assert [f.layout.meta["status"] for f in figures] == ["modelled"] * 3
    assert all("H200" in f.layout.meta["stamp"] for f in figures)


def test_static_is_the_default_outside_a_notebook():
    assert isinstance(explore_kv(), list)


def test_an_unknown_keyword_is_refused_with_the_known_ones():
    with pytest.raises(TypeError, match="does not know bach; it takes model, n_tokens, batch"):
        explore_kv(bach=4)


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(KeyError, match="choose one of"):
        explore_kv(live=False, model="gpt-5")


def test_a_redraw_takes_less_than_a_tenth_of_a_second(control, quickest):
    box = explore_kv(live=True)
    assert quickest(control(box, "hit rate"), 2 * (0.5, 0.6, 0.7, 0.8, 0.9)) < 0.1
