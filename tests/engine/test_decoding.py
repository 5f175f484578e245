"""One decode step: who is chosen for early, which block makes room, and what the draw makes of logits."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from sparda import blocks, cache
from sparda.engine import prefill
from sparda.engine.decode import sample
from sparda.forecast import Forecast
from sparda.selectors import LayerView
from sparda.selectors import make as make_selector
from sparda.spec import Sparsity
from sparda.transports import TRANSPORTS, Lookahead

RULE = Sparsity(5, local_blocks=1, block_size=16)


class Recording(Lookahead):
    """Notes the order in which layers are chosen for and waited for."""

    name = "recording"
    heard: list

    def __init__(self, *given):
        super().__init__(*given)
        self.heard = []

    @contextmanager
    def prepare(self, layer, early=False):
        self.heard.append(("early" if early else "late", layer))
        with super().prepare(layer, early):
            yield

    def wait(self, layer):
        self.heard.append(("wait", layer))
        super().wait(layer)


def heard_in_a_step(make, monkeypatch, selector):
    monkeypatch.setitem(TRANSPORTS, "recording", Recording)
    weights = Forecast.untrained(n_layers=3, hidden=64, n_kv_heads=2, head_dim=16)
    engine = make(make_selector(selector, weights=weights), "recording", graph=False)
    session = engine.session(1)
    session.read(0, torch.arange(150, device=session.tokens.device) % 101)
    session.transport.heard.clear()
    session.step()
    heard = list(session.transport.heard)
    engine.close()
    return heard


def test_every_layer_but_the_first_is_chosen_for_one_layer_early(make, monkeypatch):
    want = [("late", 0), ("early", 1), ("early", 2), ("wait", 1), ("wait", 2)]
    assert heard_in_a_step(make, monkeypatch, "forecast") == want


def test_a_layer_that_waits_is_chosen_for_in_its_own_turn(make, monkeypatch):
    want = [("late", 0), ("late", 1), ("early", 2), ("wait", 1), ("wait", 2)]
    assert heard_in_a_step(make, monkeypatch, "forecast@1") == want


@pytest.mark.parametrize("policy", ["recent", "score"])
def test_the_block_that_makes_room_is_the_one_that_the_policy_names(make, device, policy):
    """The scores of "random" are known without the engine: the maps must follow the plain rule."""
    engine = make("random", "demand", cache=8, replacement=policy)
    session, selector = engine.session(2), make_selector("random")
    for i, n in enumerate((300, 170)):
        session.read(i, torch.arange(n, device=device) % 101)
    layers = [1, 2]
    states = [session.store.layers[layer] for layer in layers]
    want = [(s.slot_block.cpu().clone(), s.block_slot.cpu().clone()) for s in states]
    outs = [cache.Selection.empty(2, 2, 5, 8, torch.device("cpu")) for _ in layers]
    for _ in range(12):
        at = session.positions.cpu().clone()
        session.step()
        for layer, state, maps, out in zip(layers, states, want, outs, strict=True):
            view = LayerView(
                layer, torch.zeros(2, 4, 1, 16), None, at[:, None], RULE, stored=torch.zeros(2, 2, 31, 16),
                stored_blocks=32,
            )  # fmt: skip
            scores = selector.block_scores(view)
            ids = blocks.select_blocks(scores, at[:, None], RULE)[:, :, 0]
            cache.difference(ids, at, *maps, 16, out, policy=policy, scores=scores[:, :, 0])
            assert state.slot_block.tolist() == maps[0].tolist()
            assert state.selection.misses() == out.misses()
    engine.close()


@pytest.mark.parametrize("selector", ["query", "proxy", "forecast", "oracle"])
@torch.inference_mode()
def test_the_end_of_a_text_may_be_read_or_stepped(make, device, selector):
    """Keys, values, compressed keys, the ring, the index and the logits are the same."""
    text, start = torch.arange(7, 147, device=device) * 13 % 101, 111
    read, stepped = (make(selector, cache="full") for _ in range(2))
    want, got = read.session(1), stepped.session(1)
    logits = want.read(0, text)
    got.read(0, text[:start])
    for token in text[start:]:
        got.tokens.fill_(token)
        got.step()
    torch.testing.assert_close(got.logits[0], logits, rtol=1e-4, atol=1e-4)
    assert got.positions.tolist() == want.positions.tolist() == [len(text)]
    n_windows = blocks.count_windows(len(text), RULE)
    for state, record in zip(got.store.layers, want.store.layers, strict=True):
        pairs = [(state.cache.ring, record.cache.ring)]
        pairs += [
            (x.cache.slots.transpose(2, 3).flatten(3, 4)[:, :, :, : len(text)] for x in (state, record))
        ]
        pairs += [(x.cache.compressed[:, :, :n_windows] for x in (state, record))]
        assert (state.index is not None) == (selector == "proxy")
        if state.index is not None:
            assert state.index[:, :, : len(text)].any(-1).all()
            pairs += [(state.index, record.index)]
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    read.close()
    stepped.close()


@pytest.mark.parametrize("selector", ["query", "proxy", "forecast", "forecast@1"])
def test_a_prompt_in_small_chunks_is_chosen_for_as_in_a_large_one(make, device, monkeypatch, selector):
    weights = Forecast.untrained(n_layers=3, hidden=64, n_kv_heads=2, head_dim=16)
    made = make_selector(selector, weights=weights) if "@" in selector else selector
    text = torch.arange(7, 207, device=device) * 13 % 101
    engine = make(made)
    want = engine.session(1).read(0, text)
    monkeypatch.setitem(prefill.CHUNK, device, 48)
    torch.testing.assert_close(engine.session(1).read(0, text), want, rtol=1e-4, atol=1e-4)
    engine.close()


LOGITS = torch.tensor([[0.2, 0.5, 0.3, 0.0]]).log()  # in descending order: tokens 1, 2, 0


def drawn(chance, temperature=1.0, top_p=1.0, logits=LOGITS):
    return int(sample(logits, temperature, top_p, torch.tensor([chance])))


@pytest.mark.parametrize(
    ("temperature", "shares"),
    [(1.0, (0.5, 0.3)), (2.0, (0.4155, 0.3218)), (0.5, (0.6579, 0.2368))],  # roots and squares, normalised
)
def test_chances_fall_into_the_tokens_shares_the_likeliest_first(temperature, shares):
    first, second = shares
    for chance, token in (
        (0.0, 1), (first - 0.001, 1), (first + 0.001, 2), (first + second - 0.001, 2),
        (first + second + 0.001, 0), (0.999999, 0),
    ):  # fmt: skip
        assert drawn(chance, temperature) == token


def test_top_p_keeps_the_token_that_crosses_it_and_draws_from_those_kept():
    assert {drawn(c / 100, top_p=0.5) for c in range(100)} == {1}
    assert {drawn(c / 100, top_p=0.51) for c in range(100)} == {1, 2}
    assert drawn(0.62, top_p=0.51) == 1  # 0.5 of the 0.8 that is left
    assert drawn(0.63, top_p=0.51) == 2
    assert {drawn(c / 100, top_p=1.0) for c in range(100)} == {0, 1, 2}


def test_without_temperature_the_best_token_is_taken_and_the_lower_id_in_a_tie():
    assert drawn(0.99, temperature=0.0) == 1
    assert drawn(0.99, temperature=0.0, logits=torch.tensor([[1.0, 3.0, 3.0]])) == 1


def test_every_sequence_of_a_batch_is_drawn_by_its_own_chance():
    got = sample(LOGITS.expand(3, -1), 1.0, 1.0, torch.tensor([0.9, 0.1, 0.6]))
    assert got.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("selector", "cache_size", "transport"),
    [
        ("query", "k", "demand"),
        ("forecast", "k", "lookahead"),
        ("proxy", 8, "lookahead"),
        ("query", "full", "none"),
    ],
)
def test_blocks_come_one_layer_early_by_default_where_the_selector_knows_them(
    make, selector, cache_size, transport
):
    assert make(selector, cache=cache_size).transport.name == transport
