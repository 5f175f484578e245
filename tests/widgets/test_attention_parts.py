"""The explorer of chapter 05, without a browser."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")

from sparda.widgets.attention_parts import Scenario, explore_attention


def bars(chart) -> dict[str, list[float]]:
    return {bar.name: list(bar.y) for bar in chart.data}


def test_without_a_person_there_are_three_figures():
    figures = explore_attention(live=False)
    assert [figure.layout.meta["status"] for figure in figures] == ["modelled"] * 3
    assert "decode" in figures[1].layout.title.text


def test_a_longer_context_makes_selection_the_larger_part(control, charts):
    box = explore_attention(live=True)
    context, chart = control(box, "context"), charts(box)[0]
    before = bars(chart)
    context.value = 1_048_576
    after = bars(chart)
    dense, sparse, _ = range(3)
    assert before["selection"][sparse] < before["attention"][sparse]
    assert after["selection"][sparse] > after["attention"][sparse]
    assert after["selection"][dense] == 0


def test_the_other_phase_changes_title_and_unit(control, charts):
    box = explore_attention(live=True, n_tokens=65_536)
    phase, chart = control(box, "phase"), charts(box)[0]
    assert "ms a prompt" in chart.layout.yaxis.title.text
    phase.value = "decode"
    assert "us a step" in chart.layout.yaxis.title.text
    assert "decode" in chart.layout.title.text


def test_the_batch_can_be_moved_only_where_it_does_something(control):
    box = explore_attention(live=True)
    assert control(box, "batch (decode)").disabled
    control(box, "phase").value = "decode"
    assert not control(box, "batch (decode)").disabled
    assert not control(explore_attention(live=True, phase="decode"), "batch (decode)").disabled


def test_start_values_of_its_own_are_kept(control):
    box = explore_attention(Scenario(n_tokens=100_000), live=True, budget_blocks=40)
    assert (control(box, "context").value, control(box, "budget k").value) == (100_000, 40)


def test_a_redraw_takes_less_than_a_tenth_of_a_second(control, quickest):
    box = explore_attention(live=True)
    assert quickest(control(box, "batch (decode)"), 5 * (1, 64)) < 0.1


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="does not know k; it takes phase"):
        explore_attention(k=3)
