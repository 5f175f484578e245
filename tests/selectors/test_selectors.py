from dataclasses import replace

import pytest
import torch

from sparda import blocks
from sparda.forecast import Forecast as Weights
from sparda.selectors import SELECTORS, LayerView, make
from sparda.spec import Sparsity


def view(layer=3, n_queries=4, batch=1):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, 6, n_queries, 64, generator=generator)
    k = torch.randn(batch, 2, 1280, 64, generator=generator)
    positions = torch.arange(1280 - n_queries, 1280).expand(batch, -1)
    return LayerView(layer, q, k, positions, Sparsity(6, local_blocks=1))


@pytest.mark.parametrize("name", sorted(SELECTORS.keys() - {"forecast", "proxy"}))
def test_every_selector_keeps_the_forced_blocks_within_budget(name):
    ids = make(name).select(view())
    assert {0, 18, 19} <= set(ids[0, 0, -1].tolist())
    assert ids.shape[-1] == (20 if name == "all" else 6)


def test_a_view_of_some_queries_is_laid_out_as_kernels_want_it():
    some = view(n_queries=9).at(slice(0, None, 4))
    assert some.positions.tolist() == [[1271, 1275, 1279]]
    assert some.positions.is_contiguous()
    assert some.queries.is_contiguous()
    assert torch.equal(make("query").select(some), make("query").select(view(n_queries=9))[:, :, ::4])


def test_all_reads_every_block_up_to_the_querys_own():
    positions = torch.tensor([[3, 63, 64, 69]])
    short = LayerView(0, view().queries, view().keys[:, :, :70], positions, Sparsity(6, local_blocks=1))
    assert make("all").select(short)[0, 1].tolist() == [[0, -1], [0, -1], [0, 1], [0, 1]]


def test_streaming_reads_the_init_block_and_the_last_ones():
    assert make("streaming").select(view())[0, 1, -1].tolist() == [0, 15, 16, 17, 18, 19]


def test_random_depends_on_seed_layer_head_position_and_nothing_else():
    base = make("random").select(view())
    assert torch.equal(base, make("random").select(view()))
    assert torch.equal(make("random").select(view(batch=2))[1:], base)
    assert not torch.equal(base, make("random", seed=1).select(view()))
    assert not torch.equal(base, make("random").select(view(layer=4)))
    assert not torch.equal(base[:, 0], base[:, 1])
    assert not torch.equal(base[:, :, 0], base[:, :, 1])


def test_random_draws_evenly():
    zeros, positions = torch.zeros(1, 2, 4096, 64), torch.arange(2000, 4000)[None]
    rule = Sparsity(6, local_blocks=1)
    scores = make("random", seed=7).block_scores(LayerView(0, zeros[:, :, :2000], zeros, positions, rule))
    assert abs(scores.mean().item() - 0.5) < 0.005
    assert abs((scores < 0.1).float().mean().item() - 0.1) < 0.005
    for a, b in ((scores[0, 0], scores[0, 1]), (scores[0, 0, 1:], scores[0, 0, :-1])):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].item()) < 0.02


def test_the_forecast_chooses_by_dot_products_with_the_layer_before():
    weights = Weights.untrained(n_layers=5, hidden=32, n_kv_heads=2, head_dim=64)
    selector, seen = make("forecast", weights=weights), view()
    hidden = torch.randn(1, 4, 32)
    ahead = selector.look_ahead(3, hidden).unflatten(-1, (2, 64)).transpose(1, 2)  # not rotated
    assert torch.allclose(ahead[0, 1, 2], weights.future[2][64:] @ hidden[0, 2], atol=1e-5)
    scores = selector.block_scores(replace(seen, ahead=ahead))
    windows = blocks.compress_keys(seen.all_keys, seen.sparsity)[0, 1, 4 * 7 - 1 : 4 * 7 + 4]
    assert torch.allclose(scores[0, 1, 2, 7], (windows @ ahead[0, 1, 2]).max(), atol=1e-4)
    own = selector.look_ahead(0, hidden)
    assert torch.allclose(own[0, 0, :64], weights.current[:64] @ hidden[0, 0], atol=1e-5)


def test_a_forecast_without_weights_or_without_the_layer_before_says_so():
    with pytest.raises(TypeError, match=r"needs weights: .*Forecast.load"):
        make("forecast")
    weights = Weights.untrained(n_layers=5, hidden=32, n_kv_heads=2, head_dim=64)
    with pytest.raises(ValueError, match="needs the layer before"):
        make("forecast", weights=weights).select(view())
    with pytest.raises(NotImplementedError, match="does not look ahead"):
        make("query").look_ahead(0, torch.zeros(1, 1, 2))


def test_an_unknown_selector_or_option_names_the_known_ones():
    with pytest.raises(ValueError, match=r"choose one of all, .*query"):
        make("qurey")
    with pytest.raises(TypeError, match=r"no option \['sed'\]; it has \['seed'\]"):
        make("random", sed=3)
    with pytest.raises(TypeError, match="already made"):
        make(make("query"), seed=3)
