"""The frozen model as its Forecast sees it: one forward pass gives every layer's input, keys and teacher.

The model runs its own attention (PyTorch's flash attention on a GPU); what a layer's teacher needs is taken
while the layer runs, at the sampled queries only, so that memory does not grow with T x T.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparda import distill
from sparda.distill import Recipe
from sparda.kernels import compress_keys
from sparda.models.attach import _attention_layers, _check_windows
from sparda.spec import Sparsity

_WATCHED: dict[int, Backbone] = {}  # id of an attention module -> who watches it


@dataclass(frozen=True)
class Seen:
    """What training needs of B sequences at P sampled positions; layers first.

    inputs     : [L, B, P, hidden]; row l is what the Forecast of layer l reads: the normed attention input of
                 layer l - 1, for layer 0 its own
    compressed : [L, B, H, N_c, d]
    target     : [L, B, H, P, N or N_c] float32, the teacher
    positions  : [P] int64 on the CPU, ascending, shared by the sequences
    cos, sin   : [P, d/2] float32
    queries    : [L, B, H_q, P, d], kept on request
    """

    inputs: Tensor
    compressed: Tensor
    target: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    queries: Tensor | None = None

    def at(self, where: Tensor, who: slice = slice(None)) -> Seen:
        """Some of the sampled positions (indices on the CPU, ascending), and of the sequences."""
        there = where.to(self.inputs.device)
        return replace(
            self,
            inputs=self.inputs[:, who, there],
            compressed=self.compressed[:, who],
            target=self.target[:, who, :, there],
            positions=self.positions[where],
            cos=self.cos[there],
            sin=self.sin[there],
            queries=None if self.queries is None else self.queries[:, who, :, there],
        )

    @staticmethod
    def join(parts: list[Seen]) -> Seen:
        """Several batches at the same positions as one."""
        whole = {}
        for name in (f.name for f in fields(Seen)):
            values = [getattr(part, name) for part in parts]
            per_sequence = values[0] is not None and values[0].dim() > 2
            whole[name] = torch.cat(values, 1) if per_sequence else values[0]
        return Seen(**whole)


@dataclass
class Backbone:
    """Runs a frozen Hugging Face decoder and collects ``Seen``."""

    model: Any
    sparsity: Sparsity
    recipe: Recipe = field(default_factory=Recipe)
    keep_queries: bool = False
    _positions: Tensor | None = field(default=None, repr=False)
    _taken: dict[str, list[Tensor]] = field(default_factory=dict, repr=False)

    def __post_init__(self):
        self.layers = _attention_layers(self.model)
        _check_windows(self.layers[0].config)
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def observe(self, tokens: Tensor, positions: Tensor) -> Seen:
        """One forward pass of tokens [B, T]; positions [P] int64 on the CPU, ascending."""
        if positions.device.type != "cpu" or int(positions[-1]) >= tokens.shape[1]:
            raise ValueError("positions stay on the CPU, ascend, and lie inside the sequences")
        self._positions = positions
        self._taken = {name: [] for name in ("inputs", "compressed", "target", "queries", "angles")}
        with self._watching():
            self.model.base_model(tokens, use_cache=False)
        inputs = self._taken["inputs"]
        cos, sin = self._taken["angles"]
        return Seen(
            torch.stack([inputs[0], *inputs[:-1]]),
            torch.stack(self._taken["compressed"]),
            torch.stack(self._taken["target"]),
            positions,
            cos,
            sin,
            torch.stack(self._taken["queries"]) if self.keep_queries else None,
        )

    def attend(self, module: nn.Module, q: Tensor, k: Tensor) -> None:
        """Called with a layer's post-RoPE queries [B, H_q, T, d] and keys [B, H, T, d]."""
        sampled, k = q[:, :, self._at(q)], k.contiguous()
        self._taken["compressed"].append(compress_keys(k, self.sparsity))
        self._taken["target"].append(
            distill.teach(sampled, k, self._positions, self.sparsity, self.recipe)  # type: ignore[arg-type]
        )
        if self.keep_queries:
            self._taken["queries"].append(sampled)

    def _at(self, like: Tensor) -> Tensor:
        return self._positions.to(like.device, non_blocking=True)  # type: ignore[union-attr]

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        at = self._at(hidden)
        self._taken["inputs"].append(hidden[:, at])
        if not self._taken["angles"]:
            half = self.layers[0].head_dim // 2
            self._taken["angles"] = [x[0, at, :half].float() for x in kwargs["position_embeddings"]]

    @contextmanager
    def _watching(self) -> Iterator[None]:
        _register()
        config: Any = self.layers[0].config
        before = config._attn_implementation
        hooks = [m.register_forward_pre_hook(self._enter, with_kwargs=True) for m in self.layers]
        _WATCHED.update({id(m): self for m in self.layers})
        config._attn_implementation = "sparda-observe"
        try:
            yield
        finally:
            config._attn_implementation = before
            for hook in hooks:
                hook.remove()
            for module in self.layers:
                _WATCHED.pop(id(module), None)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register("sparda-observe", _attention_function)
    AttentionMaskInterface.register("sparda-observe", sdpa_mask)


def _attention_function(module, query, key, value, attention_mask, **kwargs):
    """The model's own attention, watched."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    _WATCHED[id(module)].attend(module, query, key)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
