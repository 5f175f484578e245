"""The timeline's controls redraw it; a build gets plain figures."""

from __future__ import annotations

import pytest

pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")

from sparda.widgets.prefetch_timeline import explore_prefetch


def stall_share(box) -> int:
    return int(box.children[-1].layout.title.text.split(",")[1].split("%")[0])


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
    lines = explore_prefetch(live=True).children[-1].layout.title.subtitle.text.split("<br>")
    assert max(map(len, lines)) <= 76


def test_a_build_gets_three_figures():
    figures = explore_prefetch(live=False)
    assert len(figures) == 3
    assert all(f.layout.meta["status"] == "simulated" for f in figures)


def test_an_unknown_keyword_names_the_known_ones():
    with pytest.raises(TypeError, match="hit_rate"):
        explore_prefetch(live=False, hitrate=0.9)
