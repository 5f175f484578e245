"""The next layer's query, guessed one layer early, chooses (after InfiniGen, Lee et al., OSDI 2024).

    q'_l = RoPE(W_Q^l x_(l-1))                      x_(l-1): normed attention input of the layer before
    p[h, t, j] = sum_g (q'[h, g, t] A_h) . (k[h, j] A_h)     A_h [d, r]: where queries of the group vary most

Inputs of neighbouring layers are alike, hence the guess; few directions carry most of a query, hence only
r = d / 4 channels (32 of 128). The index, those channels of all keys, stays on the GPU: an eighth of the KV
cache.

The score is linear, so the G heads of a group are summed once, in their weights: sum_g RoPE(W_g x) =
RoPE((sum_g W_g) x). The guess then has the shape of a Forecast, [H * d, hidden], and costs as much.

What differs from the paper: a GQA group shares one choice, of blocks (the best token counts) within a budget
k that contains the forced blocks, where InfiniGen lets each head take as many tokens as reach a threshold;
its channels are chosen per prompt from query and key sums, ours are the first r of a skew that is fixed at
calibration, made from queries after RoPE and applied after RoPE; layer 0 chooses with its own queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sparda.cache import rotate
from sparda.kernels import score_blocks
from sparda.selectors.base import LayerView, Selector


@dataclass(frozen=True)
class Proxy(Selector):
    """Make one with ``Proxy.calibrate(model, tokens)``.

    weights : of each layer, [H * d, hidden]: query projections, summed over the G heads of a group
    skew    : of each layer, [H, d, r], orthonormal columns
    """

    weights: Sequence[Tensor] = field(repr=False)
    skew: Sequence[Tensor] = field(repr=False)
    name = "proxy"
    looks_ahead = True
    own_index = True

    @property
    def index_dim(self) -> int:
        """r, channels of the index."""
        return self.skew[0].shape[-1]

    def ahead_weights(self, layer: int) -> Tensor:
        """The layer's own query weights, group by group, [H * d, hidden]: the layer before applies them."""
        return self.weights[layer]

    def index_keys(self, layer: int, keys: Tensor) -> Tensor:
        """Keys along the skew's directions: [B, H, t, d] -> [B, H, t, r]."""
        return keys @ self.skew[layer].to(keys)

    def block_scores(self, view: LayerView) -> Tensor:
        if view.ahead is None:
            raise ValueError("the proxy needs the layer before; select inside attach() or the engine")
        index = self._with_index(view).stored
        guess = self.index_keys(view.layer, view.ahead).contiguous()  # [B, H, T_q, r]
        every_token = replace(view.sparsity, window=1, stride=1)
        return score_blocks(guess, index, view.positions, every_token, view.n_blocks)

    def select(self, view: LayerView) -> Tensor:
        """As the base class does, with one index for all slices of queries."""
        return super().select(self._with_index(view))

    def _with_index(self, view: LayerView) -> LayerView:
        if view.stored is not None:
            return view
        return replace(view, stored=self.index_keys(view.layer, view.all_keys).contiguous())

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Proxy:
        """The same weights elsewhere."""
        return Proxy(*([t.to(device, dtype) for t in part] for part in (self.weights, self.skew)))

    @classmethod
    def untrained(
        cls, *, n_layers: int, hidden: int, n_kv_heads: int, head_dim: int, channels: int | None = None,
        seed: int = 0,
    ) -> Proxy:  # fmt: skip
        """Random weights of the right shapes: enough to test and time, never to judge accuracy."""
        r = _channels(channels, head_dim)
        noise = torch.Generator().manual_seed(seed)
        weights = torch.randn(n_layers, n_kv_heads * head_dim, hidden, generator=noise) / hidden**0.5
        square = torch.randn(n_layers, n_kv_heads, head_dim, head_dim, generator=noise)
        return cls(list(weights), list(torch.linalg.qr(square).Q[..., :r]))

    @classmethod
    @torch.no_grad()
    def calibrate(cls, model: Any, tokens: Tensor, channels: int | None = None) -> Proxy:
        """Read the weights off a Hugging Face model and the skew off its queries on a text.

        tokens [B, T] of a text without padding; ``channels`` r, by default d / 4, at least 16. The skew of a
        group holds the first right singular vectors of its queries, [B * G * T, d].

        TypeError: a model whose queries are not a linear map of their input. ValueError: a text too short, or
        channels that do not fit.
        """
        from sparda.models.attach import _attention_layers

        if not isinstance(tokens, Tensor) or tokens.ndim != 2:
            raise TypeError(
                "tokens are ids [1, T], as tokenizer(text, return_tensors='pt').input_ids gives them"
            )
        layers = _attention_layers(model)
        r = _channels(channels, layers[0].head_dim)
        if tokens.numel() < layers[0].head_dim:
            raise ValueError(f"calibrate on at least {layers[0].head_dim} tokens, got {tokens.numel()}")
        weights = [_group_weights(module) for module in layers]
        moments: dict[int, Tensor] = {}

        def watch(module: Any, _: tuple, kwargs: dict[str, Any]) -> None:
            moments[module.layer_idx] = _moments(
                module, kwargs["hidden_states"], kwargs["position_embeddings"]
            )

        hooks = [module.register_forward_pre_hook(watch, with_kwargs=True) for module in layers]
        try:
            model.base_model(tokens, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        # eigenvectors of Q^T Q, in ascending order, are the right singular vectors of Q
        skew = [torch.linalg.eigh(moments[m.layer_idx]).eigenvectors[..., -r:].flip(-1) for m in layers]
        return cls(weights, [s.to(w) for s, w in zip(skew, weights, strict=True)])


def _channels(channels: int | None, head_dim: int) -> int:
    r = max(16, head_dim // 4) if channels is None else channels
    if not 16 <= r <= head_dim or r & (r - 1):
        raise ValueError(
            f"channels must be a power of two from 16 to the head dimension {head_dim}, got {r}; "
            "the paper keeps a quarter"
        )
    return r


def _group_weights(module: Any) -> Tensor:
    """W_Q summed over the heads of each group: [H_q * d, hidden] -> [H * d, hidden]."""
    if module.q_proj.bias is not None or hasattr(module, "q_norm"):
        raise TypeError(
            "the proxy sums query weights over a group, which needs queries without bias and without a norm; "
            "use a Llama-style model, or another selector"
        )
    n_kv_heads = module.k_proj.out_features // module.head_dim
    heads = module.q_proj.weight.float().unflatten(0, (n_kv_heads, -1, module.head_dim))  # [H, G, d, hidden]
    return heads.sum(1).flatten(0, 1).to(module.q_proj.weight.dtype)


def _moments(module: Any, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Q^T Q of each group's post-RoPE queries, [H, d, d] float64."""
    half = module.head_dim // 2
    cos, sin = (x[:, None, :, :half].float() for x in angles)  # [B or 1, 1, T, d/2]
    q = module.q_proj(hidden).unflatten(-1, (-1, module.head_dim)).transpose(1, 2)  # [B, H_q, T, d]
    n_kv_heads = module.k_proj.out_features // module.head_dim
    grouped = rotate(q, cos, sin).double().unflatten(1, (n_kv_heads, -1))  # [B, H, G, T, d]
    return torch.einsum("bhgtd,bhgte->hde", grouped, grouped)
