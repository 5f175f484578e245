"""The Forecast: one projection a layer that chooses the blocks of the next one.

    F_l = RoPE(W_F^l x_l)        x_l: normed attention input of layer l; W_F: hidden -> H * d, no bias

Layer 0 has no layer before it and selects with a projection of its own. The last layer's Forecast would
predict nothing and does not exist here.

On disk the weights have the names that other programs read already (SGLang's open pull requests, the
authors' code): ``model.layers.{i}.self_attn.q_future_proj.weight`` and
``model.layers.0.self_attn.q_curr_proj.weight``. Those programs make the same modules in every layer, so a
file holds the last one too, as zeros.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparda.files import replacing, write_tensors
from sparda.spec import ModelShape

_NAME = "model.layers.{}.self_attn.q_future_proj.weight"
_FUTURE = re.compile(r"(?:^|\.)layers\.(\d+)\.self_attn\.q_future_proj\.weight$")
_CURRENT = re.compile(r"(?:^|\.)layers\.0\.self_attn\.q_curr_proj\.weight$")
_OURS = ("format", "head_dim", "n_layers")  # what ``save`` itself writes in a header


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
        from sparda.models.layers import sizes

        return cls(*sizes(model))


@dataclass(frozen=True)
class Forecast:
    """Weights of every layer's Forecast.

    current : [H * d, hidden], layer 0's own projection
    future  : for each layer l but the last, [H * d, hidden]: chooses for layer l + 1
    about   : what its file says of where it came from, such as ``model`` and ``model_fingerprint``
    """

    current: Tensor
    future: Sequence[Tensor]
    head_dim: int
    about: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

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
        return replace(self, current=self.current.to(device, dtype), future=moved)

    def made_for(self, fingerprint: str) -> bool | None:
        """Whether it was trained for the model with this ``sparda.models.fingerprint``; None: unknown."""
        said = self.about.get("model_fingerprint")
        return None if said is None else said == fingerprint

    def weight(self, layer: int) -> Tensor:
        """Rows [H * d, hidden] that select for ``layer``: they read the layer before, for layer 0 itself."""
        return self.future[layer - 1] if layer else self.current

    def tensors(self) -> dict[str, Tensor]:
        """Weights under their names on disk."""
        names = {_NAME.format(i): w for i, w in enumerate(self.future)}
        return names | {"model.layers.0.self_attn.q_curr_proj.weight": self.current}

    def save(self, path: str | Path, dtype: torch.dtype = torch.bfloat16, **about: str) -> Path:
        """Write ``.safetensors`` or ``.pt``; a file that is there is replaced only once the new one is whole.

        about : what to keep in the file's header (where it came from) besides ``self.about``, all strings

        The last layer is written as zeros: it predicts nothing, but a loader may want every layer, and zeros
        cannot be taken for trained weights. ValueError: another ending, which would not tell the kind.
        """
        path = Path(path)
        weights = self.tensors() | {_NAME.format(len(self.future)): torch.zeros_like(self.current)}
        tensors = {name: w.detach().to("cpu", dtype).contiguous() for name, w in weights.items()}
        ours = {"format": "pt", "head_dim": str(self.head_dim), "n_layers": str(len(self.future) + 1)}
        header = {**self.about, **about, **ours}
        if path.suffix == ".safetensors":
            write_tensors(path, tensors, header)
        elif path.suffix == ".pt":
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                torch.save({"state_dict": tensors, "sparda": header}, part)
        else:
            raise ValueError(f"a Forecast's file ends in .safetensors or .pt, not as {path.name}; rename it")
        return path

    @classmethod
    def load(cls, path: str | Path, shape: Shape | ModelShape | None = None) -> Forecast:
        """Read a Forecast from ``.safetensors``, or from a ``.pt`` that holds weights only.

        shape : the model that it must fit, see ``check``; files that ``save`` wrote can be read without

        Nested state dicts and prefixes such as ``module.`` and ``model.`` are read. The last layer's
        Forecast, which predicts nothing, is left out.

        FileNotFoundError: no such file. ValueError: a pickle with code in it, other weights, a missing layer,
        a model that they do not fit, or a file that must be told its model's shape.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"no Forecast at {path}; train one with `sparda train`, or check the path"
            )
        tensors, header = _read(path)
        current, future = _sorted_out(tensors, path)
        d = _number(header, "head_dim") or (shape.head_dim if shape else None)
        n_layers = _layers(len(future), header, shape, path)
        if not (d and n_layers):
            raise ValueError(
                f"{path} does not say how many layers its model has, and how many channels a head; pass the "
                "model's shape: Forecast.load(file, Shape.of(model))"
            )
        about = {name: text for name, text in header.items() if name not in _OURS}
        loaded = cls(current, future[: n_layers - 1], d, about)
        if shape is not None:
            loaded.check(shape, str(path))
        _check_trained(loaded, path)
        return loaded

    def check(self, shape: Shape | ModelShape, what: str = "this Forecast") -> None:
        """ValueError, with one sentence, where it does not fit a model."""
        problems, misfits = [], []
        if len(self.future) != shape.n_layers - 1:
            problems.append(
                f"it chooses for {len(self.future) + 1} layers, but the model has {shape.n_layers}"
            )
        if self.head_dim != shape.head_dim:
            problems.append(f"its heads have {self.head_dim} channels, but the model's {shape.head_dim}")
        rows = shape.n_kv_heads * shape.head_dim
        for name, tensor in self.tensors().items():
            if tensor.dim() != 2 or tensor.shape[0] != rows:
                misfits.append(
                    f"{name} is {list(tensor.shape)}, but {shape.n_kv_heads} KV heads of {shape.head_dim} "
                    f"need {rows} rows"
                )
            elif tensor.shape[1] != shape.hidden:
                misfits.append(f"{name} reads {tensor.shape[1]} channels, but the model has {shape.hidden}")
        if misfits:
            more = f" (and {len(misfits) - 1} more tensors do not fit)" if len(misfits) > 1 else ""
            problems.append(misfits[0] + more)
        if problems:
            raise ValueError(
                f"{what} belongs to another model: {'; '.join(problems)}; take the file that was made for "
                "this model, or train one with `sparda train`"
            )


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file by name, and its header, empty where it has none that is ours."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
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
    header = loaded.get("sparda") if isinstance(loaded, Mapping) else None
    return dict(_flattened(loaded)), dict(header) if isinstance(header, Mapping) else {}


def _number(header: Mapping[str, str], name: str) -> int | None:
    text = header.get(name, "")
    return int(text) if text.isdigit() else None


def _layers(
    n_found: int, header: Mapping[str, str], shape: Shape | ModelShape | None, path: Path
) -> int | None:
    """Layers of the model whose file holds ``n_found`` layers' Forecasts; None: it cannot be told.

    Files of ours say it. Before 2026-12 they did not, and left the last layer out. Others may do either.
    """
    said = _number(header, "n_layers")
    if said is None and "head_dim" in header:
        said = n_found + 1
    n_layers = said or (shape.n_layers if shape else None)
    if n_layers and n_found not in (n_layers - 1, n_layers):
        whose = "its header says" if said else "the model has"
        raise ValueError(
            f"{path} holds the Forecast of {n_found} layers, but {whose} {n_layers}; copy it again, or take "
            "the file that was made for this model"
        )
    return n_layers


def _check_trained(weights: Forecast, path: Path) -> None:
    """ValueError: a layer of zeros, as it stands for the last one, where a layer must choose."""
    for name, weight in weights.tensors().items():
        if not weight.any():
            raise ValueError(
                f"{name} in {path} is all zeros and could choose no blocks; take the file that was made for "
                "this model, or train one with `sparda train`"
            )


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
        raise ValueError(
            f"{path} holds no Forecast (no `...q_future_proj.weight`), but {some}; take the file that "
            "`sparda train` wrote"
        )
    again = "copy the whole file again, or train one with `sparda train`"
    if current is None:
        raise ValueError(
            f"{path} lacks layer 0's own projection, `model.layers.0.self_attn.q_curr_proj.weight`; {again}"
        )
    if missing := sorted(set(range(max(found) + 1)) - set(found)):
        raise ValueError(f"{path} lacks the Forecast of layers {', '.join(map(str, missing))}; {again}")
    return current, [found[layer] for layer in sorted(found)]
