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
        from sparda.models.check import query_weights
        from sparda.models.layers import attention_layers, head_dim
        from sparda.models.observe import observing
        from sparda.models.watch import at_rest

        if not isinstance(tokens, Tensor) or tokens.ndim != 2:
            raise TypeError(
                "tokens are ids [1, T], as tokenizer(text, return_tensors='pt').input_ids gives them"
            )
        layers = attention_layers(model)
        d = head_dim(layers[0])
        r = _channels(channels, d)
        if tokens.numel() < d:
            raise ValueError(f"calibrate on at least {d} tokens, got {tokens.numel()}")
        moments: list[Tensor] = []  # Q^T Q of each group's queries, [H, d, d] float64, layer by layer

        def see(module: Any, q: Tensor, k: Tensor) -> None:
            grouped = q.double().unflatten(1, (k.shape[1], -1))  # [B, H, G, T, d]
            moments.append(torch.einsum("bhgtd,bhgte->hde", grouped, grouped))

        own = query_weights(model)
        with at_rest(model), observing(layers, see):
            model.base_model(tokens, use_cache=False)
        heads = [w.float().unflatten(0, (len(m), -1, d)).sum(1) for w, m in zip(own, moments, strict=True)]
        weights = [w.flatten(0, 1).to(own[0].dtype) for w in heads]
        # eigenvectors of Q^T Q, in ascending order, are the right singular vectors of Q
        skew = [torch.linalg.eigh(m).eigenvectors[..., -r:].flip(-1) for m in moments]
        return cls(weights, [s.to(w) for s, w in zip(skew, weights, strict=True)])


def _channels(channels: int | None, head_dim: int) -> int:
    r = max(16, head_dim // 4) if channels is None else channels
    if not 16 <= r <= head_dim or r & (r - 1):
        raise ValueError(
            f"channels must be a power of two from 16 to the head dimension {head_dim}, got {r}; "
            "the paper keeps a quarter"
        )
    return r
