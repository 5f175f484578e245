"""The decoder as the engine computes it: fused weights and the few operations between the attentions.

Llama-family only so far: RMSNorm, SwiGLU, rotate-half RoPE, no biases. The three scalings are those of
muP models such as MiniCPM4.1; Llama has them all at 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu


@dataclass(frozen=True)
class LayerWeights:
    """qkv [(H_q + 2H) * d, hidden]; out [hidden, H_q * d]; gate_up [2 * ffn, hidden]; down [hidden, ffn]."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    ffn_norm: Tensor


@dataclass(frozen=True)
class Decoder:
    """Weights of a whole model, its sizes, and rotary tables cos, sin [T_max, d/2] float32."""

    layers: list[LayerWeights]
    embed: Tensor
    final_norm: Tensor
    head: Tensor
    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float
    cos: Tensor
    sin: Tensor
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0

    def enter(self, tokens: Tensor) -> Tensor:
        """Token ids [...] -> hidden states [..., hidden]."""
        return embedding(tokens, self.embed) * self.embed_scale

    def norm(self, hidden: Tensor, gain: Tensor) -> Tensor:
        return rms_norm(hidden, gain.shape, gain, self.eps)

    def project(self, layer: int, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [..., H_q, d], k and v [..., H, d] before RoPE."""
        heads = linear(normed, self.layers[layer].qkv).unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split([self.n_heads, self.n_kv_heads, self.n_kv_heads], dim=-2)
        return q, k, v

    def after_attention(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        """Output projection and FFN with their residuals; attended [..., H_q * d]."""
        w = self.layers[layer]
        hidden = hidden + self.residual_scale * linear(attended, w.out)
        gate, up = linear(self.norm(hidden, w.ffn_norm), w.gate_up).chunk(2, -1)
        return hidden + self.residual_scale * linear(silu(gate) * up, w.down)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab] float32."""
        return linear(self.norm(hidden, self.final_norm), self.head).float() * self.logit_scale

    @property
    def nbytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        tensors = [self.embed, self.final_norm, self.head]
        tensors += [t for layer in self.layers for t in vars(layer).values()]
        return sum(n for _, n in {(t.data_ptr(), t.nbytes) for t in tensors})


@torch.no_grad()
def from_hugging_face(model: Any, max_tokens: int) -> Decoder:
    """Fuse the weights of a Llama-family model; they are copied, only embeddings are shared.

    TypeError: a model with another layout; ValueError: more tokens than the model was made for.
    """
    config, inner = model.config, getattr(model, "model", None)
    if config.model_type != "llama" or inner is None:
        raise TypeError(
            f"the engine runs Llama models so far, got {config.model_type!r}; use sparda.attach for others"
        )
    if max_tokens > config.max_position_embeddings:
        raise ValueError(
            f"max_tokens = {max_tokens} passes the model's context of {config.max_position_embeddings}"
        )
    if any(name.endswith(".bias") for name, _ in inner.named_parameters()):
        raise TypeError("the engine has no biases in its projections; use sparda.attach for this model")
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
    )


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
