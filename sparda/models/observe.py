"""A model runs its own attention (PyTorch's, fused on a GPU), and somebody sees its queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from sparda.models import interface

NAME = "sparda-observe"
Observer = Callable[[Any, Tensor, Tensor], None]
_OBSERVED: WeakKeyDictionary[nn.Module, Observer] = WeakKeyDictionary()


@contextmanager
def observing(layers: Sequence[Any], see: Observer) -> Iterator[None]:
    """Call ``see(module, q, k)`` in each layer, q [B, H_q, T, d] and k [B, H, T, d] after RoPE.

    RuntimeError: the model is observed already.
    """
    if any(module in _OBSERVED for module in layers):
        raise RuntimeError("this model is being observed already; wait until that has ended")
    interface.register(NAME, _attention, _mask)
    _OBSERVED.update(dict.fromkeys(layers, see))
    try:
        with interface.serving(layers, NAME):
            yield
    finally:
        for module in layers:
            _OBSERVED.pop(module, None)


def _attention(module, query, key, value, attention_mask, dropout=0.0, **kwargs):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    interface.check_plain(key.shape[2], dropout, kwargs)
    _OBSERVED[module](module, query, key)
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, **kwargs)


def _mask(*args, **kwargs):
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **kwargs)
