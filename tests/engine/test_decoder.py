"""The engine's logits are the model's, where no gain is one and no scaling is left at its default."""

from __future__ import annotations

import pytest
import torch

from sparda.engine import Engine
from sparda.forecast import Forecast
from sparda.spec import Sparsity

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
