"""The frozen model as its Forecast sees it: one forward pass gives every layer's input, keys and teacher.

The model runs its own attention (PyTorch's flash attention on a GPU); what a layer's teacher needs is taken
while the layer runs, at the sampled queries only, so that memory does not grow with T x T.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from sparda import distill
from sparda.distill import Recipe
from sparda.kernels import compress_keys
from sparda.models import interface
from sparda.models.check import checked
from sparda.models.layers import attention_layers, sliding_window
from sparda.models.observe import observing
from sparda.models.rotary import Rotary
from sparda.spec import Sparsity


@dataclass(frozen=True)
class Seen:
    """What training needs of B sequences at P sampled positions; layers first.

    inputs     : [L, B, P, hidden]; row l is what the Forecast of layer l reads: the normed attention input of
                 layer l - 1, for layer 0 its own
    compressed : [L, B, H, N_c, d]
    target     : [L, B, H, P, N or N_c] float32, the teacher
    positions  : [P] int64 on the CPU, ascending, shared by the sequences
    cos, sin   : [P, r/2] float32, by which ``rotary`` turns
    queries    : [L, B, H_q, P, d], kept on request
    """

    inputs: Tensor
    compressed: Tensor
    target: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    queries: Tensor | None = None
    rotary: Rotary = field(default_factory=Rotary)

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
            per_sequence = isinstance(values[0], Tensor) and values[0].dim() > 2
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
        self.layers = attention_layers(self.model)
        if len(self.layers) < 2:
            raise TypeError("a Forecast chooses one layer ahead, and this model has one layer; use 'query'")
        kinds = set(checked(self.model, looks_ahead=True))
        if len(kinds) > 1:
            raise TypeError(
                "a Forecast is trained for models whose layers all rotate in one way, and some of this "
                "one's do "
                "not rotate; use a selector that needs no training, such as 'query'"
            )
        self.rotary = kinds.pop()
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def observe(self, tokens: Tensor, positions: Tensor) -> Seen:
        """One forward pass of tokens [B, T]; positions [P] int64 on the CPU, ascending."""
        if positions.device.type != "cpu" or int(positions[-1]) >= tokens.shape[1]:
            raise ValueError("positions stay on the CPU, ascend, and lie inside the sequences")
        window = sliding_window(self.layers[0].config)
        if window is not None and tokens.shape[1] > window:
            raise TypeError(interface.too_long(tokens.shape[1], window))
        self._positions = positions
        self._taken = {name: [] for name in ("inputs", "compressed", "target", "queries", "angles")}
        with ExitStack() as stack:
            for module in self.layers:
                stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            stack.enter_context(observing(self.layers, self.attend))
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
            self.rotary,
        )

    def attend(self, module: Any, q: Tensor, k: Tensor) -> None:
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

    def _enter(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        at = self._at(hidden)
        self._taken["inputs"].append(hidden[:, at])
        angles = [x[0, at] for x in self.rotary.angles(*kwargs["position_embeddings"])]
        if not self._taken["angles"]:
            self._taken["angles"] = angles
        elif not torch.equal(self._taken["angles"][0], angles[0]):
            raise TypeError(
                "a Forecast is trained for models whose layers all rotate by one table, and this one's "
                "layers have "
                "several; use a selector that needs no training, such as 'query'"
            )
