"""A few layers wait for their own query; for all others another selector chooses, ahead if it can.

Where a choice one layer early loses what an answer needs (chapter 07 finds such a layer), that layer may
choose on demand, and the copies of the rest still overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from sparda.forecast import Shape
from sparda.selectors.base import LayerView, Selector
from sparda.selectors.query import Query
from sparda.selectors.wrapped import Wrapped

MARK = "@"  # "forecast@7": the Forecast chooses for all layers but 7; "forecast@7+18" for all but these two


@dataclass(frozen=True)
class Waiting(Wrapped):
    """``inner``'s choice, but the query's own in ``layers``."""

    layers: frozenset[int]

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "waits", self.inner.waits | self.layers)
        object.__setattr__(self, "name", join(self.inner.name, self.layers))

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


def join(name: str, layers: Iterable[int]) -> str:
    """The name of a selector of which some layers wait.

    >>> join("forecast", {18, 7})
    'forecast@7+18'
    """
    return f"{name}{MARK}{'+'.join(map(str, sorted(layers)))}"


def split(name: str) -> tuple[str, frozenset[int]]:
    """A name without the layers that wait, and these. ValueError: what follows the mark is no layer.

    >>> split("forecast@7+18")[0], sorted(split("forecast@7+18")[1]), split("query")
    ('forecast', [7, 18], ('query', frozenset()))
    """
    plain, marked, after = name.partition(MARK)
    if not marked:
        return name, frozenset()
    parts = after.split("+")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{name!r}: after {MARK} come layers that wait for their query, as in {plain}@7+18")
    return plain, frozenset(map(int, parts))


def waiting(selector: Selector, layers: frozenset[int]) -> Selector:
    """The selector itself, or with the layers that wait, where there are any."""
    return Waiting(selector, layers) if layers else selector
