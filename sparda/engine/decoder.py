"""The decoder as the engine computes it: fused weights and the few operations between the attentions.

Llama family: RMSNorm, SwiGLU, rotate-half RoPE, no biases. The three scalings are those of muP models such as
MiniCPM4.1; Llama has them all at 1. ``sparda.engine.weights`` makes decoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from sparda.kernels import add_norm, silu_mul


@dataclass(frozen=True)
class LayerWeights:
    """qkv [(H_q + 2H + n) * d, hidden]; out [hidden, H_q * d]; gate_up [2 * ffn, hidden]; down [hidden, ffn].

    The n last heads of qkv foresee the next layer's choice (and in layer 0 then its own): ``with_ahead``.
    """

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
    attention_scale: float | None = None  # None: 1 / sqrt(d)
    ahead_heads: int = 0  # heads that foresee one layer's choice

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    def with_ahead(self, weights: Callable[[int], Tensor]) -> Decoder:
        """Fuse ``Selector.ahead_weights``, which foresee choices, into the first product of each layer."""
        layers, last = [], len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            targets = ([i + 1] if i < last else []) + ([0] if i == 0 else [])
            rows = [weights(target).to(layer.qkv) for target in targets]
            layers.append(replace(layer, qkv=torch.cat([layer.qkv, *rows])) if rows else layer)
        return replace(self, layers=layers, ahead_heads=len(weights(0)) // self.head_dim)

    def enter(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [...] -> hidden states and the first layer's normed input, [..., hidden] each."""
        hidden = embedding(tokens, self.embed)
        if self.embed_scale != 1.0:
            hidden = hidden * self.embed_scale
        return add_norm(hidden, None, self.layers[0].attention_norm, self.eps)

    def project(
        self, layer: int, normed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """q [..., H_q, d]; k, v [..., H, d]; what foresees the next layer, and in layer 0 itself.

        Not rotated yet. The last two are [..., n, d], or None where there is none.
        """
        heads = linear(normed, self.layers[layer].qkv).unflatten(-1, (-1, self.head_dim))
        sizes = [self.n_heads, self.n_kv_heads, self.n_kv_heads]
        n_ahead = (heads.shape[-2] - sum(sizes)) // max(1, self.ahead_heads)
        parts = heads.split([*sizes, *[self.ahead_heads] * n_ahead], dim=-2)
        following = parts[3] if n_ahead and layer + 1 < len(self.layers) else None
        own = parts[-1] if n_ahead and layer == 0 else None
        return parts[0], parts[1], parts[2], following, own

    def after_attention(self, layer: int, hidden: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Output projection and FFN with their residuals; attended [..., H_q * d].

        Returns the new hidden states, and those normed for what comes next: a layer, or the logits.
        """
        w, scale = self.layers[layer], self.residual_scale
        hidden, normed = add_norm(hidden, linear(attended, w.out), w.ffn_norm, self.eps, scale)
        update = linear(silu_mul(linear(normed, w.gate_up)), w.down)
        last = layer + 1 == len(self.layers)
        gain = self.final_norm if last else self.layers[layer + 1].attention_norm
        return add_norm(hidden, update, gain, self.eps, scale)

    def logits(self, normed: Tensor) -> Tensor:
        """The last layer's normed output [..., hidden] -> [..., vocab] float32."""
        logits = linear(normed, self.head).float()
        return logits if self.logit_scale == 1.0 else logits * self.logit_scale


def held_bytes(*things: object) -> int:
    """Bytes that the tensors in dataclasses, lists and mappings keep; those that share memory count once."""
    kept = [t.untyped_storage() for t in _tensors(things)]
    return sum({s.data_ptr(): s.nbytes() for s in kept}.values())


def _tensors(thing: object) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        yield from _tensors(list(thing.values()))
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from _tensors(part)
    elif is_dataclass(thing):
        yield from _tensors(vars(thing))
