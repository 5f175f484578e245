"""Replay: exactly the misses that were asked for, with all of the inner selector's work done."""

from __future__ import annotations

import pytest
import torch

from sparda.engine import Engine
from sparda.engine.weights import random_decoder
from sparda.forecast import Forecast
from sparda.selectors import make
from sparda.selectors.replay import Replay
from sparda.spec import ModelShape, Sparsity

SHAPE = ModelShape("tiny", 3, 32, 4, 2, 16, 48, 97, 1e-6, 1e4, 4096, False, "made up")
RULE = Sparsity(10, local_blocks=1, block_size=16)  # 3 forced, 7 learned
PAST = 505


@pytest.fixture(scope="module")
def decoder():
    return random_decoder(SHAPE, 640)


def inner(name):
    if name == "query":
        return make("query")
    return make("forecast", weights=Forecast.untrained(n_layers=3, hidden=32, n_kv_heads=2, head_dim=16))


def misses_by_step(decoder, selector, transport, n_steps=16):
    engine = Engine(decoder, selector=selector, sparsity=RULE, cache="k", transport=transport, max_tokens=640)
    session = engine.session(2)
    session.fill(PAST)
    found = []
    for _ in range(n_steps):
        session.step()
        found.append([int(state.selection.count) for state in session.store.layers if state.offloaded])
    engine.close()
    return found


@pytest.mark.parametrize(("name", "transport"), [("query", "demand"), ("forecast", "lookahead")])
@pytest.mark.parametrize(("hit_rate", "misses"), [(0.6, 4), (0.9, 1), (1.0, 0)])
def test_every_head_misses_exactly_so_many_blocks_a_step(decoder, name, transport, hit_rate, misses):
    counts = misses_by_step(decoder, Replay(inner(name), hit_rate, PAST), transport)
    heads = 2 * SHAPE.n_kv_heads  # of both sequences
    assert counts[1:] == [[misses * heads] * 2] * (len(counts) - 1)  # over a block border, too


def test_the_inner_selector_does_its_work_in_every_layer(decoder, monkeypatch):
    seen, query = [], inner("query")
    score = type(query).block_scores
    monkeypatch.setattr(
        type(query), "block_scores", lambda self, view: seen.append(view.layer) or score(self, view)
    )
    misses_by_step(decoder, Replay(query, 0.9, PAST), "demand", n_steps=2)
    assert seen == [0, 1, 2] * 2


def test_prompts_are_chosen_for_as_ever(decoder):
    tokens = torch.arange(300) % 97
    ends = []
    for selector in (inner("query"), Replay(inner("query"), 0.9, PAST)):
        engine = Engine(decoder, selector=selector, sparsity=RULE, cache="k", max_tokens=640)
        ends.append(engine.session(1).read(0, tokens))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


def test_every_layer_sequence_and_head_has_a_ring_of_its_own_that_its_seed_repeats(decoder):
    def chosen(seed):
        selector = Replay(inner("query"), 0.9, PAST, seed)
        engine = Engine(decoder, selector=selector, sparsity=RULE, max_tokens=640)
        session = engine.session(2)
        session.fill(PAST)
        session.step()
        return [
            tuple(ids) for s in session.store.layers[1:] for b in s.selection.block_ids for ids in b.tolist()
        ]

    first = chosen(0)
    assert len(set(first)) == len(first) == 2 * 2 * SHAPE.n_kv_heads
    assert first == chosen(0)
    assert not set(first) & set(chosen(7))


def test_it_looks_ahead_if_the_inner_selector_does():
    assert Replay(inner("forecast"), 0.9, PAST).looks_ahead
    assert not Replay(inner("query"), 0.9, PAST).looks_ahead
    assert Replay(inner("forecast"), 0.9, PAST).ahead_weights(1).shape == (32, 32)


@pytest.mark.parametrize(
    ("hit_rate", "past", "sentence"),
    [(0.1, 505, "only 7 of the 10 blocks are not forced"), (0.5, 200, "200 tokens leave 10 blocks")],
)
def test_what_cannot_be_replayed_is_refused(hit_rate, past, sentence):
    with pytest.raises(ValueError, match=sentence):
        Replay(inner("query"), hit_rate, past).ring(RULE)


def test_the_paper_s_numbers():
    """96 blocks at 131,072 tokens: 34 forced, 62 learned; 0.89 means 11 misses, 0.95 means 5."""
    rule = Sparsity(96, local_blocks=32)
    assert Replay(make("query"), 0.89, 131_000).ring(rule) == (11, 62, 2013)
    assert Replay(make("query"), 0.95, 131_000).ring(rule) == (5, 62, 2013)
