"""A layer waits for its own query, the others do not."""

from __future__ import annotations

import pytest
import torch

from sparda.forecast import Shape
from sparda.selectors import LayerView, Waiting, make
from sparda.selectors.replay import Replay
from sparda.selectors.waiting import waiting
from sparda.spec import Sparsity

RULE = Sparsity(6, local_blocks=1)


def view(layer):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 6, 4, 64, generator=generator)
    k = torch.randn(1, 2, 1280, 64, generator=generator)
    return LayerView(layer, q, k, torch.arange(1276, 1280)[None], RULE)


@pytest.mark.parametrize(
    ("layer", "chooses"), [(6, "streaming"), (7, "query"), (8, "streaming"), (18, "query")]
)
def test_only_the_layers_that_are_named_are_the_querys(layer, chooses):
    mixed = make("streaming@7+18")
    assert torch.equal(mixed.select(view(layer)), make(chooses).select(view(layer)))
    assert torch.equal(mixed.block_scores(view(layer)), make(chooses).block_scores(view(layer)))


def test_options_and_what_is_said_of_the_inner_selector_pass_through():
    assert torch.equal(make("random@1", seed=5).select(view(0)), make("random", seed=5).select(view(0)))
    mixed = make("oracle@3")
    assert (mixed.needs_keys, mixed.looks_ahead, mixed.waits, mixed.name) == (True, False, {3}, "oracle@3")
    assert Waiting(mixed, frozenset({1})).waits == {1, 3}
    assert Waiting(mixed, frozenset({1})).name == "oracle@1+3"
    assert Replay(mixed, 0.9, 1000).waits == {3}


def test_no_layers_is_the_selector_itself():
    query = make("query")
    assert waiting(query, frozenset()) is query


@pytest.mark.parametrize("name", ["query@", "query@x", "query@7,8", "query@-1", "query@7+"])
def test_what_follows_the_mark_must_be_layers(name):
    with pytest.raises(ValueError, match=r"after @ come layers that wait for their query, as in query@7\+18"):
        make(name)


def test_a_layer_that_the_model_does_not_have_is_refused():
    shape = Shape(n_layers=7, hidden=8, n_kv_heads=1, head_dim=8)
    make("streaming@0+6").check(shape)
    with pytest.raises(ValueError, match="'streaming@7': the model's layers are 0 to 6"):
        make("streaming@7").check(shape)


def test_no_layer_can_wait_where_every_block_is_read():
    with pytest.raises(ValueError, match="'all' reads every block"):
        make("all@1")


@pytest.mark.parametrize("layers", [["7"], [7.0], [True]])
def test_layers_are_whole_numbers(layers):
    with pytest.raises(TypeError, match="layers are whole numbers"):
        Waiting(make("query"), layers)


def test_layers_come_in_any_collection_and_the_inner_selector_is_one():
    assert Waiting(make("random"), [7, 3]).layers == {3, 7}
    with pytest.raises(TypeError, match="inner is a Selector"):
        Waiting("query", {7})


@pytest.mark.parametrize("wrong", [None, 7, type(make("query"))])
def test_a_selector_is_a_name_or_a_selector(wrong):
    with pytest.raises(TypeError, match="selector is a name, such as 'query', or a Selector"):
        make(wrong)


def test_the_name_before_the_mark_must_be_a_selectors():
    with pytest.raises(ValueError, match="unknown selector 'qurey'"):
        make("qurey@7")
