"""The Forecast while it learns: float32 weights of all layers side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparda import distill
from sparda.distill import Recipe
from sparda.forecast import Forecast
from sparda.spec import Sparsity
from sparda.training.backbone import Seen


class Student(nn.Module):
    """W_F of every layer (row 0: layer 0's own), trained as weight * exp(log_scale).

    weight    : [L, H * n * d, hidden], n heads a KV head
    log_scale : [L, H * n], the softmax' temperature; a choice of blocks does not depend on it
    """

    def __init__(self, weight: Tensor, n_kv_heads: int, head_dim: int):
        super().__init__()
        layers, rows, _ = weight.shape
        self.n_kv_heads, self.head_dim = n_kv_heads, head_dim
        self.weight = nn.Parameter(weight.detach().float().clone())
        self.log_scale = nn.Parameter(torch.zeros(layers, rows // head_dim, device=weight.device))

    @classmethod
    def of(
        cls, model: Any, init: str = "query", heads: int = 1, seed: int = 0, noise: float = 0.0
    ) -> Student:
        """A student for a Hugging Face decoder.

        init : "query", the queries of the layer to be chosen for, mean over each group (they guess well:
               inputs of neighbouring layers are alike), or "random"

        TypeError: a start from queries that are no linear map of their input
        """
        from sparda.models.check import query_weights
        from sparda.models.layers import sizes

        n_layers, hidden, n_kv_heads, d = sizes(model)
        generator = torch.Generator().manual_seed(seed)
        spread = torch.randn(n_layers, n_kv_heads * heads * d, hidden, generator=generator) / hidden**0.5
        if init == "random":
            return cls(spread.to(model.device), n_kv_heads, d)
        if init != "query":
            raise ValueError(f"unknown init {init!r}; choose query or random")
        own = torch.stack([w.float() for w in query_weights(model)])  # [L, H_q * d, hidden]
        weight = own.unflatten(1, (n_kv_heads, -1, d)).mean(2).flatten(1, 2)
        weight = weight.unflatten(1, (n_kv_heads, d)).repeat_interleave(heads, 1).flatten(1, 2)
        noise = noise if heads == 1 else max(noise, 0.1)  # equal heads would stay equal
        return cls(weight + noise * weight.std() * hidden**0.5 * spread.to(weight), n_kv_heads, d)

    @classmethod
    def resume(cls, forecast: Forecast, model: Any) -> Student:
        """A student that goes on from trained weights, on the model's device."""
        weight = torch.stack([w.float() for w in (forecast.current, *forecast.future)])
        return cls(weight.to(model.device), weight.shape[1] // forecast.head_dim, forecast.head_dim)

    def folded(self) -> Tensor:
        """[L, H * n * d, hidden]: the weights that inference uses."""
        scale = self.log_scale.exp().repeat_interleave(self.head_dim, 1)[..., None]
        return self.weight * scale

    def forecast(self, seen: Seen) -> Tensor:
        """[L * B, H * n, P, d] float32, rotated."""
        layers, batch = seen.inputs.shape[:2]
        flat = seen.inputs.float().flatten(1, 2) @ self.folded().transpose(1, 2)  # [L, B * P, H * n * d]
        heads = flat.view(layers * batch, -1, *self.log_scale.shape[1:], self.head_dim).transpose(1, 2)
        return seen.rotary.turn(heads, seen.cos, seen.sin)

    def scores(self, seen: Seen, sparsity: Sparsity) -> Tensor:
        """Log scores of compressed keys, [L * B, H, P, N_c]."""
        return distill.predict(self.forecast(seen), seen.compressed.flatten(0, 1), seen.positions, sparsity)

    def forward(self, seen: Seen, sparsity: Sparsity, recipe: Recipe) -> Tensor:
        """Loss of each layer, [L]."""
        scores = self.scores(seen, sparsity)
        lost = distill.loss(scores, seen.target.flatten(0, 1), seen.positions, sparsity, recipe)
        return lost.unflatten(0, (len(self.weight), -1)).mean((1, 2, 3))

    @torch.no_grad()
    def export(self) -> Forecast:
        """The trained weights, float32."""
        first, *rest = self.folded().unbind(0)
        return Forecast(first, rest, self.head_dim)
