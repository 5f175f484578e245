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


def by_hand(q, k, v, position, group, allowed, scale=None):
    """One query of one sequence, with loops: the definition."""
    out = []
    for head in range(q.shape[0]):
        keys, values = k[head // group], v[head // group]
        tokens = [s for s in range(position + 1) if allowed(head // group, s)]
        weights = (keys[tokens] @ q[head] * (scale or q.shape[-1] ** -0.5)).softmax(0)
        out.append(weights @ values[tokens])
    return torch.stack(out)


@pytest.mark.parametrize("group", [1, 3, 16])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("n_queries", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_both_attentions_follow_the_definition(group, dim, n_queries, scale):
    q, k, v, positions = problem(group=group, dim=dim, n_queries=n_queries)
    ids = torch.tensor([0, 2, 4, -1]).expand(2, 2, n_queries, -1)
    got = block_attention(q, k, v, ids, positions, block_size=64, scale=scale)
    dense = dense_attention(q, k, v, positions, scale=scale)
    for b, t in ((0, 0), (1, n_queries - 1)):
        where = int(positions[b, t])
        want = by_hand(q[b, :, t], k[b], v[b], where, group, lambda h, s: s // 64 in (0, 2, 4), scale)
        torch.testing.assert_close(got[b, :, t], want)
        want = by_hand(q[b, :, t], k[b], v[b], where, group, lambda h, s: True, scale)
        torch.testing.assert_close(dense[b, :, t], want)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_block_mass_follows_the_definition_in_float32(kind, scale):
    q, k, _, positions = problem(n_tokens=100, n_queries=3, dim=16)
    q, k = q.to(kind), k.to(kind)
    got = block_mass(q, k, positions, block_size=16, scale=scale)
    assert got.dtype == torch.float32
    for b, h, t in ((0, 0, 0), (1, 1, 2)):
        want, end = torch.zeros(7), int(positions[b, t]) + 1
        for head in range(3):
            logits = k[b, h, :end].float() @ q[b, 3 * h + head, t].float()
            weights = (logits * (scale or 16**-0.5)).softmax(0) / 3
            for token, weight in enumerate(weights):
                want[token // 16] += weight
        torch.testing.assert_close(got[b, h, t], want)


def test_everything_is_made_where_the_inputs_are_whatever_the_default_device():
    q, k, v, positions = problem(n_tokens=70, n_queries=3, dim=16)
    ids = torch.tensor([0, 1]).expand(2, 2, 3, -1)

    def outputs():
        last = (q[:, :, 2:], k, v, ids[:, :, 2:], positions[:, 2:])
        return (
            dense_attention(q, k, v, positions),
            block_attention(q, k, v, ids, positions, block_size=64),
            block_attention(*last, block_size=64),
            block_mass(q, k, positions, block_size=64),
        )

    want = outputs()
    with torch.device("meta"):
        assert all(map(torch.equal, outputs(), want))


def test_queries_are_cut_by_how_many_numbers_each_needs(monkeypatch):
    assert [part.stop for part in attention.query_slices(300, 0)] == [256, 300]
    monkeypatch.setattr(attention, "STREAM_ELEMENTS", 100)
    cut = [(part.start, part.stop) for part in attention.query_slices(5, 40)]
    assert cut == [(0, 2), (2, 4), (4, 5)]
    assert [part.stop for part in attention.query_slices(2, 101)] == [1, 2]  # never less than one
    q, k, _, positions = problem(batch=3, heads=1, group=2, n_tokens=10, n_queries=9, dim=4)
    seen = []
    real = attention.query_slices
    monkeypatch.setattr(attention, "query_slices", lambda *of: seen.append(of) or real(*of))
    dense_attention(q, k, k, positions)
    assert seen == [(9, 3 * 2 * 10)]  # a logit for each sequence, head and key


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
    with pytest.raises(ValueError, match="block 5 starts after the last of 300 keys"):
        block_attention(q, k, v, torch.full_like(ids, 5), positions, block_size=60)
