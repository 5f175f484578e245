"""A softened choice: its shares add up, its limit is top-k, its gradient is the exact one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda.soft_topk import soft_topk

NEG_INF = float("-inf")


def scores(n=24, seed=0, hidden=4):
    g = torch.Generator().manual_seed(seed)
    made = 3 * torch.randn(2, 3, n, generator=g, dtype=torch.float64)
    made[..., n - hidden :] = NEG_INF
    return made


@settings(deadline=None)
@given(st.integers(0, 50), st.floats(0.1, 5.0), st.integers(1, 19))
def test_shares_add_up_to_the_places_and_nothing_goes_to_what_is_hidden(seed, softness, m):
    shares = soft_topk(scores(seed=seed), torch.tensor([m, 1, 19]), softness)
    torch.testing.assert_close(shares.sum(-1), torch.tensor([[m, 1.0, 19.0]] * 2).double(), atol=2e-2, rtol=0)
    assert (shares[..., 20:] == 0).all()
    assert ((shares >= 0) & (shares <= 1)).all()


def test_its_limit_is_top_k():
    x = scores()
    shares = soft_topk(x, torch.tensor([5, 5, 5]), 1e-3)
    want = torch.zeros_like(x).scatter(-1, x.topk(5).indices, 1.0)
    torch.testing.assert_close(shares, want, atol=1e-3, rtol=0)


def test_raising_all_scores_changes_nothing():
    x, m = scores(), torch.tensor([3, 6, 9])
    torch.testing.assert_close(soft_topk(x + 7, m, 1.0), soft_topk(x, m, 1.0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("m", [20, 30])
def test_with_places_for_all_each_gets_one_and_there_is_no_gradient(m):
    x = scores().requires_grad_()
    shares = soft_topk(x, torch.tensor([m] * 3), 1.0)
    assert (shares[..., :20] == 1).all()
    (shares * torch.arange(24)).sum().backward()
    assert (x.grad == 0).all()


def test_the_gradient_is_that_of_the_shares():
    x = scores(n=10, hidden=0)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda s: soft_topk(s, torch.tensor([2, 4, 7]), 0.7), (x,), atol=1e-3)
