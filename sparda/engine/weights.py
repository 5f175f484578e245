"""Decoders: from a Hugging Face model, or random ones of given shapes to measure speeds with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparda.engine.decoder import Decoder, LayerWeights
from sparda.spec import ModelShape

SERVED = ("llama", "mistral", "granite", "minicpm")


@torch.no_grad()
def from_hugging_face(model: Any, max_tokens: int) -> Decoder:
    """Fuse the weights of a Llama-family model; the fused ones are copies, the others are shared.

    TypeError: a model with another layout; ValueError: more tokens than the model was made for.
    """
    config = model.config
    inner: Any = getattr(model, "model", None)
    _check(config, inner, max_tokens)
    first = inner.layers[0].self_attn
    places = torch.arange(max_tokens, device=inner.embed_tokens.weight.device)[None]
    cos, sin = inner.rotary_emb(inner.embed_tokens.weight.new_empty(1, dtype=torch.float32), places)
    half = first.head_dim // 2
    return Decoder(
        layers=[_fuse(layer) for layer in inner.layers],
        embed=inner.embed_tokens.weight.detach(),
        final_norm=inner.norm.weight.detach(),
        head=model.lm_head.weight.detach(),
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=first.head_dim,
        eps=config.rms_norm_eps,
        cos=cos[0, :, :half].float().contiguous(),
        sin=sin[0, :, :half].float().contiguous(),
        **_scales(config),
    )


def _check(config: Any, inner: Any, max_tokens: int) -> None:
    if config.model_type not in SERVED or inner is None:
        raise TypeError(
            f"the engine runs {', '.join(SERVED)} models, got {config.model_type!r}; "
            "use sparda.attach for others"
        )
    if max_tokens > config.max_position_embeddings:
        raise ValueError(
            f"max_tokens = {max_tokens} passes the model's context; make the engine with "
            f"max_tokens={config.max_position_embeddings} or less"
        )
    if getattr(config, "sliding_window", None):
        raise TypeError("the engine has no sliding windows; load the model with sliding_window=None")
    if any(name.endswith(".bias") for name, _ in inner.named_parameters()):
        raise TypeError("the engine has no biases in its projections; use sparda.attach for this model")


def _scales(config: Any) -> dict[str, Any]:
    """The scalings of a muP model; MiniCPM4.1-8B: x12, 1.4 / sqrt(32) and / 16."""
    if config.model_type not in ("granite", "minicpm"):
        return {}
    return {
        "embed_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": 1 / config.logits_scaling,
        "attention_scale": config.attention_multiplier,
    }


def _fuse(layer: Any) -> LayerWeights:
    attention, ffn = layer.self_attn, layer.mlp
    return LayerWeights(
        qkv=torch.cat([p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)]),
        out=attention.o_proj.weight.detach(),
        gate_up=torch.cat([ffn.gate_proj.weight, ffn.up_proj.weight]),
        down=ffn.down_proj.weight.detach(),
        attention_norm=layer.input_layernorm.weight.detach(),
        ffn_norm=layer.post_attention_layernorm.weight.detach(),
    )


def random_decoder(
    shape: ModelShape, max_tokens: int, *, device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32, seed: int = 0,
) -> Decoder:  # fmt: skip
    """Random weights of a model's shapes: enough to measure speeds, never to judge accuracy."""
    noise = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=noise, device=device, dtype=dtype) / columns**0.5

    d, heads = shape.head_dim, shape.n_heads * shape.head_dim
    gain = torch.ones(shape.hidden, device=device, dtype=dtype)
    layers = [
        LayerWeights(
            qkv=matrix(heads + 2 * shape.n_kv_heads * d, shape.hidden),
            out=matrix(shape.hidden, heads),
            gate_up=matrix(2 * shape.ffn, shape.hidden),
            down=matrix(shape.hidden, shape.ffn),
            attention_norm=gain,
            ffn_norm=gain,
        )
        for _ in range(shape.n_layers)
    ]
    embed = matrix(shape.vocab, shape.hidden)
    frequencies = shape.rope_theta ** (-torch.arange(0, d, 2, device=device, dtype=torch.float64) / d)
    angle = torch.arange(max_tokens, device=device, dtype=torch.float64)[:, None] * frequencies
    return Decoder(
        layers=layers,
        embed=embed,
        final_norm=gain,
        head=embed if shape.tied_embeddings else matrix(shape.vocab, shape.hidden),
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        head_dim=d,
        eps=shape.rms_eps,
        cos=angle.cos().float(),
        sin=angle.sin().float(),
        residual_scale=1.4 / shape.n_layers**0.5,  # keeps the activations of random weights small
    )
