"""The compared methods, and the one rule that all of them follow."""

from __future__ import annotations

from sparda.spec import Sparsity
from sparda.waits import split

METHODS = {
    "dense": "all",
    "sparse": "query",
    "infinigen": "proxy",
    "sparda": "forecast",
    "streaming": "streaming",
    "random": "random",
    "oracle": "oracle",
}
"""Method -> its selector. Each is compared with those before it; "sparda@7" is SparDA whose layer 7 waits."""

HEADLINE = ("dense", "sparse", "infinigen", "sparda")  # those of the paper's tables

SHARES = (0.125, 0.25)  # k as a share of the context's blocks


def place(method: str) -> tuple[int, list[int]]:
    """Where a method stands among all, those with layers that wait behind the one without.

    ValueError: there is no such method.

    >>> sorted(["oracle", "sparda@7", "sparda"], key=place)
    ['sparda', 'sparda@7', 'oracle']
    """
    name, layers = split(method)
    if name not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    return list(METHODS).index(name), sorted(layers)


def rule(context: int, share: float) -> Sparsity:
    """Blocks of 64, one init block, k = share of the context's blocks, local = k / 4: for every method.

    ValueError: no share, or k is too small for its forced blocks and a learned one.

    >>> [(r.budget_blocks, r.local_blocks) for r in (rule(8192, 0.125), rule(4096, 0.25), rule(1024, 0.25))]
    [(16, 4), (16, 4), (4, 1)]
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of the blocks lies between 0 and 1, got {share:g}")
    k = round(share * context / 64)
    local = max(1, k // 4)
    if k < local + 3:
        raise ValueError(
            f"{share:g} of {context} tokens are {k} blocks: no room for init, local, own and a learned one; "
            "take a longer context or a larger share"
        )
    return Sparsity(k, block_size=64, init_blocks=1, local_blocks=local)
