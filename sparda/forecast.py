"""The Forecast: one projection a layer that chooses the blocks of the next one.

    F_l = RoPE(W_F^l x_l)        x_l: normed attention input of layer l; W_F: hidden -> H * d, no bias

Layer 0 has no layer before it and selects with a projection of its own. The last layer's Forecast would
predict nothing and does not exist.

On disk the weights have the names that other programs read already (SGLang's SparDA, the authors' code):
``model.layers.{i}.self_attn.q_future_proj.weight`` and ``model.layers.0.self_attn.q_curr_proj.weight``.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparda.files import write_tensors
from sparda.spec import ModelShape

_FUTURE = re.compile(r"(?:^|\.)layers\.(\d+)\.self_attn\.q_future_proj\.weight$")
_CURRENT = re.compile(r"(?:^|\.)layers\.0\.self_attn\.q_curr_proj\.weight$")


@dataclass(frozen=True)
class Shape:
    """What a Forecast must fit; a ``ModelShape`` says it too."""

    n_layers: int
    hidden: int
    n_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: Any) -> Shape:
        """Shape of a Hugging Face decoder; TypeError for a model without Llama-style attention."""
        from sparda.models.attach import _attention_layers

        layers = _attention_layers(model)
        d = layers[0].head_dim
        return cls(len(layers), layers[0].k_proj.in_features, layers[0].k_proj.out_features // d, d)


@dataclass(frozen=True)
class Forecast:
    """Weights of every layer's Forecast.

    current : [H * d, hidden], layer 0's own projection
    future  : for each layer l but the last, [H * d, hidden]: chooses for layer l + 1
    """

    current: Tensor
    future: Sequence[Tensor]
    head_dim: int

    @classmethod
    def untrained(
        cls, *, n_layers: int, hidden: int, n_kv_heads: int, head_dim: int, seed: int = 0
    ) -> Forecast:
        """Random weights of the right shapes: enough to test and time, never to judge accuracy."""
        generator = torch.Generator().manual_seed(seed)
        shape = (n_layers, n_kv_heads * head_dim, hidden)
        first, *rest = torch.randn(shape, generator=generator) / hidden**0.5
        return cls(first, rest, head_dim)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Forecast:
        """The same weights elsewhere."""
        moved = [w.to(device, dtype) for w in self.future]
        return Forecast(self.current.to(device, dtype), moved, self.head_dim)

    def weight(self, layer: int) -> Tensor:
        """Rows [H * d, hidden] that select for ``layer``: they read the layer before, for layer 0 itself."""
        return self.future[layer - 1] if layer else self.current

    def tensors(self) -> dict[str, Tensor]:
        """Weights under their names on disk."""
        names = {f"model.layers.{i}.self_attn.q_future_proj.weight": w for i, w in enumerate(self.future)}
        return names | {"model.layers.0.self_attn.q_curr_proj.weight": self.current}

    def save(self, path: str | Path, dtype: torch.dtype = torch.bfloat16, **about: str) -> Path:
        """Write safetensors; a file that is there is replaced only once the new one is whole.

        about : what to keep in the file's header (where it came from), all strings
        """
        tensors = {name: w.detach().to("cpu", dtype).contiguous() for name, w in self.tensors().items()}
        write_tensors(Path(path), tensors, {"format": "pt", "head_dim": str(self.head_dim), **about})
        return Path(path)

    @classmethod
    def load(
        cls, path: str | Path, shape: Shape | ModelShape | None = None, head_dim: int | None = None
    ) -> Forecast:
        """Read a Forecast from ``.safetensors``, or from a ``.pt`` that holds weights only.

        shape    : the model that it must fit, see ``check``
        head_dim : d, where the file does not say it (only ours do) and no shape is given

        Nested state dicts and prefixes such as ``module.`` and ``model.`` are read; a last layer's Forecast,
        which predicts nothing, is left out where ``shape`` tells how many layers there are.

        FileNotFoundError: no such file. ValueError: a pickle with code in it, other weights, a missing layer,
        or a model that they do not fit.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"no Forecast at {path}; train one with `sparda train`, or check the path"
            )
        tensors, said = _read(path)
        current, future = _sorted_out(tensors, path)
        d = head_dim or (shape.head_dim if shape else said)
        if not d:
            raise ValueError(f"{path} does not say its head dimension; pass head_dim= or the model's shape")
        if shape is not None and len(future) == shape.n_layers:
            future = future[:-1]
        loaded = cls(current, future, d)
        if shape is not None:
            loaded.check(shape, str(path))
        return loaded

    def check(self, shape: Shape | ModelShape, what: str = "this Forecast") -> None:
        """ValueError with one sentence for every way in which it does not fit a model."""
        problems = []
        if len(self.future) != shape.n_layers - 1:
            problems.append(
                f"it chooses for {len(self.future) + 1} layers, but the model has {shape.n_layers}."
            )
        rows = shape.n_kv_heads * shape.head_dim
        for name, tensor in self.tensors().items():
            if tensor.dim() != 2 or tensor.shape[0] != rows:
                problems.append(
                    f"{name} is {list(tensor.shape)}, but {shape.n_kv_heads} KV heads of {shape.head_dim} "
                    f"need {rows} rows."
                )
            elif tensor.shape[1] != shape.hidden:
                problems.append(f"{name} reads {tensor.shape[1]} channels, but the model has {shape.hidden}.")
        if self.head_dim != shape.head_dim:
            problems.append(f"its heads have {self.head_dim} channels, but the model's {shape.head_dim}.")
        if problems:
            more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
            raise ValueError(f"{what} belongs to another model: {' '.join(problems[:4])}{more}")


def _read(path: Path) -> tuple[dict[str, Tensor], int | None]:
    """All tensors of a file by name, and the head dimension if the file says it."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                said = (file.metadata() or {}).get("head_dim")
                return {name: file.get_tensor(name) for name in file.keys()}, int(said) if said else None  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(
                f"{path} is not a whole safetensors file ({error}); copy or train it again"
            ) from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise ValueError(
            f"{path} holds more than weights, or is damaged, and was not run ({reason}); "
            "ask for a .safetensors file, or for a .pt of plain tensors"
        ) from None
    return dict(_flattened(loaded)), None


def _flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors of nested mappings, names joined by dots."""
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flattened(inner, f"{prefix}.{name}" if prefix else str(name))


def _sorted_out(tensors: Mapping[str, Tensor], path: Path) -> tuple[Tensor, list[Tensor]]:
    """The Forecast's tensors among all of a file: layer 0's own, and the others by layer."""
    found = {int(m[1]): t for name, t in tensors.items() if (m := _FUTURE.search(name))}
    current = next((t for name, t in tensors.items() if _CURRENT.search(name)), None)
    if not found:
        some = ", ".join(sorted(tensors)[:3]) or "nothing"
        raise ValueError(f"{path} holds no Forecast (no `...q_future_proj.weight`); it holds {some}")
    if current is None:
        raise ValueError(
            f"{path} lacks layer 0's own projection, `model.layers.0.self_attn.q_curr_proj.weight`"
        )
    if missing := sorted(set(range(max(found) + 1)) - set(found)):
        raise ValueError(f"{path} lacks the Forecast of layers {', '.join(map(str, missing))}")
    return current, [found[layer] for layer in sorted(found)]
