"""A model's weights as one short word, to tell a model from another of the same shape."""

from __future__ import annotations

import hashlib
from math import gcd
from typing import Any

import torch
from torch import Tensor

SAMPLED = 2**16  # values of each tensor: 10 to 40 MB of an 8B model


def fingerprint(model: Any, *, exact: bool = False) -> str:
    """32 hex digits of every weight tensor's name and shape and of a sample of its values.

    Up to 65,536 values of each tensor are hashed, evenly spaced, wherever they are. Tied weights count once,
    under their first name. A change to a few values of a large tensor can go unnoticed; training or merging
    changes them all.

    exact : hash dtypes, and the values as they are. Else values are rounded to bfloat16, so that one model
            loaded as float32 and as bfloat16 has one fingerprint; as float16 it may have another

    ValueError: weights that are not in memory, because they were offloaded or never loaded.
    """
    found = hashlib.sha256()
    for name, weight in sorted(_once(model.state_dict()).items()):
        if weight.is_meta:
            raise ValueError(
                f"the weights of {name} are not in memory, so that this model cannot be told from another; "
                "load it whole, without a disk or CPU offload"
            )
        found.update(f"{name} {list(weight.shape)} {weight.dtype if exact else ''}".encode())
        values = _sample(weight)
        if values.is_floating_point() and not exact:
            values = values.to(torch.bfloat16)
        found.update(values.cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:32]


def _once(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor under its first name only."""
    first: dict[Any, str] = {}
    for name, weight in weights.items():
        place = name if weight.is_meta else (weight.device, weight.data_ptr(), weight.shape, weight.stride())
        first.setdefault(place, name)
    return {name: weights[name] for name in first.values()}


def _sample(weight: Tensor) -> Tensor:
    """Evenly spaced values; their step shares no factor with a row, so that no column is missed.

    >>> _sample(torch.arange(2**17).view(2, 2**16))[:3]
    tensor([0, 3, 6])
    """
    step = max(1, -(-weight.numel() // SAMPLED))
    while gcd(step, weight.shape[-1] if weight.dim() else 1) > 1:
        step += 1
    return weight.detach().flatten()[::step].contiguous()
