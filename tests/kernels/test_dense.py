"""The dense baselines are torch's own kernels; here they meet the reference."""

import pytest
import torch

from sparda.attention import dense_attention
from sparda.kernels.dense import dense


def prompt(device, dtype, n_queries, n_tokens=96, batch=2):
    q = torch.randn(batch, 8, n_queries, 64, device=device).to(dtype)
    k, v = (torch.randn(batch, 2, n_tokens, 64, device=device).to(dtype) for _ in range(2))
    positions = torch.arange(n_tokens - n_queries, n_tokens, device=device).expand(batch, -1)
    return q, k, v, positions


@pytest.mark.parametrize("n_queries", [96, 1])
def test_a_prompt_and_its_last_token_agree_with_the_reference(n_queries, error):
    q, k, v, positions = prompt("cpu", torch.float32, n_queries)
    assert error(dense(q, k, v, through="math"), dense_attention(q, k, v, positions)) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("through", ["flash", "cudnn", "flex"])
@pytest.mark.parametrize("n_queries", [256, 1])
def test_every_dense_backend_agrees_with_the_float32_reference(cuda, through, n_queries):
    if through == "flex" and n_queries == 1:
        pytest.skip("GPU test: one compilation of FlexAttention is enough")
    q, k, v, positions = prompt(cuda, torch.bfloat16, n_queries, n_tokens=256)
    want = dense_attention(q.float(), k.float(), v.float(), positions)
    got = dense(q, k, v, through=through).float()
    assert (got - want).norm() / want.norm() < 1e-2


@pytest.mark.parametrize(
    ("through", "n_queries", "message"),
    [("fast", 96, "one of"), ("math", 5, "whole prompt"), ("flash", 96, "needs CUDA")],
)
def test_what_it_cannot_do_is_said(through, n_queries, message):
    q, k, v, _ = prompt("cpu", torch.float32, n_queries)
    with pytest.raises(ValueError, match=message):
        dense(q, k, v, through=through)
