"""A few layers wait for their own query; for all others another selector chooses, ahead if it can.

Where a choice one layer early loses what an answer needs (chapter 07 finds such a layer), that layer may
choose on demand, and the copies of the rest still overlap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from sparda.forecast import Shape
from sparda.selectors.all import All
from sparda.selectors.base import LayerView, Selector
from sparda.selectors.query import Query
from sparda.selectors.wrapped import Wrapped
from sparda.waits import join, split


@dataclass(frozen=True)
class Waiting(Wrapped):
    """``inner``'s choice, but the query's own in ``layers``, a set of layer numbers.

    ValueError: ``inner`` reads every block. TypeError: no Selector, or layers that are no numbers.
    """

    layers: Collection[int]

    def __post_init__(self):
        if not isinstance(self.inner, Selector):
            raise TypeError(f"inner is a Selector, as sparda.selectors.make gives it; got {self.inner!r}")
        if not all(type(layer) is int for layer in self.layers):
            raise TypeError(f"layers are whole numbers, such as {{7}}; got {self.layers!r}")
        super().__post_init__()
        if isinstance(self.inner, All):
            raise ValueError(
                "selector 'all' reads every block: no layer of it can wait; leave out the layers"
            )
        object.__setattr__(self, "layers", frozenset(self.layers))
        object.__setattr__(self, "waits", self.inner.waits | frozenset(self.layers))
        object.__setattr__(self, "name", join(split(self.inner.name)[0], self.waits))

    def check(self, shape: Shape) -> None:
        super().check(shape)
        if self.layers and not 0 <= min(self.layers) <= max(self.layers) < shape.n_layers:
            raise ValueError(f"{self.name!r}: the model's layers are 0 to {shape.n_layers - 1}")

    def _of(self, layer: int) -> Selector:
        return Query() if layer in self.layers else self.inner

    def block_scores(self, view: LayerView) -> Tensor:
        return self._of(view.layer).block_scores(view)

    def select(self, view: LayerView) -> Tensor:
        return self._of(view.layer).select(view)


def check_index(selector: Selector) -> None:
    """ValueError: where nothing but its own index is kept, no layer can wait."""
    if selector.waits and selector.own_index:
        raise ValueError(
            f"selector {selector.name!r} keeps an index of its own and no compressed keys, which the query "
            f"of a layer that waits needs; take {split(selector.name)[0]!r} without such layers"
        )


def waiting(selector: Selector, layers: frozenset[int]) -> Selector:
    """The selector itself, or with the layers that wait, where there are any."""
    return Waiting(selector, layers) if layers else selector
