"""MiniCPM4.1 in the small: its three scalings, LongRoPE, its block rule, load and attach."""

import json
import math

import pytest
import torch

import sparda
from sparda.forecast import Forecast
from sparda.selectors import Proxy
from sparda.spec import SPARSITY, Sparsity

transformers = pytest.importorskip("transformers")

from sparda.models.minicpm import MiniCPMConfig, MiniCPMForCausalLM, minicpm_sparsity  # noqa: E402

SMALL = Sparsity(4, local_blocks=1, block_size=16)
SHORT = [1 + i / 10 for i in range(8)]
LONG = [1 + i / 2 for i in range(8)]
ORIGINAL = 48  # tokens; beyond them the long factors hold
PUBLISHED = {
    "kernel_size": 32, "kernel_stride": 16, "init_blocks": 1, "block_size": 64, "window_size": 2048,
    "topk": 64, "use_nope": False, "dense_len": 8192,
}  # fmt: skip


def config(**changes):
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 101, "dim_model_base": 4,
        "max_position_embeddings": 4 * ORIGINAL, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "initializer_range": 0.1,
        "rope_scaling": {
            "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
            "original_max_position_embeddings": ORIGINAL,
        },
    }  # fmt: skip
    return MiniCPMConfig(**sizes | changes)


def random_model(**changes):
    torch.manual_seed(0)
    return MiniCPMForCausalLM(config(**changes)).eval()


@pytest.fixture(scope="module")
def model():
    return random_model()


def prompt(n, batch=1):
    return torch.randint(3, 101, (batch, n), generator=torch.Generator().manual_seed(0))


def folded(model):
    """A plain Llama with the three scalings multiplied into its weights."""
    ours = model.config
    scale = ours.scale_depth / math.sqrt(ours.num_hidden_layers)
    shared = {
        name: getattr(ours, name)
        for name in (
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
            "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
        )
    }  # fmt: skip
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared)).eval()
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    for name, weight in weights.items():
        if "embed_tokens" in name:
            weight *= 12
        elif "o_proj" in name or "down_proj" in name:
            weight *= scale
        elif "lm_head" in name:
            weight /= 16
    llama.load_state_dict(weights)
    return llama


@pytest.mark.parametrize(("layers", "scale"), [(4, 0.7), (32, 0.2475)])
@pytest.mark.parametrize("n_tokens", [40, 60])  # short and long factors
@torch.no_grad()
def test_the_logits_are_those_of_a_llama_with_folded_scalings(layers, scale, n_tokens):
    model = random_model(num_hidden_layers=layers)
    assert model.config.residual_multiplier == pytest.approx(scale, abs=5e-5)
    assert (model.config.embedding_multiplier, model.config.logits_scaling) == (12, 16)
    want = folded(model)(prompt(n_tokens, batch=2)).logits
    got = model(prompt(n_tokens, batch=2)).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    plain = transformers.LlamaForCausalLM(folded(model).config).eval()
    plain.load_state_dict(model.state_dict())
    assert (plain(prompt(n_tokens)).logits[0] - want[0]).abs().max() > 0.1  # the scalings matter


def test_the_defaults_are_those_of_the_published_model():
    real = MiniCPMConfig(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=2
    )
    assert real.residual_multiplier == pytest.approx(0.2475, abs=2e-5)
    assert (real.embedding_multiplier, real.logits_scaling, real.head_dim) == (12, 16, 128)
    assert real.attention_multiplier == 128**-0.5


@pytest.mark.parametrize(("n_tokens", "factors"), [(ORIGINAL, SHORT), (ORIGINAL + 1, LONG)])
def test_longrope_takes_short_factors_up_to_the_original_length_and_long_ones_beyond(
    model, n_tokens, factors
):
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(n_tokens)[None])
    strength = math.sqrt(1 + math.log(4) / math.log(ORIGINAL))  # the context is 4 times the original
    for t in (0, 7, n_tokens - 1):  # one table: every position, also those below the original length
        angles = torch.tensor([t / (f * 10000.0 ** (2 * i / 16)) for i, f in enumerate(factors)] * 2)
        torch.testing.assert_close(cos[0, t], strength * angles.cos())
        torch.testing.assert_close(sin[0, t], strength * angles.sin())


@torch.no_grad()
def test_a_cache_that_grows_past_the_original_length_keeps_its_short_angles(model):
    tokens = prompt(ORIGINAL + 4)
    cache = transformers.DynamicCache(config=model.config)
    model(tokens[:, :ORIGINAL], past_key_values=cache, use_cache=True)
    short = cache.layers[0].keys.clone()
    for token in tokens[:, ORIGINAL:].T[..., None]:
        model(token, past_key_values=cache, use_cache=True)
    grown, whole = cache.layers[0].keys, model(tokens, use_cache=True).past_key_values.layers[0].keys
    assert torch.equal(grown[:, :, :ORIGINAL], short)
    torch.testing.assert_close(grown[:, :, ORIGINAL:], whole[:, :, ORIGINAL:])
    assert (grown - whole)[:, :, 1:ORIGINAL].abs().amax(-1).min() > 1e-3


@torch.no_grad()
def test_a_saved_model_loads_without_its_remote_code(model, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model.save_pretrained(tmp_path)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    written = json.loads(file.read_text())
    written["auto_map"] = {
        "AutoConfig": "configuration_minicpm.MiniCPMConfig",
        "AutoModelForCausalLM": "modeling_minicpm.MiniCPMForCausalLM",
    }
    rope = written.pop("rope_parameters")  # as transformers 4 wrote it
    written |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "mup_denominator": 32}
    file.write_text(json.dumps(written))
    loaded, tokenizer = sparda.load(tmp_path)
    assert type(loaded) is MiniCPMForCausalLM
    assert len(tokenizer) == 2
    assert loaded.config.rope_parameters == model.config.rope_parameters
    for n_tokens in (40, 60):
        assert torch.equal(loaded(prompt(n_tokens)).logits, model(prompt(n_tokens)).logits)


def test_the_block_rule_adds_the_local_window_to_topk_and_says_so():
    with pytest.warns(UserWarning, match=r"topk 64 \+ 32 local blocks .* = 96 blocks.*dense_len 8192 is not"):
        assert minicpm_sparsity(config(sparse_config=PUBLISHED)) == SPARSITY["minicpm4.1-8b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"no sparse_config; add what the model card.*'topk': 64"),
        ({"block_size": 64, "topk": 64}, "lacks window_size, init_blocks, kernel_size, kernel_stride"),
        (PUBLISHED | {"use_nope": True}, "without RoPE"),
        (PUBLISHED | {"window_size": 2000}, "multiple of block_size"),
    ],
)
def test_a_config_without_a_usable_block_rule_says_what_to_do(given, message):
    with pytest.raises(ValueError, match=message):
        minicpm_sparsity(config(sparse_config=given))


@torch.no_grad()
def test_attach_serves_it_and_reading_every_block_is_dense(model):
    tokens, want = prompt(120), model(prompt(120)).logits
    with sparda.attach(model, selector="all", sparsity=SMALL):
        torch.testing.assert_close(model(tokens).logits, want, rtol=1e-4, atol=1e-4)
    with sparda.attach(model, sparsity=Sparsity(8, local_blocks=1, block_size=16)):
        torch.testing.assert_close(model(tokens).logits, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("selector", ["query", "streaming", "random", "oracle", "forecast", "proxy"])
@torch.no_grad()
def test_attach_serves_it_with_every_selector(model, selector):
    options = {}
    if selector == "forecast":
        options["weights"] = Forecast.untrained(n_layers=4, hidden=64, n_kv_heads=2, head_dim=16)
    if selector == "proxy":
        selector = Proxy.calibrate(model, prompt(40))
    tokens, want = prompt(120), model(prompt(120)).logits
    with sparda.attach(model, selector=selector, sparsity=SMALL, **options):
        got = model(tokens).logits
        reply = model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert got.isfinite().all()
    assert (got - want).abs().max() > 1e-3
    assert reply.shape == (1, 123)
