"""The engine says what the attached model says, for every selector, cache and transport."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import sparda
from sparda.engine import Engine
from sparda.forecast import Forecast
from sparda.spec import Sparsity

transformers = pytest.importorskip("transformers")

RULE = Sparsity(5, local_blocks=1, block_size=16)
LENGTHS = (150, 33, 3)  # more than the budget's blocks, just over two blocks, less than a window


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def model(request):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=96, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, vocab_size=101, max_position_embeddings=512, eos_token_id=None,
        initializer_range=0.15,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval().to(request.param)


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 101, (n,), generator=generator) for n in LENGTHS]


@pytest.fixture(scope="module")
def weights(model):
    untrained = Forecast.untrained(n_layers=3, hidden=96, n_kv_heads=2, head_dim=16)
    return untrained.to(model.device, torch.float32)


def options(selector, weights):
    return {"weights": weights} if selector.startswith("forecast") else {}


@pytest.fixture(scope="module")
def attached(model, prompts, weights):
    """Greedy replies of the attached model, by selector, made once."""

    def reply(selector):
        with sparda.attach(model, selector=selector, sparsity=RULE, **options(selector, weights)):
            asked = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
            return [model.generate(p[None].to(model.device), **asked)[0, len(p) :].tolist() for p in prompts]

    return cache(reply)


GRID = [
    *[(s, "full", "none") for s in ("all", "query", "forecast", "streaming", "random", "oracle")],
    *[(s, c, "demand") for s in ("query", "forecast", "streaming", "random") for c in ("k", 7)],
    *[("forecast", c, t) for t in ("lookahead", "lookahead_worker") for c in ("k", 7)],
    *[(s, "k", t) for s in ("query", "forecast") for t in ("copy_engine", "cpu_gather")],
    *[("forecast@1", c, "lookahead") for c in ("k", 7)],
    *[("forecast@1", "k", t) for t in ("demand", "lookahead_worker", "copy_engine", "cpu_gather")],
    *[(s, "full", "none") for s in ("forecast@1", "forecast@0+2", "oracle@1")],
]


@pytest.mark.parametrize(("selector", "slots", "transport"), GRID)
def test_a_ragged_batch_says_what_each_attached_sequence_says(
    model, prompts, weights, attached, selector, slots, transport
):
    engine = Engine(
        model, selector=selector, sparsity=RULE, cache=slots, transport=transport, max_tokens=256,
        **options(selector, weights),
    )  # fmt: skip
    assert engine.generate(prompts, max_new_tokens=40).tokens == attached(selector)


def test_a_layer_that_waits_changes_what_is_said(attached):
    """Else the cases above would prove nothing."""
    assert attached("forecast@1") not in (attached("forecast"), attached("query"))


def test_layers_cannot_wait_where_no_compressed_keys_are_kept(model):
    proxy = sparda.selectors.proxy.Proxy.untrained(n_layers=3, hidden=96, n_kv_heads=2, head_dim=16)
    waiting = sparda.selectors.Waiting(proxy, frozenset({1}))
    with pytest.raises(ValueError, match=r"'proxy@1' keeps an index of its own.*without such layers"):
        Engine(model, selector=waiting, sparsity=RULE, max_tokens=256)


def test_a_sparsity_of_another_kind_is_refused_at_once(model):
    with pytest.raises(TypeError, match=r"sparsity is a sparda\.Sparsity"):
        Engine(model, sparsity={"k": 3}, max_tokens=256)


def test_layer_zero_may_be_offloaded_on_demand(model, prompts, attached):
    engine = Engine(model, sparsity=RULE, layer0_resident=False, max_tokens=256)
    assert engine.generate(prompts, max_new_tokens=40).tokens == attached("query")


def test_a_sequence_that_stops_leaves_the_others_alone(model, prompts, attached):
    want = attached("query")
    stop = {want[0][5]}
    heard = []
    engine = Engine(model, sparsity=RULE, max_tokens=256)
    got = engine.generate(prompts, max_new_tokens=40, stop=stop, on_token=lambda i, t: heard.append((i, t)))
    for i, reply in enumerate(want):
        end = next((n + 1 for n, token in enumerate(reply) if token in stop), len(reply))
        assert got.tokens[i] == reply[:end] == [t for j, t in heard if j == i]


def test_sampling_repeats_with_its_seed_and_top_p_keeps_the_best(model, prompts):
    engine = Engine(model, sparsity=RULE, max_tokens=256)
    ask = {"max_new_tokens": 12, "temperature": 1.0}
    first = engine.generate(prompts, seed=3, **ask).tokens
    assert first == engine.generate(prompts, seed=3, **ask).tokens
    assert first != engine.generate(prompts, seed=4, **ask).tokens
    greedy = engine.generate(prompts, max_new_tokens=12).tokens
    assert engine.generate(prompts, top_p=1e-6, **ask).tokens == greedy


def test_the_ledger_adds_up(model, prompts):
    ledger = Engine(model, sparsity=RULE, max_tokens=256).generate(prompts, max_new_tokens=1).ledger
    run, pairs = 2 * 16 * 16 * 4, 3 * 2
    assert ledger["pinned"] == 2 * pairs * 16 * run  # two layers, 16 blocks
    assert ledger["resident"] == pairs * run * (16 + 2 * 5)  # layer 0 keeps all, the others k
    assert ledger["compressed"] == 3 * pairs * 15 * 16 * 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"selector": "query", "transport": "lookahead"}, "use transport='demand'"),
        ({"selector": "oracle"}, "cache='full'"),
        ({"selector": "all", "cache": 9}, "cache='full'"),
        ({"cache": "full", "transport": "demand"}, "do not fit"),
        ({"transport": "none"}, "do not fit"),
        ({"transport": "teleport"}, "unknown transport"),
        ({"cache": "q"}, "cache is 'full', 'k' or a number of slots"),
        ({"cache": 4}, "5 chosen blocks"),
        ({"max_tokens": 600}, "passes the model's context"),
    ],
)
def test_what_cannot_be_combined_is_refused_with_a_sentence(model, wrong, message):
    with pytest.raises(ValueError, match=message):
        Engine(model, sparsity=RULE, **({"max_tokens": 256} | wrong))


def test_lookahead_without_local_blocks_is_refused(model, weights):
    rule = Sparsity(5, local_blocks=0, block_size=16)
    with pytest.raises(ValueError, match="local_blocks >= 1"):
        Engine(model, selector="forecast", weights=weights, sparsity=rule, max_tokens=256)


def test_windows_that_have_not_ended_are_refused_where_a_cache_lacks_them(model):
    rule = Sparsity(5, local_blocks=1, block_size=16, visibility="start")
    with pytest.raises(ValueError, match="use visibility='end' in the engine"):
        Engine(model, sparsity=rule, max_tokens=256)
    mask = torch.ones(2, 60, dtype=torch.int64)
    mask[1, :20] = 0
    tokens = torch.randint(3, 101, (2, 60)).to(model.device)
    with sparda.attach(model, sparsity=rule), pytest.raises(ValueError, match="or one text at a time"):
        model(tokens, attention_mask=mask.to(model.device))


def test_requests_that_do_not_fit_are_refused_and_the_next_one_works(model, prompts):
    engine = Engine(model, sparsity=RULE, max_tokens=160)
    for bad, message in (
        ({"prompts": prompts, "max_new_tokens": 40}, "max_tokens=190"),
        ({"prompts": [[]], "max_new_tokens": 4}, "at least one token"),
        ({"prompts": prompts, "max_new_tokens": 4, "top_p": 0.0}, "top_p"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.generate(**bad)
    assert len(engine.generate(prompts, max_new_tokens=4).tokens[0]) == 4
