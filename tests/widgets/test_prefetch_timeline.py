"""The timeline's controls redraw it; a build gets plain figures."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from sparda.figures.prefetch_timeline import timeline_figure
from sparda.prefetch import Prefetch, link_rates
from sparda.spec import LINKS
from sparda.timeline import Event, Step
from sparda.widgets import prefetch_timeline
from sparda.widgets.prefetch_timeline import explore_prefetch


@pytest.fixture(autouse=True)
def traces(monkeypatch):
    """The committed traces that a test sees, by batch: none, unless it puts some here."""
    steps = {}

    def nearest(batch, _transport):
        return steps[min(steps, key=lambda b: abs(b - batch))] if steps else None

    monkeypatch.setattr(prefetch_timeline, "nearest", nearest)
    return steps


def traced(batch: int) -> Step:
    """An invented step of one layer, ``batch`` us long."""
    events = (Event("layer", 0, 0, batch), Event("attention", 0, 0, batch / 2))
    return Step(events, {"device": "a card", "date": "a day", "commit": "c0", "batch": batch})


@pytest.fixture
def stall_share(charts):
    return lambda box: int(charts(box)[0].layout.title.text.split(",")[1].split("%")[0])


@pytest.fixture
def rates(charts):
    """Tokens a second and their bound, as the title gives them."""

    def read(box):
        text = charts(box)[0].layout.title.text.replace("<br>", " ")
        return [float(re.search(what + r"(\d+)", text)[1]) for what in (r"; ", "bound ")]

    return read


def stalls(box, charts) -> float:
    """Microseconds of the stall bars that are drawn."""
    return sum(next(bar for bar in charts(box)[0].data if bar.name == "stall").x)


def test_a_larger_batch_makes_the_stall_appear_and_a_faster_link_takes_it_away(control, stall_share):
    box = explore_prefetch(live=True, batch=1)
    assert stall_share(box) == 0
    control(box, "batch").value = 64
    slow = stall_share(box)
    assert slow > 0
    control(box, "link, GB/s").value = 400
    assert stall_share(box) < slow


def test_without_overlap_every_copy_is_stall(control, stall_share):
    box = explore_prefetch(live=True, batch=8)
    ahead = stall_share(box)
    control(box, "overlap").value = "demand"
    assert stall_share(box) > ahead


def test_no_line_of_the_live_stamp_is_wider_than_a_cell(charts):
    text = charts(explore_prefetch(live=True))[0].layout.title.text
    lines = [re.sub("<[^>]*>", "", line) for line in text.split("<br>")]
    assert len(lines) > 1
    assert max(map(len, lines)) <= 76


def test_a_build_gets_three_figures():
    figures = explore_prefetch(live=False)
    assert len(figures) == 3
    assert all(f.layout.meta["status"] == "simulated" for f in figures)


def test_a_committed_trace_stands_beside_the_simulation_with_its_own_stamp(traces):
    traces[16] = traced(16)
    *simulated, measured = explore_prefetch(live=False)
    assert {f.layout.meta["status"] for f in simulated} == {"simulated"}
    assert measured.layout.meta["status"] == "measured"
    assert "a card · a day · commit c0" in measured.layout.meta["stamp"]
    assert "hit rate not stated" in measured.layout.meta["stamp"]


def test_the_measured_step_follows_the_batch(traces, control, charts):
    traces |= {4: traced(4), 64: traced(64)}
    box = explore_prefetch(live=True, batch=4)
    simulated, measured = charts(box)
    assert "batch 4" in measured.layout.meta["stamp"]
    control(box, "batch").value = 64
    assert max(measured.layout.xaxis.range) == 64
    assert "batch 64" in measured.layout.title.text
    assert simulated.layout.meta["status"] == "simulated"


def test_rate_and_bound_move_together_with_the_step(control, rates, messages):
    box = explore_prefetch(live=True, batch=16)
    rate, bound = rates(box)
    assert rate <= bound
    assert f"{rate:.0f} tok/s of at most {bound:.0f}, the bound of the link" in messages(box)
    control(box, "hit rate at k").value = 1.0
    more, higher = rates(box)
    assert (more > rate, higher > bound, more <= higher) == (True, True, True)
    assert "the bound of GPU memory" in messages(box)


def test_more_resident_slots_take_the_stall_away_and_say_what_they_cost(control, charts, messages):
    box = explore_prefetch(live=True, batch=64)
    before = stalls(box, charts)
    control(box, "resident slots").value = 192
    assert stalls(box, charts) < before / 2
    assert "with 192 slots a head" in messages(box)
    assert "GiB of GPU memory" in messages(box)


def test_a_context_that_fits_into_the_slots_has_nothing_to_fetch(control, charts):
    box = explore_prefetch(live=True, batch=64)
    control(box, "resident slots").value = 192
    control(box, "context").value = 8192
    assert stalls(box, charts) == 0


@pytest.mark.parametrize("name", list(LINKS))
def test_a_preset_moves_the_slider_and_a_slower_link_never_stalls_less(name, control, charts):
    box = explore_prefetch(live=True, batch=16)
    control(box, "link").value = name
    assert control(box, "link, GB/s").value == pytest.approx(link_rates()[name])
    here = stalls(box, charts)
    control(box, "link, GB/s").value = 0.8 * link_rates()[name]
    assert control(box, "link").value == "another rate"
    assert stalls(box, charts) >= here


def test_an_exposed_stall_has_a_colour_a_pattern_and_its_name(charts):
    bars = {bar.name: bar for bar in charts(explore_prefetch(live=True, batch=64))[0].data}
    others = [bar for name, bar in bars.items() if name != "stall"]
    stall = bars["stall"]
    assert stall.marker.color not in {bar.marker.color for bar in others}
    assert stall.marker.pattern.shape not in {bar.marker.pattern.shape for bar in others}
    assert set(stall.text) == {"<b>stall</b>"}


def test_every_control_has_a_name_and_takes_the_keyboard(control):
    names = ("overlap", "batch", "context", "CTAs", "hit rate at k", "resident slots", "link", "link, GB/s")
    box = explore_prefetch(live=True)
    kinds = {type(control(box, name)).__name__ for name in names}
    assert kinds == {"Dropdown", "SelectionSlider", "FloatSlider"}


def test_a_redraw_shows_exactly_what_a_fresh_figure_would(control, charts):
    box = explore_prefetch(live=True)
    for name, value in (("batch", 64), ("overlap", "demand"), ("CTAs", 4), ("context", 32_768)):
        control(box, name).value = value
    fresh = timeline_figure(Prefetch(batch=64, transport="demand", n_ctas=4, n_tokens=32_768))
    for old, new in zip(charts(box)[0].data, fresh.data, strict=True):
        for key in ("x", "y", "base", "text"):
            assert list(old[key]) == list(new[key]), (old.name, key)
        assert list(old.marker.opacity) == list(new.marker.opacity)
    assert charts(box)[0].layout.xaxis.range == fresh.layout.xaxis.range


@pytest.mark.parametrize(("name", "values"), [("batch", 5 * (4, 64)), ("hit rate at k", 5 * (0.6, 0.9))])
def test_a_redraw_takes_less_than_a_tenth_of_a_second(name, values, control, quickest, traces):
    traces |= {4: traced(4), 64: traced(64)}
    assert quickest(control(explore_prefetch(live=True), name), values) < 0.1


def test_fewer_slots_than_chosen_blocks_are_refused():
    with pytest.raises(ValueError, match="40 slots cannot hold the 96 chosen blocks"):
        explore_prefetch(live=False, slots=40)


def test_an_unknown_keyword_names_the_known_ones():
    with pytest.raises(TypeError, match="hit_rate"):
        explore_prefetch(live=False, hitrate=0.9)
