"""The engine's logits are the model's, where no gain is one and no scaling is left at its default."""

from __future__ import annotations

import math

import pytest
import torch

from sparda.engine import Engine
from sparda.engine.weights import random_decoder
from sparda.forecast import Forecast
from sparda.spec import ModelShape, Sparsity

transformers = pytest.importorskip("transformers")

RULE = Sparsity(20, local_blocks=1, block_size=16)  # more blocks than there are: nothing is left out
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 256, "initializer_range": 0.2,
    "eos_token_id": None, "pad_token_id": 0, "rms_norm_eps": 1e-2,
}  # fmt: skip
SCALES = {
    "embedding_multiplier": 2.5, "residual_multiplier": 0.4, "attention_multiplier": 0.11,
    "logits_scaling": 3.0,
}  # fmt: skip


@pytest.fixture(scope="module", params=["granite", "granite tied", "llama"])
def model(request):
    """Random weights, and random gains of every norm."""
    torch.manual_seed(0)
    if request.param == "llama":
        config = transformers.LlamaConfig(**SIZES, head_dim=32, rope_theta=500.0)
        made = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GraniteConfig(**SIZES, **SCALES, tie_word_embeddings="tied" in request.param)
        made = transformers.GraniteForCausalLM(config)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name:
                weight.uniform_(0.3, 2.0)
    return made.eval()


def texts(*lengths):
    noise = torch.Generator().manual_seed(1)
    return [torch.randint(1, 101, (n,), generator=noise) for n in lengths]


def forecast(model):
    sizes = {
        "n_layers": 3,
        "hidden": 64,
        "n_kv_heads": 2,
        "head_dim": model.model.layers[0].self_attn.head_dim,
    }
    return Forecast.untrained(**sizes)


@pytest.mark.parametrize(
    ("selector", "cache"), [("all", "full"), ("query", "k"), ("forecast", "k"), ("oracle", "full")]
)
@torch.no_grad()
def test_prompts_and_steps_give_the_models_logits(model, selector, cache):
    options = {"weights": forecast(model)} if selector == "forecast" else {}
    engine = Engine(model, selector=selector, sparsity=RULE, cache=cache, max_tokens=128, **options)
    prompts, more = texts(70, 33), texts(12, 12)
    want = [model(torch.cat(pair)[None]).logits[0] for pair in zip(prompts, more, strict=True)]
    session = engine.session(2)
    for i, prompt in enumerate(prompts):
        torch.testing.assert_close(session.read(i, prompt), want[i][len(prompt) - 1], rtol=1e-4, atol=1e-4)
    for step in range(12):
        session.tokens.copy_(torch.stack([text[step] for text in more]))
        session.step()
        for i, prompt in enumerate(prompts):
            torch.testing.assert_close(session.logits[i], want[i][len(prompt) + step], rtol=1e-4, atol=1e-4)
        assert torch.equal(session.tokens, session.logits.argmax(-1))
    assert session.positions.tolist() == [82, 45]


@pytest.mark.parametrize("selector", ["query", "oracle"])
@torch.inference_mode()
def test_prompts_and_steps_choose_with_the_models_scale(model, selector):
    rule, text = Sparsity(4, local_blocks=1, block_size=16), texts(240)[0]
    engine = Engine(model, selector=selector, sparsity=rule, cache="full", max_tokens=256)
    session = engine.session(1)
    want = session.read(0, text)
    session.read(0, text[:200])
    for token in text[200:]:
        session.tokens.fill_(int(token))
        session.step()
    torch.testing.assert_close(session.logits[0], want, rtol=1e-4, atol=1e-4)


def test_the_models_of_this_file_would_show_a_scaling_or_a_gain_that_is_left_out(model):
    """Else the test above would prove nothing."""
    tokens = texts(70)[0][None]
    with torch.no_grad():
        before = model(tokens).logits
        for norm in [m for m in model.modules() if "RMSNorm" in type(m).__name__]:
            gain = norm.weight.clone()
            norm.weight.fill_(1.0)
            assert (model(tokens).logits - before).abs().max() > 1e-2
            norm.weight.copy_(gain)


@pytest.mark.parametrize("length", [512, 513, 1100])
@torch.no_grad()
def test_a_prompt_is_read_in_chunks_as_if_it_were_read_at_once(length):
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES | {"max_position_embeddings": 1200, "num_hidden_layers": 2})
    ).eval()
    rule = Sparsity(80, local_blocks=1, block_size=16)
    prompt = texts(length)[0]
    want = made(prompt[None]).logits[0, -1]
    for selector in ("all", "query"):
        engine = Engine(made, selector=selector, sparsity=rule, cache="full", max_tokens=1200)
        torch.testing.assert_close(engine.session(1).read(0, prompt), want, rtol=1e-4, atol=1e-4)


def test_max_tokens_reaches_to_the_models_context_and_no_further(model):
    Engine(model, sparsity=RULE, max_tokens=256)
    with pytest.raises(
        ValueError, match=r"max_tokens = 257 passes the model's context.*max_tokens=256 or less"
    ):
        Engine(model, sparsity=RULE, max_tokens=257)


def test_a_sliding_window_that_a_text_could_pass_is_refused():
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=100)
    made = transformers.MistralForCausalLM(config).eval()
    with pytest.raises((TypeError, ValueError), match="sliding window"):
        Engine(made, sparsity=RULE, max_tokens=101)
    made.config.sliding_window = None
    for layer in made.model.layers:
        layer.self_attn.sliding_window = None
    assert Engine(made, sparsity=RULE, max_tokens=256).max_tokens == 256


@pytest.mark.parametrize("tied", [True, False])
def test_random_decoders_have_the_shapes_rates_and_angles_of_their_model(tied):
    shape = ModelShape(
        "made up", n_layers=4, hidden=96, n_heads=6, n_kv_heads=3, head_dim=16, ffn=160, vocab=201,
        rms_eps=1e-3, rope_theta=700.0, native_context=512, tied_embeddings=tied, source="made up",
    )  # fmt: skip
    made = random_decoder(shape, 50, dtype=torch.float64, seed=3)
    assert (made.n_heads, made.n_kv_heads, made.head_dim, made.eps) == (6, 3, 16, 1e-3)
    assert len(made.layers) == 4
    for layer in made.layers:
        assert layer.qkv.shape == ((6 + 2 * 3) * 16, 96)
        assert layer.out.shape == (96, 6 * 16)
        assert layer.gate_up.shape == (2 * 160, 96)
        assert layer.down.shape == (96, 160)
        for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
            assert matrix.dtype == torch.float64
            assert float(matrix.std()) * matrix.shape[1] ** 0.5 == pytest.approx(1, rel=0.1)
        for gain in (layer.attention_norm, layer.ffn_norm, made.final_norm):
            assert gain.dtype == torch.float64
            assert gain.tolist() == [1.0] * 96
    assert made.embed.shape == made.head.shape == (201, 96)
    assert (made.head is made.embed) == tied
    assert made.residual_scale == pytest.approx(1.4 / 4**0.5)
    assert (made.embed_scale, made.logit_scale, made.attention_scale) == (1.0, 1.0, None)
    for t, i in ((0, 0), (49, 0), (7, 3), (49, 7)):
        angle = t / 700.0 ** (2 * i / 16)
        assert float(made.cos[t, i]) == pytest.approx(math.cos(angle), abs=1e-6)
        assert float(made.sin[t, i]) == pytest.approx(math.sin(angle), abs=1e-6)
    assert made.cos.shape == made.sin.shape == (50, 8)
    assert made.cos.dtype == made.sin.dtype == torch.float32
    with torch.device("meta"):  # whatever the default device
        again, other = (random_decoder(shape, 50, dtype=torch.float64, seed=seed) for seed in (3, 4))
    assert torch.equal(made.layers[3].down, again.layers[3].down)
    assert torch.equal(made.cos, again.cos)
    assert torch.equal(made.final_norm, again.final_norm)
    assert not torch.equal(made.layers[3].down, other.layers[3].down)
    assert not torch.equal(made.layers[3].down, made.layers[2].down)


def test_rows_that_foresee_are_fused_behind_those_of_a_layer_the_first_layers_own_last():
    """Layer i foresees i + 1; layer 0 itself too; the last one nothing."""
    decoder = random_decoder(
        ModelShape("tiny", 3, 64, 4, 2, 16, 64, 101, 1e-5, 1e4, 512, False, "made up"), 20
    )
    rows = torch.arange(3.0)[:, None, None].expand(3, 48, 64)  # three heads, each row says its layer
    fused = decoder.with_ahead(lambda layer: rows[layer])
    assert fused.ahead_heads == 3
    for i, foreseen in enumerate(([1, 0], [2], [])):
        added = fused.layers[i].qkv[len(decoder.layers[i].qkv) :]
        assert added[:, 0].tolist() == [float(layer) for layer in foreseen for _ in range(48)]
        assert torch.equal(fused.layers[i].qkv[: 8 * 16], decoder.layers[i].qkv)
    normed = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    for i, (following, own) in enumerate(((1.0, 0.0), (2.0, None), (None, None))):
        q, k, v, *ahead = fused.project(i, normed)
        assert (q.shape, k.shape, v.shape) == ((2, 4, 16), (2, 2, 16), (2, 2, 16))
        for got, says in zip(ahead, (following, own), strict=True):
            want = None if says is None else (says * normed.sum(-1))[:, None, None].expand(2, 3, 16)
            assert got is None if want is None else torch.allclose(got, want, atol=1e-5)
    assert decoder.project(0, normed)[3:] == (None, None)
    assert decoder.ahead_heads == 0
