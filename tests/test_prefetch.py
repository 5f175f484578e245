"""The price of a layer follows batch, hit rate and link as it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda import simulate
from sparda.prefetch import ASSUMED_LINK, Prefetch, pick_ctas


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


def test_every_batch_gets_a_count():
    picks = pick_ctas(ASSUMED_LINK, (1, 16, 64))
    assert list(picks) == [1, 16, 64]
    assert all(1 <= c <= 132 for c in picks.values())
