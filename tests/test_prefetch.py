"""The price of a layer follows batch, hit rate and link as it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda import prefetch, simulate
from sparda.linkmodel import CTA_COUNTS
from sparda.prefetch import ASSUMED_LINK, Prefetch, link_model, link_rates, misses_left, pick_ctas


def test_eleven_misses_of_two_heads_are_22_runs_of_32_kib_a_sequence():
    assert Prefetch(batch=1, hit_rate=0.89).layer_bytes == 22 * 2**15


@given(batch=st.integers(1, 64))
def test_bytes_grow_with_the_batch_and_weights_do_not(batch):
    one, many = Prefetch(batch=1), Prefetch(batch=batch)
    assert many.layer_bytes == pytest.approx(batch * one.layer_bytes)
    assert many.costs().rest == one.costs().rest


def test_a_faster_link_shortens_the_copy_and_nothing_else():
    slow, fast = (Prefetch(link_gb_per_s=g, n_ctas=132).costs() for g in (25.0, 50.0))
    assert fast.copy < slow.copy
    assert replace(fast, copy=0.0) == replace(slow, copy=0.0)


def test_a_perfect_hit_rate_leaves_only_the_start_of_a_copy():
    layer = Prefetch(hit_rate=1.0).costs()
    assert layer.copy == 0
    assert simulate.stall(Prefetch(hit_rate=1.0).spans()) == 0


LINKS = pytest.mark.parametrize("link", [link_model()[0], ASSUMED_LINK], ids=["committed", "assumed"])


def step_us(state: Prefetch) -> float:
    return simulate.makespan(state.spans())


@LINKS
@pytest.mark.parametrize("hit_rate", [0.5, 0.89, 1.0])
@pytest.mark.parametrize("n_ctas", CTA_COUNTS)
def test_looking_ahead_is_never_slower_than_fetching_on_demand(link, hit_rate, n_ctas, monkeypatch):
    monkeypatch.setattr(prefetch, "link_model", lambda: (link, ""))
    for batch in (1, 2, 4, 8, 16, 32, 64):
        state = Prefetch(batch=batch, hit_rate=hit_rate, n_ctas=n_ctas, n_layers=4)
        times = [step_us(replace(state, transport=t)) for t in ("none", "lookahead", "demand")]
        assert times == sorted(times)


@LINKS
@pytest.mark.parametrize("n_ctas", CTA_COUNTS)
def test_one_layer_more_costs_what_the_link_model_says(link, n_ctas, monkeypatch):
    monkeypatch.setattr(prefetch, "link_model", lambda: (link, ""))
    monkeypatch.setattr(prefetch, "START_US", 0.0)  # the link model knows no fixed costs
    for batch in (1, 4, 16, 64):
        state = Prefetch(batch=batch, n_ctas=n_ctas, n_layers=8)
        layer = link.layer(n_ctas=n_ctas, n_bytes=state.layer_bytes, compute_us=state.compute_us())
        added = (step_us(state) - step_us(replace(state, n_layers=4))) / 4
        assert added == pytest.approx(layer.total, rel=0.01)


def test_the_default_count_is_the_pick_for_the_default_batch():
    state = Prefetch()
    assert pick_ctas(link_model()[0], [state.batch])[state.batch] == state.n_ctas


def test_every_batch_gets_a_count():
    picks = pick_ctas(ASSUMED_LINK, (1, 16, 64))
    assert list(picks) == [1, 16, 64]
    assert all(1 <= c <= 132 for c in picks.values())


def test_more_slots_leave_fewer_misses_and_never_more_than_with_k():
    left = [misses_left(slots) for slots in (96, 100, 120, 144, 192, 400)]
    assert left[0] == 1
    assert left == sorted(left, reverse=True)
    assert left[-1] > 0


def test_without_committed_counts_more_slots_change_nothing(monkeypatch):
    monkeypatch.setattr(prefetch, "_counted_misses", lambda: {1.0: 1.0})
    assert [misses_left(slots) for slots in (96, 192)] == [1, 1]


@given(
    batch=st.sampled_from([1, 4, 16, 64]),
    hit_rate=st.floats(0.5, 1),
    slots=st.sampled_from([96, 144]),
    transport=st.sampled_from(["lookahead", "demand", "none"]),
    link=st.sampled_from([0.0, 12.0, 355.0]),
)
def test_no_simulated_step_is_quicker_than_its_bound(batch, hit_rate, slots, transport, link):
    state = Prefetch(batch=batch, hit_rate=hit_rate, slots=slots, transport=transport, link_gb_per_s=link)
    assert step_us(state) * 1e-6 >= state.bound().seconds


def test_a_preset_link_keeps_the_share_of_its_datasheet_that_was_measured():
    rates = link_rates()
    assert rates["PCIe 5.0 x16"] == pytest.approx(link_model()[0].idle_peak)
    assert list(rates.values()) == sorted(rates.values())


def test_slots_below_the_budget_and_unknown_transports_are_refused():
    with pytest.raises(ValueError, match="take as many or more"):
        Prefetch(slots=95)
    with pytest.raises(ValueError, match="transport is one of none, demand, lookahead"):
        Prefetch(transport="pigeon")
