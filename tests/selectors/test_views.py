"""What a selector gets of a layer and must not drop: the model's scale, and queries in slices that fit."""

from __future__ import annotations

import pytest
import torch

from sparda import attention, blocks
from sparda.selectors import LayerView, Streaming, make
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)


def view(**options):
    noise = torch.Generator().manual_seed(0)
    queries, keys = (3 * torch.randn(2, h, n, 16, generator=noise) for h, n in ((6, 40), (2, 300)))
    positions = torch.arange(260, 300).expand(2, -1)
    return LayerView(1, queries, keys, positions, RULE, **options)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_query_scores_with_the_models_scale(scale):
    seen = view(scale=scale)
    compressed = blocks.compress_keys(seen.keys, RULE)
    windows = blocks.query_scores(seen.queries, compressed, seen.positions, RULE, scale=scale or 16**-0.5)
    want = blocks.pool_to_blocks(windows, 19, RULE)
    torch.testing.assert_close(make("query").block_scores(seen), want)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_oracle_weighs_attention_with_the_models_scale(scale):
    seen, given = view(scale=scale), scale or 16**-0.5
    want = attention.block_mass(seen.queries, seen.keys, seen.positions, block_size=16, scale=given)
    torch.testing.assert_close(make("oracle").block_scores(seen), want)


class Counting(Streaming):
    """Notes how many queries it is asked about at once."""

    asked: list[int]

    def block_scores(self, view):
        self.asked.append(view.queries.shape[2])
        return super().block_scores(view)


@pytest.mark.parametrize(("room", "most"), [(2**26, 40), (12 * 19 * 15, 15), (1, 1)])
def test_a_prompt_is_chosen_for_in_slices_whose_scores_fit(monkeypatch, room, most):
    monkeypatch.setattr(attention, "STREAM_ELEMENTS", room)  # 12 pairs of 19 blocks or 17 windows a query
    selector = Counting()
    object.__setattr__(selector, "asked", [])
    ids = selector.select(view())
    assert sum(selector.asked) == 40
    assert max(selector.asked) == most
    assert torch.equal(ids, Streaming().select(view()))
