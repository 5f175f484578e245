"""attach() on a tiny random Llama: generation, batches, measures, and an exact way back."""

import copy

import pytest
import torch

import sparda
from sparda.forecast import Forecast
from sparda.spec import Sparsity

transformers = pytest.importorskip("transformers")

SMALL = Sparsity(4, local_blocks=1, block_size=16)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=96, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, vocab_size=101, max_position_embeddings=512,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def prompt(n, batch=1, seed=0):
    return torch.randint(3, 101, (batch, n), generator=torch.Generator().manual_seed(seed))


def greedy(model, tokens, n=6, **kwargs):
    return model.generate(tokens, max_new_tokens=n, do_sample=False, pad_token_id=0, **kwargs)[
        :, tokens.shape[1] :
    ]


@torch.no_grad()
def test_the_all_selector_gives_the_models_own_logits(model):
    tokens = prompt(120, batch=2)
    want = model(tokens).logits
    with sparda.attach(model, selector="all", sparsity=SMALL):
        torch.testing.assert_close(model(tokens).logits, want, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_budget_over_the_context_is_dense_and_a_small_one_is_not(model):
    tokens = prompt(150)
    want = model(tokens).logits
    with sparda.attach(model, sparsity=Sparsity(10, local_blocks=1, block_size=16)):
        torch.testing.assert_close(model(tokens).logits, want, rtol=1e-4, atol=1e-5)
    with sparda.attach(model, sparsity=SMALL):
        assert (model(tokens).logits - want).abs().max() > 1e-3
    with sparda.attach(model, sparsity=SMALL, phases=()):
        torch.testing.assert_close(model(tokens).logits, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("selector", ["query", "streaming", "random", "oracle"])
def test_generate_with_a_cache_equals_recomputing_every_prefix(model, selector):
    tokens = prompt(130)
    with sparda.attach(model, selector=selector, sparsity=SMALL):
        cached = greedy(model, tokens)
        again = greedy(model, tokens, use_cache=False)
    assert torch.equal(cached, again)


def test_a_left_padded_batch_generates_what_each_sequence_generates_alone(model):
    long, short = prompt(140), prompt(61, seed=1)
    padded = torch.cat([torch.zeros(1, 79, dtype=torch.int64), short], 1)
    mask = torch.cat([torch.ones(1, 140), torch.cat([torch.zeros(1, 79), torch.ones(1, 61)], 1)]).long()
    with sparda.attach(model, sparsity=SMALL):
        both = greedy(model, torch.cat([long, padded]), attention_mask=mask)
        assert torch.equal(both[0], greedy(model, long)[0])
        assert torch.equal(both[1], greedy(model, short)[0])


def test_the_probe_reports_every_layer_and_step(model):
    with sparda.attach(model, selector="query", sparsity=SMALL, probe=True) as attached:
        greedy(model, prompt(130), n=4)
    probe = attached.probe
    assert len(probe.records) == 3 * 4  # the prompt and three decode steps
    first, last = probe.at(layer=1, step=0), probe.at(layer=1)
    assert first.block_scores.shape == (1, 2, 1, 9)
    assert first.block_ids.shape == last.block_ids.shape == (1, 2, 1, 4)
    assert (first.agreement == 1).all()
    assert first.hit_rate.isnan().all()
    assert ((last.hit_rate > 0) & (last.hit_rate <= 1)).all()
    assert ((last.mass_recall > 0) & (last.mass_recall <= 1)).all()
    assert last.positions.item() == 132


def test_the_probe_can_watch_a_dense_model_over_a_whole_prompt(model):
    with sparda.attach(model, sparsity=SMALL, phases=(), probe=sparda.Probe(queries=None)) as attached:
        model(prompt(130))
    assert attached.probe.at(layer=2).block_ids.shape == (1, 2, 130, 4)
    table = pytest.importorskip("pandas") and attached.probe.table()
    assert len(table) == 3 * 2 * 130
    assert table.mass_recall.between(0, 1.0001).all()
    attached.probe.clear()
    with pytest.raises(LookupError, match="run the model"):
        attached.probe.at(layer=0)


def test_a_probe_without_measures_records_the_same_choices(model):
    whole, choices = sparda.Probe(), sparda.Probe(measures=False)
    for probe in (whole, choices):
        with sparda.attach(model, sparsity=SMALL, probe=probe):
            model(prompt(130))
    for full, bare in zip(whole.records, choices.records, strict=True):
        assert (full.step, full.layer) == (bare.step, bare.layer)
        assert torch.equal(full.block_ids, bare.block_ids)
        assert bare.mass_recall.isnan().all()


def test_leaving_the_context_restores_the_model_exactly(model):
    tokens = prompt(90)
    config, weights = copy.deepcopy(model.config), copy.deepcopy(model.state_dict())
    want = model(tokens).logits
    with pytest.raises(IndexError), sparda.attach(model, sparsity=SMALL):
        model(tokens + 1000)  # no such word
    assert model.config.to_dict() == config.to_dict()
    assert model.config._attn_implementation == config._attn_implementation
    assert all(torch.equal(model.state_dict()[name], w) for name, w in weights.items())
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert torch.equal(model(tokens).logits, want)


def test_what_cannot_be_served_is_refused_with_a_sentence(model):
    with (
        pytest.raises(ValueError, match="choose one of"),
        sparda.attach(model, selector="none", sparsity=SMALL),
    ):
        pass
    with (
        pytest.raises(ValueError, match="unknown phases"),
        sparda.attach(model, sparsity=SMALL, phases=["train"]),
    ):
        pass
    with pytest.raises(TypeError, match="no attention layers"):
        sparda.attach(torch.nn.Linear(2, 2), sparsity=SMALL).__enter__()
    with (
        sparda.attach(model, sparsity=SMALL),
        pytest.raises(RuntimeError, match="already attached"),
        sparda.attach(model, sparsity=SMALL),
    ):
        pass
    with sparda.attach(model, sparsity=SMALL), pytest.raises(ValueError, match="one unbroken run"):
        model(prompt(4), attention_mask=torch.tensor([[1, 0, 1, 1]]))
    with sparda.attach(model, sparsity=SMALL), pytest.raises(TypeError, match="packed"):
        model(prompt(6), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)


def test_a_static_cache_is_refused_with_and_without_a_mask(model):
    ids = prompt(20)
    for given in ({}, {"attention_mask": torch.ones_like(ids)}):
        cache = transformers.StaticCache(config=model.config, max_cache_len=64)
        with sparda.attach(model, sparsity=SMALL), pytest.raises(TypeError, match="DynamicCache"):
            model(ids, past_key_values=cache, use_cache=True, **given)


def test_one_phase_may_be_named_alone_and_a_bare_number_is_no_sparsity(model):
    tokens, dense = prompt(150), model(prompt(150)).logits
    with sparda.attach(model, sparsity=SMALL, phases="decode"):
        torch.testing.assert_close(model(tokens).logits, dense, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match=r"Sparsity\(budget_blocks=8\)"), sparda.attach(model, sparsity=8):
        pass


def test_a_model_with_a_sliding_window_is_served_up_to_the_window_and_no_further():
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=101, sliding_window=96,
    )  # fmt: skip
    windowed = transformers.MistralForCausalLM(config).eval()
    config = copy.deepcopy(config)
    config.sliding_window = None
    plain = transformers.MistralForCausalLM(config).eval()
    plain.load_state_dict(windowed.state_dict())
    with sparda.attach(plain, sparsity=SMALL):
        want = greedy(plain, prompt(80), 16)
    with sparda.attach(windowed, sparsity=SMALL):
        assert torch.equal(greedy(windowed, prompt(80), 16), want)
        with pytest.raises(TypeError, match="see the last 96 tokens only: 97 are too many"):
            windowed(prompt(97))


@torch.no_grad()
def test_forecast_weights_of_another_precision_are_taken_to_the_models(model):
    weights = Forecast.untrained(n_layers=3, hidden=96, n_kv_heads=2, head_dim=16)
    tokens, logits = prompt(120), []
    for dtype in (torch.float32, torch.bfloat16):  # as computed, and as a file holds them
        given = weights.to("cpu", torch.bfloat16).to("cpu", dtype)
        with sparda.attach(model, selector="forecast", weights=given, sparsity=SMALL):
            logits.append(model(tokens).logits)
    assert torch.equal(*logits)


def test_a_forecast_of_another_model_is_refused_with_a_sentence(model):
    weights = Forecast.untrained(n_layers=3, hidden=64, n_kv_heads=2, head_dim=16)
    with (
        pytest.raises(ValueError, match=r"belongs to another model: .*64 channels, but the model has 96"),
        sparda.attach(model, selector="forecast", weights=weights, sparsity=SMALL),
    ):
        pass
    with pytest.raises(ValueError, match="belongs to another model"):
        sparda.Engine(model, selector="forecast", weights=weights, sparsity=SMALL, max_tokens=256)
    with pytest.raises(TypeError, match=r"Forecast.load\(file, Shape.of\(model\)\)"):
        sparda.Engine(model, selector="forecast", weights="file", sparsity=SMALL, max_tokens=256)
