"""The dense pass, the sampled places, and the measures of every method beside the attached model's."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.engine.weights import from_hugging_face
from sparda.evaluation import recall
from sparda.evaluation.methods import METHODS
from sparda.models.probe import Probe
from sparda.spec import Sparsity

RULE = Sparsity(budget_blocks=5, block_size=16, local_blocks=1, window=16, stride=8)


@pytest.fixture(scope="module")
def measured(tiny):
    """Tokens, places, and what every method got of two budgets."""
    tokens = torch.randint(2, 90, (400,), generator=torch.Generator().manual_seed(1))
    places = recall.draw_places(400, 64, first=160, seed=0)
    selectors = {name: tiny.selector(name) for name in METHODS if name != "dense"}
    rules = [RULE, Sparsity(budget_blocks=8, block_size=16, local_blocks=1, window=16, stride=8)]
    found = recall.recall_of(from_hugging_face(tiny.model, 400), tokens, places, selectors, rules)
    return tokens, places, found


def test_places_come_in_pairs_behind_the_first_and_differ_with_the_seed():
    places = recall.draw_places(1000, 100, first=200, seed=3)
    assert len(places) == 100
    assert torch.equal(places[1::2], places[0::2] + 1)
    assert 200 <= int(places[0]) < int(places[-1]) < 1000
    assert len(set(places.tolist())) == 100
    assert not torch.equal(places, recall.draw_places(1000, 100, first=200, seed=4))
    with pytest.raises(ValueError, match="ask for 2 to 100"):
        recall.draw_places(300, 200, first=200, seed=0)


@pytest.mark.parametrize("method", ["sparse", "sparda", "infinigen", "oracle"])
def test_measures_equal_those_of_the_probe_on_the_attached_model(tiny, measured, method):
    tokens, places, found = measured
    probe = Probe(queries=None)
    with sparda.attach(tiny.model, selector=tiny.selector(method), sparsity=RULE, phases=(), probe=probe):
        tiny.model(tokens[None])
    for layer in range(3):
        record = probe.at(layer)
        mass, same = (x[0][:, places].mean(-1) for x in (record.mass_recall, record.agreement))
        got = found[method, 5][layer].float()
        torch.testing.assert_close(got[:, 0], mass, atol=2e-3, rtol=0)
        torch.testing.assert_close(got[:, 1], same, atol=2e-2, rtol=0)


def test_forced_blocks_are_the_floor_the_oracle_is_the_ceiling_and_more_blocks_hold_more(measured):
    found = measured[2]
    for name in (*(m for m in METHODS if m != "dense"), recall.FORCED):
        for k in (5, 8):
            mass = found[name, k][..., 0]
            assert bool((mass >= found[recall.FORCED, k][..., 0] - 1e-6).all())
            assert bool((mass <= found["oracle", k][..., 0] + 1e-6).all())
    assert bool((found["sparse", 8][..., 0] > found["sparse", 5][..., 0]).all())
    assert bool((found["sparse", 5][..., 1] == 1).all())
    assert bool((found[recall.FORCED, 5][..., 1] == 0).all())


def test_streaming_hits_nearly_always_and_random_seldom(measured):
    found = measured[2]
    assert found["streaming", 5][..., 2].mean() > 0.95
    assert found["random", 5][..., 2].mean() < found["sparse", 5][..., 2].mean()


def test_rows_are_tidy_with_means_over_heads_and_layers(measured):
    found = [measured[2], {key: value + 0.01 for key, value in measured[2].items()}]
    made = recall.rows(found, model="tiny", text="x", context=400, n=128, seed=0, date="d", commit="c")
    assert len(made) == 2 * 7 * (3 * 2 + 3 + 1)
    ours = [r for r in made if (r["method"], r["budget_blocks"]) == ("sparda", "5")]
    assert len({(r["layer"], r["head"]) for r in ours}) == 10
    whole = next(r for r in ours if r["layer"] == recall.MEAN)
    expected = measured[2]["sparda", 5][1:, :, 0].mean().item() + 0.005
    assert float(whole["mass_recall"]) == pytest.approx(expected, rel=1e-3)
    gain = (measured[2]["sparda", 5] - measured[2]["sparse", 5])[1:, :, 0].mean().item()
    assert float(whole["gain"]) == pytest.approx(gain, abs=1e-4)
    assert set(whole) == set(recall.RECALL.columns)
