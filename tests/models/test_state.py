"""What a forward pass knows is its own: threads, checkpointing, passes within passes, many models."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import sparda
from sparda.models.attach import _ATTACHED
from sparda.spec import Sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)


def gradient(model, ids):
    model.zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_chooses_the_same_blocks_again(tiny, ids, untrained, reentrant):
    model = tiny(num_hidden_layers=5).train()
    with sparda.attach(model, selector="forecast", weights=untrained(model), sparsity=RULE):
        once = gradient(model, ids(200))
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.enable_input_require_grads()
        torch.testing.assert_close(gradient(model, ids(200)), once)


def test_two_passes_that_are_computed_again_together_keep_apart(tiny, ids, untrained):
    """Gradient accumulation over two texts, one backward pass."""
    model = tiny().train()
    with sparda.attach(model, selector="forecast", weights=untrained(model), sparsity=RULE):
        apart = gradient(model, ids(150)) + gradient(model, ids(150, seed=1))
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.zero_grad()
        sum(model(x, labels=x, use_cache=False).loss for x in (ids(150), ids(150, seed=1))).backward()
        together = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(together, apart)


def test_a_layer_computed_again_without_its_pass_is_an_error_and_no_fallback(tiny, ids, untrained):
    model = tiny()
    layer, forward = model.model.layers[2], model.model.layers[2].forward
    layer.forward = lambda x, **kw: checkpoint(
        lambda y: forward(y, **kw | {"position_embeddings": [t.clone() for t in kw["position_embeddings"]]}),
        x, use_reentrant=False,
    )  # fmt: skip
    with (
        sparda.attach(model, selector="forecast", weights=untrained(model), sparsity=RULE, check=False),
        pytest.raises(RuntimeError, match="layer 2 runs without the layer before it"),
    ):
        model(ids(100), labels=ids(100), use_cache=False).loss.backward()


@pytest.mark.parametrize("selector", ["query", "forecast"])
def test_threads_share_an_attached_model(tiny, ids, untrained, selector):
    model, found = tiny(), {}
    options = {"weights": untrained(model)} if selector == "forecast" else {}
    prompts = [ids(60 + 20 * i, seed=i) for i in range(4)]

    @torch.no_grad()
    def read(i):
        asked = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        found[i] = model.generate(prompts[i], **asked).tolist()

    with sparda.attach(model, selector=selector, sparsity=RULE, phases="decode", **options):
        for i in range(4):
            read(i)
        alone, found = found, {}
        threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == alone


def test_a_thread_that_outlives_the_context_is_told_that_its_tokens_are_mixed(tiny, ids):
    model, entered, left, said = tiny(), threading.Event(), threading.Event(), []

    def stay(*_):
        entered.set()
        left.wait(60)

    def read():
        try:
            model.generate(ids(40), max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
        except RuntimeError as error:
            said.append(str(error))

    with sparda.attach(model, sparsity=RULE):
        hook = model.model.norm.register_forward_hook(stay)
        thread = threading.Thread(target=read)
        thread.start()
        entered.wait(60)
    left.set()
    thread.join()
    hook.remove()
    assert "wait for the thread before you leave" in said[0]


@torch.no_grad()
def test_a_pass_within_a_pass_leaves_the_outer_one_right(tiny, ids, untrained):
    model, inner = tiny(), []
    with sparda.attach(model, selector="forecast", weights=untrained(model), sparsity=RULE):
        want, other = model(ids(100)).logits, model(ids(90, seed=1)).logits

        def again(module, args, kwargs):
            if not inner:
                inner.append(None)
                inner[0] = model(ids(90, seed=1)).logits

        hook = model.model.layers[2].self_attn.register_forward_pre_hook(again, with_kwargs=True)
        got = model(ids(100)).logits
        hook.remove()
    assert torch.equal(got, want)
    assert torch.equal(inner[0], other)


@torch.no_grad()
def test_two_models_are_attached_at_once_with_different_selectors(tiny, ids, reply, untrained):
    one, other = tiny(), tiny(num_hidden_layers=3)
    want = reply(one, ids(80)), reply(other, ids(80), selector="forecast", weights=untrained(other))
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with (
        sparda.attach(one, sparsity=RULE),
        sparda.attach(other, selector="forecast", weights=untrained(other), sparsity=RULE),
    ):
        got = tuple(m.generate(ids(80), **asked)[0, 80:].tolist() for m in (one, other))
    assert got == want
    assert not _ATTACHED


def test_models_that_share_a_config_object_are_told_to_have_one_each(tiny, ids):
    import transformers

    one = tiny()
    other = transformers.LlamaForCausalLM(one.config).eval()
    with sparda.attach(one, sparsity=RULE):
        with pytest.raises(RuntimeError, match=r"copy\.deepcopy\(config\)"):
            other(ids(40))
        with (
            pytest.raises(RuntimeError, match=r"copy\.deepcopy\(config\)"),
            sparda.attach(other, sparsity=RULE),
        ):
            pass


@torch.no_grad()
def test_layers_with_rotary_tables_of_their_own_are_served(tiny, ids, untrained):
    """Gemma 3 hands other angles to its windowed layers; texts shorter than the window are served."""
    model = tiny("Gemma3Text", head_dim=16, sliding_window=512, num_hidden_layers=6)
    with sparda.attach(model, selector="forecast", weights=untrained(model), sparsity=RULE):
        assert model(ids(100)).logits.isfinite().all()


@torch.no_grad()
def test_offloaded_layers_are_served_with_weights_that_stay_where_they_compute(
    tiny, ids, reply, untrained, tmp_path
):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from sparda.selectors.proxy import Proxy

    tiny().save_pretrained(tmp_path / "model")
    rest = (
        "model.embed_tokens",
        "model.norm",
        "lm_head",
        "model.rotary_emb",
        "model.layers.1",
        "model.layers.3",
    )
    places = dict.fromkeys(rest, "cpu") | {"model.layers.0": "disk", "model.layers.2": "disk"}
    load = transformers.AutoModelForCausalLM.from_pretrained
    away = load(tmp_path / "model", device_map=places, offload_folder=tmp_path / "off", dtype=torch.float32)
    whole = load(tmp_path / "model", dtype=torch.float32)
    weights = untrained(whole)
    for _ in range(2):
        got, want = (reply(m, ids(100), selector="forecast", weights=weights) for m in (away, whole))
        assert got == want
    ours, theirs = (Proxy.calibrate(m, ids(100)) for m in (away, whole))
    for a, b in zip([*ours.weights, *ours.skew], [*theirs.weights, *theirs.skew], strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(TypeError, match=r"not on a device.*onto one device"):
        sparda.Engine(away, sparsity=RULE, max_tokens=256)
