"""The proxy: sums over heads in the weights, a skew from real queries, blocks of the best token."""

from typing import ClassVar

import pytest
import torch

import sparda
from sparda.cache import rotate
from sparda.selectors import LayerView, Proxy, Streaming, make
from sparda.spec import Sparsity

transformers = pytest.importorskip("transformers")

SMALL = Sparsity(4, local_blocks=1, block_size=16)
HEADS, DIM, HIDDEN, TOKENS = 2, 32, 48, 100


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def angles(n_tokens, dim=DIM):
    turns = torch.arange(n_tokens)[:, None] * 0.1 ** torch.arange(dim // 2)
    return turns.cos()[None], turns.sin()[None]


def view(group, ahead=None, layer=1):
    """The last 3 queries of a text, and the layer input [1, 3, hidden] that they come from."""
    hidden, keys = noise(1, 3, HIDDEN, seed=1), noise(1, HEADS, TOKENS, DIM, seed=2)
    positions = torch.arange(TOKENS - 3, TOKENS)[None]
    queries = torch.zeros(1, HEADS * group, 3, DIM)
    return hidden, LayerView(layer, queries, keys, positions, SMALL, ahead=ahead)


def with_ahead(selector, layer, group):
    hidden, seen = view(group, layer=layer)
    cos, sin = (x[:, None, -3:] for x in angles(TOKENS))
    heads = selector.look_ahead(layer, hidden).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
    return hidden, view(group, rotate(heads, cos, sin), layer)[1], seen


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("layer", [0, 1])
def test_block_scores_equal_a_plain_loop_over_heads_and_tokens(group, layer):
    heads = noise(2, HEADS, group, DIM, HIDDEN, seed=3) / 7  # every head's own query projection
    skew = list(torch.linalg.qr(noise(2, HEADS, DIM, DIM)).Q[..., :16])
    selector = Proxy([w.sum(1).flatten(0, 1) for w in heads], skew)
    assert selector.ahead_weights(layer).shape == (HEADS * DIM, HIDDEN)
    hidden, seen, _ = with_ahead(selector, layer, group)
    got = selector.block_scores(seen)
    cos, sin = angles(TOKENS)
    for h in range(HEADS):
        for i, t in enumerate(range(TOKENS - 3, TOKENS)):
            tokens = []
            for j in range(t + 1):
                k = seen.all_keys[0, h, j] @ skew[layer][h]
                q = [rotate(w @ hidden[0, i], cos[0, t], sin[0, t]) @ skew[layer][h] for w in heads[layer, h]]
                tokens.append(sum(x @ k for x in q))
            want = [max(tokens[b * 16 : b * 16 + 16]) for b in range(t // 16 + 1)]
            torch.testing.assert_close(got[0, h, i], torch.tensor(want), rtol=1e-4, atol=1e-4)


def test_the_true_input_and_all_channels_order_blocks_by_their_best_raw_product():
    heads = noise(HEADS, 3, DIM, HIDDEN, seed=3)
    full = torch.linalg.qr(noise(HEADS, DIM, DIM)).Q
    selector = Proxy([heads.sum(1).flatten(0, 1)], [full])
    hidden, seen, _ = with_ahead(selector, 0, 3)
    cos, sin = (x[:, None, -3:] for x in angles(TOKENS))
    queries = rotate(torch.einsum("hgdc,btc->bhgtd", heads, hidden).flatten(1, 2), cos, sin)
    products = torch.einsum("bhgtd,bhjd->bhtj", queries.unflatten(1, (HEADS, 3)), seen.all_keys)
    later = torch.arange(TOKENS) > seen.positions[:, None, :, None]
    products = products.masked_fill(later, float("-inf"))
    padded = torch.nn.functional.pad(products, (0, 12), value=float("-inf"))
    want = padded.unflatten(-1, (7, 16)).amax(-1)
    got = selector.block_scores(seen)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    assert torch.equal(got.argsort(-1), want.argsort(-1))
    chosen = selector.select(seen)[0, 0, 0].tolist()  # forced: 0, 5, 6; one place is left
    assert chosen == sorted({0, 5, 6, 1 + int(want[0, 0, 0, 1:5].argmax())})


def test_the_index_may_be_kept_and_then_no_key_is_read():
    selector = Proxy.untrained(n_layers=2, hidden=HIDDEN, n_kv_heads=HEADS, head_dim=DIM)
    _, seen, _ = with_ahead(selector, 1, 3)
    index = selector.index_keys(1, seen.all_keys)
    assert index.shape == (1, HEADS, TOKENS, selector.index_dim)
    kept = LayerView(
        1, seen.queries, None, seen.positions, SMALL, ahead=seen.ahead, stored=index, stored_blocks=7
    )
    assert torch.equal(selector.block_scores(kept), selector.block_scores(seen))
    assert torch.equal(selector.select(kept), selector.select(seen))


def test_untrained_weights_have_a_quarter_of_the_channels_in_orthonormal_directions():
    made = Proxy.untrained(n_layers=3, hidden=64, n_kv_heads=2, head_dim=128).to("cpu", torch.float64)
    assert (len(made.weights), made.weights[0].shape) == (3, (256, 64))
    assert (made.index_dim, made.skew[2].shape) == (32, (2, 128, 32))
    gram = made.skew[2].mT @ made.skew[2]
    torch.testing.assert_close(gram, torch.eye(32).double().expand(2, 32, 32), rtol=0, atol=1e-5)
    assert Proxy.untrained(n_layers=1, hidden=8, n_kv_heads=1, head_dim=64, channels=64).index_dim == 64


def tiny_llama(kv_heads):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=96, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=kv_heads, head_dim=32, vocab_size=101, max_position_embeddings=512,
        initializer_range=0.1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def prompt(n, seed=0):
    return torch.randint(3, 101, (1, n), generator=torch.Generator().manual_seed(seed))


class Spy(Streaming):
    """Keeps the true post-RoPE queries of every layer."""

    seen: ClassVar[dict[int, torch.Tensor]] = {}

    def block_scores(self, view):
        self.seen[view.layer] = view.queries
        return super().block_scores(view)


@torch.no_grad()
def test_calibration_takes_the_first_singular_vectors_of_each_groups_queries():
    model, text = tiny_llama(2), prompt(80)
    made = Proxy.calibrate(model, text, channels=16)
    with sparda.attach(model, selector=Spy(), sparsity=SMALL, phases=(), probe=sparda.Probe(queries=None)):
        model(text)
    for layer in range(3):
        for h, queries in enumerate(Spy.seen[layer].unflatten(1, (2, 3))[0]):
            first = torch.linalg.svd(queries.flatten(0, 1)).Vh[:16].T  # [d, r]
            mine = made.skew[layer][h]
            torch.testing.assert_close(mine @ mine.T, first @ first.T, rtol=0, atol=1e-3)  # signs are free
    assert not any(m._forward_pre_hooks for m in model.modules())
    rows = model.model.layers[1].self_attn.q_proj.weight.unflatten(0, (2, 3, 32))
    torch.testing.assert_close(made.weights[1].unflatten(0, (2, 32)), rows.sum(1))


@pytest.mark.parametrize("kv_heads", [6, 2])
@torch.no_grad()
def test_attach_serves_it_with_one_and_with_three_heads_a_group(kv_heads):
    model, tokens = tiny_llama(kv_heads), prompt(130)
    proxy = Proxy.calibrate(model, prompt(120, seed=1), channels=32)
    dense, probe = model(tokens).logits, sparda.Probe()
    with sparda.attach(model, selector=proxy, sparsity=SMALL, probe=probe):
        assert (model(tokens).logits - dense).abs().max() > 1e-3
        cached = model.generate(tokens, max_new_tokens=5, do_sample=False, pad_token_id=0)
        again = model.generate(tokens, max_new_tokens=5, do_sample=False, pad_token_id=0, use_cache=False)
    assert torch.equal(cached, again)
    assert probe.at(layer=2).block_scores.shape == (1, kv_heads, 1, 9)
    with sparda.attach(model, selector=proxy, sparsity=Sparsity(10, local_blocks=1, block_size=16)):
        torch.testing.assert_close(model(tokens).logits, dense, rtol=1e-4, atol=1e-4)


def test_calibration_wants_ids_not_text():
    model = tiny_llama(2)
    for wrong in ("text", prompt(80)[0]):
        with pytest.raises(TypeError, match=r"ids \[1, T\]"):
            Proxy.calibrate(model, wrong)


def test_what_the_proxy_cannot_do_it_says():
    sizes = {"n_layers": 2, "hidden": HIDDEN, "n_kv_heads": HEADS, "head_dim": DIM}
    for wrong in (8, 24, 64):
        with pytest.raises(ValueError, match="power of two from 16 to the head dimension 32"):
            Proxy.untrained(**sizes, channels=wrong)
    with pytest.raises(ValueError, match="needs the layer before"):
        Proxy.untrained(**sizes).select(view(1)[1])
    with pytest.raises(TypeError, match=r"needs weights, skew: .*Proxy.calibrate"):
        make("proxy")
    model = tiny_llama(2)
    with pytest.raises(ValueError, match="at least 32 tokens"):
        Proxy.calibrate(model, prompt(10))
    biased = transformers.Qwen2Config(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=101,
    )  # fmt: skip
    biased = transformers.Qwen2ForCausalLM(biased).eval()
    torch.nn.init.ones_(biased.model.layers[0].self_attn.q_proj.bias)
    with pytest.raises(TypeError, match=r"linear map.*--init random"):
        Proxy.calibrate(biased, prompt(80))
