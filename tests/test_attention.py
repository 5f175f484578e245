"""Block-sparse attention is dense attention with the other tokens masked out, for every shape."""

import pytest
import torch

from sparda import attention
from sparda.attention import block_attention, block_mass, dense_attention
from sparda.metrics import mass_recall
from sparda.selectors import LayerView, make
from sparda.spec import Sparsity


def problem(group=3, heads=2, n_tokens=300, n_queries=300, dim=64, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads * group, n_queries, dim, generator=generator)
    k, v = (torch.randn(batch, heads, n_tokens, dim, generator=generator) for _ in "kv")
    positions = torch.arange(n_tokens - n_queries, n_tokens).expand(batch, -1)
    return q, k, v, positions


def by_hand(q, k, v, position, group, allowed):
    """One query of one sequence, with loops: the definition."""
    out = []
    for head in range(q.shape[0]):
        keys, values = k[head // group], v[head // group]
        tokens = [s for s in range(position + 1) if allowed(head // group, s)]
        weights = (keys[tokens] @ q[head] / q.shape[-1] ** 0.5).softmax(0)
        out.append(weights @ values[tokens])
    return torch.stack(out)


@pytest.mark.parametrize("group", [1, 3, 16])
@pytest.mark.parametrize("dim", [64, 128])
def test_both_attentions_follow_the_definition(group, dim):
    q, k, v, positions = problem(group=group, dim=dim, n_queries=4)
    ids = torch.tensor([0, 2, 4, -1]).expand(2, 2, 4, -1)
    got = block_attention(q, k, v, ids, positions, block_size=64)
    dense = dense_attention(q, k, v, positions)
    for b, t in ((0, 0), (1, 3)):
        where = int(positions[b, t])
        want = by_hand(q[b, :, t], k[b], v[b], where, group, lambda h, s: s // 64 in (0, 2, 4))
        torch.testing.assert_close(got[b, :, t], want)
        want = by_hand(q[b, :, t], k[b], v[b], where, group, lambda h, s: True)
        torch.testing.assert_close(dense[b, :, t], want)


@pytest.mark.parametrize("selector", ["query", "streaming", "random", "oracle"])
def test_a_decode_step_equals_the_same_row_of_a_prompt(selector):
    q, k, v, positions = problem()
    sparsity = Sparsity(3, local_blocks=1)
    ids = make(selector).select(LayerView(2, q, k, positions, sparsity))
    prompt = block_attention(q, k, v, ids, positions, block_size=64)
    for t in (5, 130, 299):
        last = slice(t, t + 1)
        step = make(selector).select(LayerView(2, q[:, :, last], k, positions[:, last], sparsity))
        assert torch.equal(step, ids[:, :, last])
        out = block_attention(q[:, :, last], k, v, step, positions[:, last], block_size=64)
        torch.testing.assert_close(out, prompt[:, :, last])


def test_a_budget_that_holds_everything_is_dense_attention():
    q, k, v, positions = problem()
    ids = make("query").select(LayerView(0, q, k, positions, Sparsity(5, local_blocks=1)))
    sparse = block_attention(q, k, v, ids, positions, block_size=64)
    torch.testing.assert_close(sparse, dense_attention(q, k, v, positions))


def test_streaming_over_queries_changes_nothing(monkeypatch):
    q, k, v, positions = problem()
    ids = make("random").select(LayerView(0, q, k, positions, Sparsity(3, local_blocks=1)))
    whole = (
        block_attention(q, k, v, ids, positions, block_size=64),
        block_mass(q, k, positions, block_size=64),
    )
    monkeypatch.setattr(attention, "STREAM_ELEMENTS", 20_000)
    ids_parts = make("random").select(LayerView(0, q, k, positions, Sparsity(3, local_blocks=1)))
    parts = (
        block_attention(q, k, v, ids, positions, block_size=64),
        block_mass(q, k, positions, block_size=64),
    )
    assert torch.equal(ids, ids_parts)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)


def test_block_mass_sums_to_one_and_the_oracle_catches_most_of_it():
    q, k, _, positions = problem(n_tokens=1000, n_queries=50)
    mass = block_mass(q, k, positions, block_size=64)
    torch.testing.assert_close(mass.sum(-1), torch.ones(2, 2, 50))
    recall = {
        name: mass_recall(mass, make(name).select(LayerView(0, q, k, positions, Sparsity(6, local_blocks=1))))
        for name in ("oracle", "query", "streaming", "random")
    }
    for name, got in recall.items():
        assert (recall["oracle"] >= got - 1e-6).all(), name


def test_a_list_made_for_a_longer_sequence_is_refused():
    q, k, v, positions = problem()
    ids = torch.full((2, 2, 300, 3), 7)
    with pytest.raises(ValueError, match="longer sequence or another block size"):
        block_attention(q, k, v, ids, positions, block_size=64)
