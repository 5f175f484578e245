"""Recorded choices come back step by step, each layer's, sequence's and head's own."""

from __future__ import annotations

import torch

from sparda.selectors import LayerView, make
from sparda.selectors.recorded import Recorded
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=0, block_size=16)
PAST, LAYERS = 100, 3


def choices():
    """[2 steps, 1 sequence, 3 layers, 2 heads, 2] ids that say their step, layer and head."""
    step, layer, head = torch.meshgrid(torch.arange(2), torch.arange(LAYERS), torch.arange(2), indexing="ij")
    first = 10 * step + 2 * layer + head  # 0 .. 15
    return torch.stack([first, first + 20], -1)[:, None]


def wanted(selector, layer, position, heads=2, batch=1):
    """Ids of the blocks with a score, by sequence and head."""
    noise = torch.Generator().manual_seed(layer)
    keys = torch.randn(batch, heads, 40 * 16, 8, generator=noise)
    queries = torch.randn(batch, 2 * heads, 1, 8, generator=noise)
    at = torch.full((batch, 1), position)
    scores = selector.block_scores(LayerView(layer, queries, keys, at, RULE))[:, :, 0]
    assert set(scores.unique().tolist()) == {0.0, 1.0}
    return [[row.nonzero().flatten().tolist() for row in sequence] for sequence in scores]


def test_each_layer_but_the_first_wants_its_own_choices():
    selector = Recorded(make("query"), choices(), PAST)
    for layer in range(1, LAYERS + 1):
        a = 2 * (layer - 1)
        assert wanted(selector, layer, PAST) == [[[a, a + 20], [a + 1, a + 21]]]
        assert wanted(selector, layer, PAST + 1) == [[[a + 10, a + 30], [a + 11, a + 31]]]


def test_what_was_not_recorded_repeats_and_after_the_last_step_nothing_changes():
    selector = Recorded(make("query"), choices(), PAST)
    assert wanted(selector, LAYERS + 1, PAST) == wanted(selector, 1, PAST)
    assert wanted(selector, 1, PAST, heads=3, batch=2) == [[[0, 20], [1, 21], [0, 20]]] * 2
    assert wanted(selector, 2, PAST + 9) == wanted(selector, 2, PAST + 1)
    assert wanted(selector, 2, PAST - 9) == wanted(selector, 2, PAST)


def test_sequences_of_a_batch_want_their_own_choices_at_their_own_step():
    both = torch.cat([choices(), choices() + 3], 1)
    selector = Recorded(make("query"), both, PAST)
    keys, queries = torch.zeros(2, 2, 40 * 16, 8), torch.zeros(2, 4, 1, 8)
    at = torch.tensor([[PAST], [PAST + 1]])
    scores = selector.block_scores(LayerView(1, queries, keys, at, RULE))[:, 0, 0]
    assert [row.nonzero().flatten().tolist() for row in scores] == [[0, 20], [13, 33]]


def test_prompts_and_the_first_layer_are_the_inner_selectors():
    inner = make("query")
    selector = Recorded(inner, choices(), PAST)
    noise = torch.Generator().manual_seed(0)
    keys, queries = torch.randn(1, 2, 640, 8, generator=noise), torch.randn(1, 4, 3, 8, generator=noise)
    at = torch.tensor([[300, 400, 500]])
    prompt, first = (
        LayerView(2, queries, keys, at, RULE),
        LayerView(0, queries, keys, at, RULE).at(slice(2, 3)),
    )
    for view in (prompt, first):
        assert torch.equal(selector.block_scores(view), inner.block_scores(view))
