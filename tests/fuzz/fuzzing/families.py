"""Decoders of transformers that the fuzzer draws from, and the parts of their configurations that vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Draw = Callable[[Random, dict[str, Any]], dict[str, Any]]  # may read the sizes; returns settings

ACTIVATIONS = ("silu",) * 12 + ("gelu", "gelu_pytorch_tanh", "relu")
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}  # fmt: skip

MINISTRAL = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """model_type of transformers; settings of its own; whether its rotary scaling is drawn too."""

    name: str
    draw: Draw = lambda rng, sizes: {}
    weight: int = 1
    rope: bool = True
    square: bool = False  # hidden must be query heads times head_dim
    experts: bool = False
    fixed: dict[str, Any] = field(default_factory=dict)


def _flags(*names: str) -> Draw:
    return lambda rng, sizes: {name: rng.random() < 0.35 for name in names}


def _llama(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    settings = {"hidden_act": rng.choice(ACTIVATIONS)}
    if rng.random() < 0.1:
        settings |= _flags("attention_bias", "mlp_bias")(rng, sizes)
    return settings


def _granite(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return _llama(rng, sizes) | {
        "embedding_multiplier": rng.choice((1.0, 2.0, 6.0)),
        "residual_multiplier": rng.choice((1.0, 0.25, 0.5)),
        "logits_scaling": rng.choice((1.0, 4.0, 0.5)),
        "attention_multiplier": rng.choice((1.0, 0.25, 0.08)),
    }


def _minicpm(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "scale_emb": rng.choice((1, 4, 12)),
        "scale_depth": rng.choice((0.7, 1.4, 2.0)),
        "dim_model_base": rng.choice((16, sizes["hidden_size"], 64)),
        "hidden_act": rng.choice(ACTIVATIONS),
    }


def _partial(*shares: float, flags: Draw = lambda rng, sizes: {}) -> Draw:
    """Only a part of each head is rotated."""

    def draw(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
        theta = rng.choice((1e3, 1e4))
        parameters = {
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": rng.choice(shares),
        }
        return {"rope_parameters": parameters} | flags(rng, sizes)

    return draw


def _nope(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    """Some layers are not rotated."""
    return {"no_rope_layers": [rng.randint(0, 1) for _ in range(sizes["num_hidden_layers"])]}


def _clip(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return {"clip_qkv": rng.choice((None, None, 1.5))}


def _mixed_windows(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    """Sliding windows that may be shorter than the text, in all layers, in some, or in none."""
    kinds = rng.choice((("full_attention",), ("full_attention", "sliding_attention")))
    layers = [rng.choice(kinds) for _ in range(sizes["num_hidden_layers"])]
    return {"layer_types": layers, "sliding_window": rng.choice((16, 64, 512))}


def _even(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    """Heads come in pairs."""
    return {"num_key_value_heads": 2, "num_attention_heads": 2 * sizes["num_key_value_heads"]}


def _window(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return {"sliding_window": rng.choice((None, None, None, 32, 1024))}


def _mistral(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    window = None if rng.random() < 0.85 else rng.choice((32, 1024))
    return {"hidden_act": rng.choice(ACTIVATIONS), "sliding_window": window}


def _qwen3(rng: Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return {"hidden_act": rng.choice(ACTIVATIONS)} | _flags("attention_bias")(rng, sizes)


FAMILIES = (
    # those whose graph the engine has, most of the time
    Family("llama", _llama, 45),
    Family("mistral", _mistral, 25),
    Family("granite", _granite, 25),
    Family("minicpm", _minicpm, 25),
    # plain decoders of other kinds: biases, norms of queries and keys, other norms and activations
    Family("qwen2", lambda rng, sizes: {"hidden_act": rng.choice(ACTIVATIONS)}, 4),
    Family("qwen3", _qwen3, 4),
    Family("gemma", weight=2),
    Family("arcee"),
    Family("apertus", fixed={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    Family("bitnet", square=True),
    Family("seed_oss", _flags("attention_bias", "attention_out_bias", "mlp_bias")),
    Family("starcoder2", _window, 2),
    Family("nemotron", _partial(0.5, 1.0, flags=_flags("attention_bias", "mlp_bias")), 2, rope=False),
    Family("jais2"),
    Family("nanochat"),
    Family("hyperclovax", _flags("use_post_norm")),
    Family("hunyuan_v1_dense"),
    Family("olmo", _clip, 2),
    Family("olmo2", weight=2),
    Family("aria_text", fixed={"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}),
    Family("ministral3", rope=False, fixed={"rope_parameters": MINISTRAL}),
    # rotation by pairs, on a part of the head, or not in every layer
    Family("helium", weight=2, square=True),
    Family("cohere", _flags("use_qk_norm"), 2),
    Family("ernie4_5", _flags("use_bias"), 2),
    Family(
        "stablelm",
        _partial(0.25, 0.5, 1.0, flags=_flags("qk_layernorm", "use_qkv_bias")),
        2,
        rope=False,
        square=True,
    ),
    Family("glm", _partial(0.5, 1.0, flags=_flags("attention_bias")), 2, rope=False),
    Family("glm4", _partial(0.5, 1.0), rope=False),
    Family("smollm3", _nope, 3),
    # mixtures of experts
    Family("mixtral", _window, experts=True),
    Family("olmoe", _clip, square=True, experts=True),
    Family("flex_olmo", experts=True),
    Family("phimoe", experts=True, rope=False),
    Family("qwen3_moe", experts=True),
    Family("granitemoe", _granite, experts=True),
    Family("granitemoeshared", _granite, experts=True),
    Family("ernie4_5_moe", experts=True),
    Family(
        "glm4_moe",
        _partial(0.5, 1.0, flags=_flags("use_qk_norm")),
        rope=False,
        experts=True,
        fixed={"n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    Family("hunyuan_v1_moe", experts=True, fixed={"moe_topk": 1}),
    Family("minimax_m2", experts=True, rope=False),
    # what has windows or other attention: to be served right where it can be, else refused
    Family("gemma2", _mixed_windows, rope=False),
    Family("gemma3_text", _mixed_windows, rope=False),
    Family("olmo3", _mixed_windows, rope=False),
    Family("cohere2", _mixed_windows, rope=False),
    Family("cwm", _mixed_windows, rope=False),
    Family("gpt_oss", _mixed_windows, rope=False, experts=True),
    Family("diffllama", _even),
    Family("minimax", rope=False, experts=True),
    Family("phi3", rope=False),
    Family("gpt2", rope=False),
    Family("gpt_neox", rope=False),
)
