"""What looks ahead turns as the model's own queries do: measured for each layer, never taken from a name."""

from __future__ import annotations

import pytest
import torch

import sparda
from sparda.forecast import Forecast
from sparda.models.check import checked
from sparda.models.layers import attention_layers
from sparda.models.rotary import Rotary, every_kind, measured
from sparda.models.watch import watch
from sparda.selectors.forecast import Forecast as Chooser
from sparda.selectors.proxy import Proxy
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)
FAMILIES = {
    "Llama": {"head_dim": 16},
    "Helium": {"head_dim": 16},  # pairs
    "Cohere": {},  # pairs, angles side by side
    "Ernie4_5": {"head_dim": 16},  # pairs
    "StableLm": {},  # a quarter of the head
    "Glm": {"head_dim": 16},  # pairs of half the head
    "Nemotron": {},  # half the head
    "SmolLM3": {"no_rope_layers": [1, 0, 1, 0]},  # two layers do not turn
    "Llama-yarn": {
        "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 512,
        }
    },
}  # fmt: skip


def without_biases(model):
    """A Forecast has none."""
    for m in attention_layers(model):
        if m.q_proj.bias is not None:
            torch.nn.init.zeros_(m.q_proj.bias)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_that_looks_at_itself_foresees_its_own_query(tiny, ids, family, monkeypatch):
    model = tiny(family.split("-")[0], num_key_value_heads=4, **FAMILIES[family])
    own = [layer.q_proj.weight.detach() for layer in attention_layers(model)]
    without_biases(model)
    seen, score = {}, Chooser.block_scores

    def note(self, view):
        seen.setdefault(view.layer, view)
        return score(self, view)

    monkeypatch.setattr(Chooser, "block_scores", note)
    weights = Forecast(own[0], own[1:], 16)
    with sparda.attach(model, selector="forecast", weights=weights, sparsity=RULE):
        model(ids(100))
    query, guess = seen[0].queries, seen[0].ahead
    assert (query - guess).norm() < 1e-4 * query.norm()


@torch.no_grad()
@pytest.mark.parametrize("family", ["Helium", "StableLm", "SmolLM3"])
def test_the_next_layers_query_is_foreseen_exactly_where_its_input_is_the_same(
    tiny, ids, family, monkeypatch
):
    """A layer that adds nothing to its input hands it on: its query weights then foresee the query itself."""
    model = tiny(family, num_key_value_heads=4, **FAMILIES[family])
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        layer.input_layernorm = model.model.layers[0].input_layernorm
    own, seen, score = [m.q_proj.weight for m in attention_layers(model)], {}, Chooser.block_scores

    def note(self, view):
        seen[view.layer] = view
        return score(self, view)

    monkeypatch.setattr(Chooser, "block_scores", note)
    with sparda.attach(model, selector="forecast", weights=Forecast(own[0], own[1:], 16), sparsity=RULE):
        model(ids(60))
    for view in seen.values():
        assert (view.queries - view.ahead).norm() < 1e-4 * view.queries.norm()


@pytest.mark.parametrize("family", ["StableLm", "Glm", "Nemotron", "Helium"])
def test_both_selectors_that_look_ahead_serve_other_rotations(tiny, ids, reply, untrained, family):
    model = tiny(family, **FAMILIES[family])
    assert len(reply(model, ids(80), selector="forecast", weights=untrained(model))) == 8
    without_biases(model)
    assert len(reply(model, ids(80), selector=Proxy.calibrate(model, ids(100)))) == 8


def test_every_kind_is_told_from_the_others():
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, 16, generator=noise)
    angle = torch.rand(2, 5, 4, generator=noise) * 6
    cat, side = torch.cat([angle, angle], -1), angle.repeat_interleave(2, -1)
    for kind in every_kind():
        table = side if kind.twice == "pairs" else cat
        turned = kind.turn(x, *(a[:, None] for a in kind.angles(table.cos(), table.sin())))
        assert torch.equal(turned[..., 8:], x[..., 8:])
        assert measured(x, turned, table.cos(), table.sin(), 1e-4) == kind
    assert measured(x, x.flip(-1), cat.cos(), cat.sin(), 1e-4) is None
    assert measured(x, x * float("nan"), cat.cos(), cat.sin(), 1e-4) is None


def test_pairs_turn_neighbours_by_hand():
    x, angle = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([torch.pi / 2, torch.pi])
    got = Rotary("pairs").turn(x, angle.cos(), angle.sin())
    torch.testing.assert_close(got, torch.tensor([0.0, 1.0, 0.0, -1.0]), atol=1e-6, rtol=0)


def test_queries_that_are_normed_after_their_rotation_are_not_foreseen(tiny, ids, reply, untrained):
    model = tiny("HunYuanDenseV1", head_dim=16)
    assert len(reply(model, ids(60))) == 8
    with pytest.raises(TypeError, match=r"queries of layer 0 do.*such as 'query'"):
        reply(model, ids(60), selector="forecast", weights=untrained(model))


def test_the_check_leaves_a_dynamic_table_and_the_mode_as_they_were(tiny, ids):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model = tiny(max_position_embeddings=128, rope_parameters=rope).train()
    model.model.layers[1].eval()
    want = model(ids(200)).logits
    watch(model)
    assert model.training
    assert not model.model.layers[1].training
    assert model.model.rotary_emb.max_seq_len_cached == 200
    torch.testing.assert_close(model(ids(200)).logits, want)


def test_a_model_is_watched_once(tiny, monkeypatch):
    from sparda.models import check

    model, calls = tiny(), []
    monkeypatch.setattr(check, "watch", lambda m: calls.append(m) or watch(m))
    assert checked(model, looks_ahead=True) == [Rotary()] * 4
    assert checked(model, looks_ahead=False) == []
    assert len(calls) == 1
