"""The timeline's controls redraw it; a build gets plain figures."""

from __future__ import annotations

import pytest

pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")

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


def charts(box) -> list:
    return [child for child in box.children if hasattr(child, "layout") and hasattr(child, "data")]


def stall_share(box) -> int:
    return int(charts(box)[0].layout.title.text.split(",")[1].split("%")[0])


def control(box, name):
    return next(c for c in box.children if getattr(c, "description", "") == name)


def test_a_larger_batch_makes_the_stall_appear_and_a_faster_link_takes_it_away():
    box = explore_prefetch(live=True, batch=1)
    assert stall_share(box) == 0
    control(box, "batch").value = 64
    slow = stall_share(box)
    assert slow > 0
    control(box, "link, GB/s").value = 400
    assert stall_share(box) < slow


def test_without_overlap_every_copy_is_stall():
    box = explore_prefetch(live=True, batch=8)
    ahead = stall_share(box)
    control(box, "overlap").value = "demand"
    assert stall_share(box) > ahead


def test_no_line_of_the_live_stamp_is_wider_than_a_cell():
    lines = charts(explore_prefetch(live=True))[0].layout.title.subtitle.text.split("<br>")
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


def test_the_measured_step_follows_the_batch(traces):
    traces |= {4: traced(4), 64: traced(64)}
    box = explore_prefetch(live=True, batch=4)
    simulated, measured = charts(box)
    assert "batch 4" in measured.layout.meta["stamp"]
    control(box, "batch").value = 64
    assert max(measured.layout.xaxis.range) == 64
    assert "batch 64" in measured.layout.title.subtitle.text
    assert simulated.layout.meta["status"] == "simulated"


def test_an_unknown_keyword_names_the_known_ones():
    with pytest.raises(TypeError, match="hit_rate"):
        explore_prefetch(live=False, hitrate=0.9)
