"""Documents in, sequences of one length out.

A document that is longer than a sequence is cut from its own first token on, so that a sequence holds one
text; what remains of it, and every shorter document, is joined to others with the end token at the boundary.
Attention crosses a boundary, as in most pre-training: the Forecast learns where the frozen model looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np


def pack(documents: Iterable[Sequence[int]], length: int, end: int) -> Iterator[np.ndarray]:
    """Sequences [length] int64, in the order of their documents; what fills no sequence is dropped.

    >>> [s.tolist() for s in pack([[5, 5], [7] * 5, [8]], length=4, end=0)]
    [[7, 7, 7, 7], [5, 5, 0, 7]]
    """
    if length < 2:
        raise ValueError(f"a sequence holds at least 2 tokens, got length = {length}")
    rest: list[int] = []
    for document in documents:
        whole = len(document) // length * length
        for start in range(0, whole, length):
            yield np.asarray(document[start : start + length], dtype=np.int64)
        if len(document) > whole:
            rest += [*document[whole:], end]
        while len(rest) >= length:
            yield np.asarray(rest[:length], dtype=np.int64)
            rest = rest[length:]
