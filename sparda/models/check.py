"""``attach``'s self-check: our attention against the model's own, and how every layer rotates.

What is served is what was compared in one short forward pass of the real model (``sparda.models.watch``), not
what a list of names promises.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sparda.models.fingerprint import fingerprint
from sparda.models.layers import attention_layers, head_dim, layer_index, linear_map
from sparda.models.rotary import Rotary
from sparda.models.watch import Layer, Pass, differs, watch
from sparda.selectors import Selector

OTHERS = "use a selector that does not look ahead, such as 'query'"


class Known(NamedTuple):
    """What a pass has told of a model: KV heads and their channels, and the rotation, of each layer."""

    state: list[tuple]
    heads: list[tuple[int, int]]
    rotaries: list[Rotary | None]


_KNOWN: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()  # by a model's first attention layer


def checked(model: nn.Module, *, looks_ahead: bool) -> list[Rotary]:
    """The rotation of every layer; empty where nothing looks ahead. A model is watched once.

    TypeError, with one sentence: our attention is not the model's, or a layer's choice cannot be foreseen in
    the layer before because its queries turn in a way that is not known.
    """
    layers = attention_layers(model)
    known = _KNOWN.get(layers[0])
    state = [_state_of(m) for m in layers]
    if known is None or known.state != state:
        found = watch(model)
        check_attention(found)
        heads = [(one.keys.shape[1], one.keys.shape[-1]) for one in found.layers]
        known = _KNOWN[layers[0]] = Known(state, heads, [one.rotary() for one in found.layers])
    if not looks_ahead:
        return []
    order = [layer_index(m) for m in layers]
    if order != list(range(len(layers))):
        raise TypeError(
            "a choice one layer ahead needs attention once in every layer, and this model has it in layers "
            f"{', '.join(map(str, order[:6]))}{', ...' if len(order) > 6 else ''}; {OTHERS}"
        )
    if len(set(known.heads)) > 1:
        raise TypeError(
            f"a choice one layer ahead needs the same KV heads in all layers, and they differ; {OTHERS}"
        )
    rotaries = [rotary for rotary in known.rotaries if rotary is not None]
    if len(rotaries) < len(layers):
        missing = [*known.rotaries, None].index(None)
        raise TypeError(
            f"a choice one layer ahead has to turn as the queries of layer {missing} do, and they turn in "
            "no way "
            "that is known here (halves or pairs of channels, by angles that the layer is handed as "
            f"position_embeddings); {OTHERS}"
        )
    return rotaries


def _state_of(module: Any) -> tuple:
    """What tells that a layer computes something else than it did: its class, its code, its settings."""
    plain = {k: v for k, v in vars(module).items() if isinstance(v, bool | int | float | str)}
    plain.pop("training", None)
    return id(module), type(module), id(vars(module).get("forward")), repr(plain)


def check_attention(found: Pass) -> None:
    """TypeError: a layer answers otherwise than with plain causal attention."""
    for layer in found.layers:
        if differs(layer.ours, layer.answer, layer.tolerance):
            raise TypeError(other_attention(layer))


def other_attention(layer: Layer) -> str:
    """The sentence for a layer whose attention is not ours."""
    return (
        f"{layer.name} does not compute plain causal attention of its queries, keys and values: on a "
        "short text "
        "its answer differs from ours, so that no choice of blocks could be trusted; use the model unattached"
    )


def query_weights(model: nn.Module) -> list[Tensor]:
    """The query weights of every layer, [H_q * d, hidden], adapters and quantisation counted.

    TypeError: queries that are no linear map of their input, because a bias or a norm comes on top.
    """
    weights = []
    for layer in watch(model).layers:
        x, before = layer.x, layer.unrotated
        w = linear_map(layer.module.q_proj, x.shape[-1], x.device, x.dtype)
        heads = torch.nn.functional.linear(x, w).unflatten(-1, (-1, head_dim(layer.module))).transpose(1, 2)
        if before is None or differs(heads, before, layer.tolerance):
            raise TypeError(
                "to guess a query one layer early by its own weights, it must be a linear map of the layer's "
                f"input, and in {layer.name} a bias, a norm or a scale comes on top; use a selector "
                "without such "
                "weights, such as 'query', or train a Forecast with `sparda train --init random`"
            )
        weights.append(w)
    return weights


_PRINTS: WeakKeyDictionary[nn.Module, tuple[list, str]] = WeakKeyDictionary()


def warn_of_other_weights(model: nn.Module, selector: Selector) -> None:
    """UserWarning: the selector's weights were made for a model of this shape with other weights."""
    if selector.made_for("") is None:
        return  # its file does not say
    now = [(p.data_ptr(), None if p.is_inference() else p._version) for p in model.parameters()]
    if _PRINTS.get(model, (None,))[0] != now:
        try:
            _PRINTS[model] = now, fingerprint(model)
        except ValueError:  # offloaded
            return
    if selector.made_for(_PRINTS[model][1]) is False:
        warnings.warn(
            f"the weights of selector {selector.name!r} were made for a model with other weights than "
            "this one, "
            "so it may choose worse; train them for this model with `sparda train`, or load the model "
            "they name",
            stacklevel=4,
        )
