"""An engine is held to the model it was made from: each planted error is found, and the module named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sparda
from sparda.engine.check import check_decoder
from sparda.engine.weights import from_hugging_face
from sparda.models.watch import differs
from sparda.spec import Sparsity

transformers = pytest.importorskip("transformers")

RULE = Sparsity(4, local_blocks=1, block_size=16)
GRANITE = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 4.0,
    "attention_multiplier": 0.2,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}


def ids(n, seed=0):
    return torch.randint(3, 256, (1, n), generator=torch.Generator().manual_seed(seed))


def said(model, n=80):
    """Greedy tokens of the engine and of the attached model."""
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    engine = sparda.Engine(model, sparsity=RULE, max_tokens=256)
    with torch.no_grad(), sparda.attach(model, sparsity=RULE):
        attached = model.generate(input_ids=ids(n), **asked)[0, n:].tolist()
    return engine.generate(ids(n), max_new_tokens=8, stop=()).tokens[0], attached


def swapped(decoder):
    a, b, c, d = decoder.layers
    return replace(decoder, layers=[a, c, b, d])


def partial(decoder):
    cos, sin = decoder.cos.clone(), decoder.sin.clone()
    cos[:, 4:], sin[:, 4:] = 1, 0
    return replace(decoder, cos=cos, sin=sin)


def far(decoder):
    """Right near the beginning, wrong from the middle of the context on."""
    cos = decoder.cos.clone()
    cos[100:] = decoder.cos[:156]
    return replace(decoder, cos=cos)


def without_v(decoder):
    first, *rest = decoder.layers
    qkv = first.qkv.clone()
    qkv[96:] *= 1.02
    return replace(decoder, layers=[replace(first, qkv=qkv), *rest])


PLANTED = {
    "swapped layers": (swapped, "model.layers.1.input_layernorm"),
    "a part of the head turns": (partial, r"layers.0.self_attn.q_proj and its rotation"),
    "the table of another limit": (far, r"layers.0.self_attn.q_proj and its rotation"),
    "a weight that changed": (without_v, "layers.0.self_attn.v_proj"),
    "another eps": (lambda d: replace(d, eps=1e-5), "layers.0.input_layernorm"),
    "another residual multiplier": (lambda d: replace(d, residual_scale=0.31), "its first residual"),
    "another embedding multiplier": (lambda d: replace(d, embed_scale=3.1), "model.embed_tokens"),
    "another logit scale": (lambda d: replace(d, logit_scale=4.0), "lm_head"),
    "another attention scale": (lambda d: replace(d, attention_scale=None), "the scale of its scores"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_is_found_and_named(tiny, error, dtype):
    plant, name = PLANTED[error]
    model = tiny("Granite", **GRANITE).to(dtype)
    decoder = from_hugging_face(model, 256)
    with pytest.raises(TypeError, match=rf"{name}.*use sparda\.attach"):
        check_decoder(plant(decoder), model, model, 256)


@pytest.mark.parametrize(
    ("family", "options", "name"),
    [
        ("Llama", {"hidden_act": "relu"}, r"layers\.0\.mlp otherwise.*'relu'"),
        ("Mistral", {"hidden_act": "gelu", "sliding_window": None}, r"layers\.0\.mlp otherwise.*'gelu'"),
        ("Helium", {"head_dim": 16}, r"q_proj and its rotation"),
        ("SmolLM3", {"no_rope_layers": [1, 0, 1, 1]}, r"layers\.1\.self_attn\.q_proj and its rotation"),
        ("Gemma", {"head_dim": 16}, r"embed_tokens"),
        ("Llama", {"attention_bias": True}, r"no place for the model's model\.layers\.0.*q_proj\.bias"),
        ("Llama", {"mlp_bias": True}, r"no place .*gate_proj\.bias"),
        ("Qwen3", {"head_dim": 16}, r"no place .*q_norm"),
        ("Olmo2", {}, r"has no model\.layers\.0\.input_layernorm"),
        ("Olmo", {}, r"has no model\.layers\.0\.input_layernorm"),
        ("Mixtral", {}, r"has no model\.layers\.0\.mlp\.gate_proj"),
    ],
)  # fmt: skip
def test_a_model_that_computes_something_else_is_refused_with_a_sentence(tiny, family, options, name):
    with pytest.raises(TypeError, match=rf"{name}.*use sparda\.attach"):
        sparda.Engine(tiny(family, **options), sparsity=RULE, max_tokens=256)


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "Model", "ForTokenClassification"])
def test_a_model_without_a_language_model_head_is_told_which_class_has_one(tiny, kind):
    model = getattr(transformers, f"Llama{kind}")(tiny().config)
    with pytest.raises(TypeError, match=r"has none; load it with transformers\.AutoModelForCausalLM"):
        sparda.Engine(model, sparsity=RULE, max_tokens=256)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("family", "options"), [("Llama", {}), ("Granite", GRANITE)])
def test_there_is_no_false_alarm_in_any_dtype(tiny, family, options, dtype):
    model = tiny(family, **options).to(dtype)
    sparda.Engine(model, sparsity=RULE, max_tokens=2048)


def test_random_gains_and_multipliers_leave_engine_and_attached_model_alike(tiny):
    assert len(set(map(tuple, said(tiny("Granite", **GRANITE))))) == 1


def test_weights_of_two_dtypes_are_refused_and_the_remedy_helps(tiny):
    model = tiny()
    model.model.layers[2].mlp.up_proj.half()
    with pytest.raises(TypeError, match=r"float16 and torch\.float32.*model\.to\(torch\.float16\)"):
        sparda.Engine(model, sparsity=RULE, max_tokens=256)
    sparda.Engine(model.to(torch.float16), sparsity=RULE, max_tokens=256)


def test_a_live_adapter_is_folded_in(tiny):
    peft = pytest.importorskip("peft")
    model = tiny()
    plain = said(model)[0]
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_alpha=64)
    model.add_adapter(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.5)
    model.eval()
    engine, attached = said(model)
    assert engine == attached != plain
    model.disable_adapters()
    assert said(model)[0] == plain


def test_a_whole_peft_model_is_served_and_one_with_virtual_tokens_refused(tiny):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny(), peft.LoraConfig(r=4, target_modules=["k_proj"], lora_alpha=64)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.5)
    engine, attached = said(model)
    assert engine == attached
    tuned = peft.get_peft_model(tiny(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(TypeError, match=r"use sparda\.attach|could not be checked"):
        sparda.Engine(tuned, sparsity=RULE, max_tokens=256)


CHANGES = [
    "in place",
    "data",
    "loaded",
    "an adapter switched off",
    "a hook",
    "a table",
    "a scale",
    "an activation",
]


@pytest.mark.parametrize("how", CHANGES)
def test_weights_that_change_after_the_engine_was_made_are_noticed(tiny, how):
    model = tiny()
    if how == "an adapter switched off":
        peft = pytest.importorskip("peft")
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
        model.eval()
    engine = sparda.Engine(model, sparsity=RULE, max_tokens=256)
    engine.generate(ids(20), max_new_tokens=1)
    weight = model.model.layers[2].mlp.up_proj.weight
    with torch.no_grad():
        if how == "in place":
            weight[0, 1] += 1
        elif how == "data":
            weight.data.mul_(1.01)
        elif how == "loaded":
            model.load_state_dict({k: v + 0.01 for k, v in model.state_dict().items()})
        elif how == "a table":
            model.model.rotary_emb.inv_freq.mul_(0.5)
        elif how == "a scale":
            model.model.layers[1].self_attn.scaling *= 3
        elif how == "an activation":
            model.model.layers[1].mlp.act_fn = torch.nn.ReLU()
        elif how == "a hook":
            model.model.layers[1].mlp.up_proj.register_forward_hook(lambda m, a, out: 2 * out)
        else:
            model.disable_adapters()
    with pytest.raises(RuntimeError, match=r"have changed or moved .*; make the engine again"):
        engine.generate(ids(20), max_new_tokens=1)


def test_a_hook_that_changes_what_a_module_computes_is_found(tiny):
    model = tiny()
    model.model.layers[1].mlp.register_forward_hook(lambda m, a, out: 1.5 * out)
    with pytest.raises(TypeError, match=r"layers\.1\.mlp otherwise"):
        sparda.Engine(model, sparsity=RULE, max_tokens=256)
    sparda.Engine(model, sparsity=RULE, max_tokens=256, check=False)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("layers.2", r"from model\.layers\.1 to model\.layers\.2"),
        ("layers.0", r"from model\.embed_tokens to model\.layers\.0"),
        ("layers.2.self_attn", r"to model\.layers\.2\.self_attn otherwise"),
        ("layers.1.self_attn.o_proj", r"to model\.layers\.1\.self_attn\.o_proj"),
        ("layers.1.mlp", r"to model\.layers\.1\.mlp"),
        ("layers.3.input_layernorm", r"to model\.layers\.3\.input_layernorm"),
        ("norm", r"from model\.layers\.3 to model\.norm"),
    ],
)
def test_what_happens_between_two_modules_is_found(tiny, place, name):
    """Steering vectors and ablations hook there: each module computes as it should, of another input."""
    model = tiny()

    def steer(module, args, kwargs):
        key = "hidden_states"
        return (
            (args, kwargs | {key: kwargs[key] + 1}) if key in kwargs else ((args[0] + 1, *args[1:]), kwargs)
        )

    model.model.get_submodule(place).register_forward_pre_hook(steer, with_kwargs=True)
    with pytest.raises(TypeError, match=name):
        sparda.Engine(model, sparsity=RULE, max_tokens=256)


def test_an_engine_made_while_its_model_is_attached_is_held_to_the_model_itself(tiny):
    model = tiny()
    with sparda.attach(model, sparsity=RULE, probe=True) as attached:
        sparda.Engine(model, sparsity=RULE, max_tokens=256)
    assert not attached.probe.records


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        (LINEAR, 512),
        (YARN | {"factor": 4.0, "original_max_position_embeddings": 128}, 512),
        (YARN | {"factor": 2.0, "original_max_position_embeddings": 32}, 128),
        (
            {
                "rope_type": "llama3", "factor": 4.0, "rope_theta": 1e4, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
            },
            128,
        ),
        ({"rope_type": "default", "rope_theta": 1e4}, 128),
    ],
)  # fmt: skip
def test_the_context_counts_rotary_scaling(tiny, rope, longest):
    model = tiny(max_position_embeddings=128, rope_parameters=rope)
    engine = sparda.Engine(model, sparsity=RULE, max_tokens=longest)
    with pytest.raises(ValueError, match=rf"context of {longest}; make the engine with max_tokens={longest}"):
        sparda.Engine(model, sparsity=RULE, max_tokens=longest + 1)
    n = longest - 40
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad(), sparda.attach(model, sparsity=RULE):
        want = model.generate(ids(n), **asked)[0, n:].tolist()
    assert engine.generate(ids(n), max_new_tokens=8, stop=()).tokens[0] == want


def test_dynamic_angles_are_served_as_far_as_they_stay_and_both_remedies_help(tiny):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model = tiny(max_position_embeddings=128, rope_parameters=rope)
    with torch.no_grad():
        model(ids(200))  # the model's table has grown
    with pytest.raises(
        ValueError, match=r"max_tokens=128 or less, or load the model with rope_type 'linear'"
    ):
        sparda.Engine(model, sparsity=RULE, max_tokens=129)
    engine = sparda.Engine(model, sparsity=RULE, max_tokens=128)
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad(), sparda.attach(model, sparsity=RULE):
        want = model.generate(ids(90), **asked)[0, 90:].tolist()
    assert engine.generate(ids(90), max_new_tokens=8, stop=()).tokens[0] == want
    sparda.Engine(tiny(max_position_embeddings=128, rope_parameters=LINEAR), sparsity=RULE, max_tokens=512)


def test_longrope_beyond_the_original_length_is_served_with_a_word(tiny):
    rope = {
        "rope_type": "longrope", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128,
        "short_factor": [1.0] * 8, "long_factor": [3.0 + i / 2 for i in range(8)],
    }  # fmt: skip
    model = tiny(max_position_embeddings=512, rope_parameters=rope)
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for n, longest in ((200, 256), (100, 128)):
        with (
            pytest.warns(UserWarning, match="max_tokens=128 or less for them") if longest > 128 else _quiet()
        ):
            engine = sparda.Engine(model, sparsity=RULE, max_tokens=longest)
        with torch.no_grad(), sparda.attach(model, sparsity=RULE):
            want = model.generate(ids(n), **asked)[0, n:].tolist()
        assert engine.generate(ids(n), max_new_tokens=8, stop=()).tokens[0] == want


def _quiet():
    import contextlib

    return contextlib.nullcontext()


def test_an_engine_is_used_while_its_model_is_attached_or_in_training_mode(tiny):
    model = tiny()
    engine = sparda.Engine(model, sparsity=RULE, max_tokens=256)
    want = engine.generate(ids(40), max_new_tokens=3, stop=()).tokens
    with sparda.attach(model.train(), sparsity=RULE):
        assert engine.generate(ids(40), max_new_tokens=3, stop=()).tokens == want


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stop": ["a"]}, "stop holds token ids"), ({"max_new_tokens": 2.5}, "max_new_tokens >= 1"),
        ({"temperature": float("nan")}, "temperature must be >= 0"),
    ],
)  # fmt: skip
def test_a_request_of_the_wrong_kind_is_refused(tiny, wrong, message):
    model = tiny()
    engine = sparda.Engine(model, sparsity=RULE, max_tokens=256)
    with pytest.raises(ValueError, match=message):
        engine.generate(ids(20), **{"max_new_tokens": 2} | wrong)
    assert engine.generate(ids(20), max_new_tokens=2, stop=2).tokens
    for longest in (0, 100.5):
        with pytest.raises(ValueError, match="whole number of at least 1"):
            sparda.Engine(model, sparsity=RULE, max_tokens=longest)


def test_an_adapter_that_is_no_linear_map_is_told_to_be_merged(tiny):
    peft = pytest.importorskip("peft")
    model = tiny()
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["embed_tokens"]))
    with pytest.raises(TypeError, match=r"merge_and_unload|embed_tokens"):
        sparda.Engine(model.eval(), sparsity=RULE, max_tokens=256)


def test_a_sliding_window_is_served_up_to_its_length_and_the_remedy_helps(tiny):
    model = tiny("Mistral", sliding_window=96)
    with pytest.raises(ValueError, match=r"sliding window of 96.*max_tokens=96 or less"):
        sparda.Engine(model, sparsity=RULE, max_tokens=97)
    assert sparda.Engine(model, sparsity=RULE, max_tokens=96).generate(ids(50), max_new_tokens=4)


def test_a_branch_that_adds_little_is_compared_by_itself(tiny):
    """With small weights, as they are at the start of a training, the residual stream hides an activation."""
    model = tiny(hidden_act="gelu_pytorch_tanh")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(1e-3)
    with pytest.raises(TypeError, match=r"layers\.0\.mlp otherwise"):
        sparda.Engine(model, sparsity=RULE, max_tokens=256)


def test_one_huge_row_hides_no_other():
    """Real models have a first token whose states are a hundred times those of the others."""
    theirs = torch.ones(5, 8)
    theirs[0] *= 1e5
    ours = theirs.clone()
    assert not differs(ours * (1 + 1e-4), theirs, 2e-3)
    ours[3] += 0.1
    assert differs(ours, theirs, 2e-3)


def test_an_attached_model_is_checked_again_when_its_layers_change(tiny):
    model = tiny()
    with sparda.attach(model, sparsity=RULE):
        pass
    own = model.model.layers[1].self_attn.forward
    model.model.layers[1].self_attn.forward = lambda *a, **k: (own(*a, **k)[0] + 1, None)
    with sparda.attach(model, sparsity=RULE):
        pass  # the module adds one in both
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    model.config._attn_implementation = "sdpa"
    with (
        pytest.raises(TypeError, match=r"plain causal attention|causal"),
        sparda.attach(model, sparsity=RULE),
    ):
        pass
