"""The link model recovers the curves that it was fitted to, and picks counts that make sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda.checks.ch04 import LINK
from sparda.linkmodel import CTA_COUNTS, LinkModel


def test_a_fit_recovers_the_model_behind_the_points():
    fitted = LinkModel.fit((c, LINK.bandwidth(c), LINK.idle(c), LINK.slowdown(c)) for c in CTA_COUNTS)
    for c in CTA_COUNTS:
        assert fitted.bandwidth(c) == pytest.approx(LINK.bandwidth(c), rel=0.05)
        assert fitted.slowdown(c) == pytest.approx(LINK.slowdown(c), rel=0.01)


@given(c=st.integers(1, 131))
def test_more_ctas_never_fetch_slower_nor_disturb_less(c):
    assert LINK.bandwidth(c + 1) >= LINK.bandwidth(c)
    assert LINK.slowdown(c + 1) >= LINK.slowdown(c)


@given(n_bytes=st.floats(1e3, 1e9), compute=st.floats(1, 1e4), c=st.sampled_from(CTA_COUNTS))
def test_a_layer_takes_at_least_its_compute_and_its_transfer(n_bytes, compute, c):
    layer = LINK.layer(n_ctas=c, n_bytes=n_bytes, compute_us=compute)
    assert layer.total >= max(compute, layer.transfer) - 1e-6
    assert layer.stall == pytest.approx(max(0.0, layer.transfer - compute * LINK.slowdown(c)))


def test_a_hidden_transfer_takes_few_ctas_and_an_exposed_one_more():
    few = LINK.best_ctas(n_bytes=1e5, compute_us=500)
    many = LINK.best_ctas(n_bytes=1e8, compute_us=100)
    assert few <= 8 <= many


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="at least 3"):
        LinkModel.fit([(1, 5.0, 9.0, 1.0), (2, 10.0, 18.0, 1.0)])
