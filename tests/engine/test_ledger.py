"""The ledger's bytes are those of all tensors that an engine holds, found by walking the objects."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparda.engine import Engine
from sparda.engine.weights import random_decoder
from sparda.forecast import Forecast
from sparda.selectors import Proxy
from sparda.spec import ModelShape, Sparsity

HOST = ("pinned", "staged")
WAYS = {
    "query": ("demand", "copy_engine", "cpu_gather"),
    "forecast": ("demand", "lookahead", "lookahead_worker", "cpu_gather"),
    "proxy": ("demand", "lookahead", "copy_engine"),
}


def storages(thing, seen=None):
    """Storages of all tensors that can be reached from an object: {address: bytes}."""
    seen = {} if seen is None else seen
    if id(thing) in seen:
        return {}
    seen[id(thing)] = thing
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()} if storage.nbytes() else {}
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, (list, tuple, set)):
        parts = thing
    else:
        parts = getattr(thing, "__dict__", {}).values()
    found = {}
    for part in parts:
        found |= storages(part, seen)
    return found


@st.composite
def engines(draw):
    """An engine of a random plan, and a batch."""
    selector = draw(st.sampled_from(sorted(WAYS)))
    layers, heads, dim = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.sampled_from((16, 32)))
    size, local = draw(st.sampled_from((16, 32))), draw(st.integers(1, 2))
    rule = Sparsity(draw(st.integers(4, 9)), block_size=size, local_blocks=local)
    slots = draw(st.one_of(st.sampled_from(("full", "k")), st.integers(rule.budget_blocks, 30)))
    way = "none" if slots == "full" else draw(st.sampled_from(WAYS[selector]))
    shape = ModelShape(
        "drawn", n_layers=layers, hidden=48, n_heads=2 * heads, n_kv_heads=heads, head_dim=dim, ffn=32,
        vocab=37, rms_eps=1e-5, rope_theta=1e4, native_context=4096, tied_embeddings=draw(st.booleans()),
        source="made up",
    )  # fmt: skip
    dtype = draw(st.sampled_from((torch.float32, torch.float16, torch.bfloat16)))
    longest = draw(st.integers(1, 600))
    sizes = {"n_layers": layers, "hidden": 48, "n_kv_heads": heads, "head_dim": dim}
    options = {"weights": Forecast.untrained(**sizes)} if selector == "forecast" else {}
    engine = Engine(
        random_decoder(shape, longest, dtype=dtype), sparsity=rule, cache=slots, transport=way,
        selector=Proxy.untrained(**sizes) if selector == "proxy" else selector, max_tokens=longest,
        layer0_resident=selector != "query" or draw(st.booleans()), **options,
    )  # fmt: skip
    return engine, draw(st.integers(1, 4))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(engines())
def test_the_entries_add_up_to_the_bytes_of_all_tensors(drawn):
    engine, batch = drawn
    session = engine.session(batch)
    ledger, held = session.ledger(), storages(session)
    assert sum(ledger.values()) == sum(held.values())
    hosts = storages([state.cache.host for state in session.store.layers])
    assert ledger["pinned"] == sum(hosts.values()) == engine.plan(batch).host_bytes
    assert ledger["resident"] == sum(storages([s.cache.slots for s in session.store.layers]).values())
    assert ledger["index"] == sum(storages([s.index for s in session.store.layers]).values())


@pytest.mark.parametrize(("selector", "transport"), [("query", "cpu_gather"), ("forecast", "lookahead")])
def test_generating_holds_nothing_more(make, device, selector, transport):
    engine = make(selector, transport)
    before = storages(engine.session(2))
    ledger = engine.generate([[1] * 100, [2, 3]], max_new_tokens=20).ledger
    after = storages(engine.session(2))
    assert set(after) == set(before)
    assert sum(ledger.values()) == sum(after.values()) + engine.session(2).graph_bytes
    run = 2 * 16 * 16 * 4  # one block of 16 tokens
    assert ledger["staged"] == (2 * 2 * 5 * run if transport == "cpu_gather" else 0)
    engine.close()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("selector", "cache", "transport"),
    [
        ("query", "full", "none"), ("query", "k", "demand"), ("forecast", 12, "lookahead"),
        ("forecast", "k", "lookahead_worker"), ("proxy", "k", "cpu_gather"),
    ],
)  # fmt: skip
def test_the_device_entries_are_what_the_allocator_gave(selector, cache, transport):
    shape = ModelShape(
        "drawn", n_layers=4, hidden=512, n_heads=8, n_kv_heads=2, head_dim=64, ffn=2048, vocab=32_000,
        rms_eps=1e-5, rope_theta=1e4, native_context=65_536, tied_embeddings=False, source="made up",
    )  # fmt: skip
    sizes = {"n_layers": 4, "hidden": 512, "n_kv_heads": 2, "head_dim": 64}
    for attempt in range(2):  # in the first one cuBLAS takes its workspaces
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        options = {"weights": Forecast.untrained(**sizes)} if selector == "forecast" else {}
        engine = Engine(
            random_decoder(shape, 65_536, device="cuda", dtype=torch.bfloat16), cache=cache,
            selector=Proxy.untrained(**sizes) if selector == "proxy" else selector, transport=transport,
            sparsity=Sparsity(8, local_blocks=2), max_tokens=65_536, **options,
        )  # fmt: skip
        ledger = engine.generate([[1] * 4000] * 4, max_new_tokens=8).ledger
        pool = engine.session(4).graph_bytes
        device = sum(n for kind, n in ledger.items() if kind not in HOST) - pool
        grown = torch.cuda.memory_allocated() - before
        print(attempt, ledger, {"pool": pool, "grown": grown})
        assert abs(device - grown) <= 0.05 * grown + 2**26 * (attempt == 0) + 2**20
        assert (pool > 0) == engine.graph
        assert ledger["pinned"] == engine.plan(4).host_bytes
        engine.close()
        del engine
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 2**20
