"""How names say which layers wait for their own query: "forecast@7", "sparda@7+18".

What that means stands in ``sparda.selectors.waiting``; reading a name must not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable

MARK = "@"


def join(name: str, layers: Iterable[int]) -> str:
    """The name of a selector of which some layers wait, or none.

    >>> join("forecast", {18, 7}), join("query", ())
    ('forecast@7+18', 'query')
    """
    numbers = "+".join(map(str, sorted(layers)))
    return f"{name}{MARK}{numbers}" if numbers else name


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
