"""``Engine``: generate with the KV cache in host memory, on the grid selector x cache x transport.

engine = sparda.Engine(model, selector="query", sparsity=rule, cache="k", transport="demand")
engine.generate([[1, 5, 9], [1, 7]], max_new_tokens=20)
"""

from sparda.engine.engine import Engine, Generated

__all__ = ["Engine", "Generated"]
