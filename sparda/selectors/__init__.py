"""Who chooses the blocks? One file per answer; ``make`` finds them by name.

>>> make("random", seed=3)
Random(seed=3)
>>> make("qurey")  # doctest: +ELLIPSIS
Traceback (most recent call last):
ValueError: unknown selector 'qurey'; choose one of all, ...
"""

from __future__ import annotations

import inspect

from sparda.selectors.all import All
from sparda.selectors.base import LayerView, Selector
from sparda.selectors.forecast import Forecast
from sparda.selectors.oracle import Oracle
from sparda.selectors.proxy import Proxy
from sparda.selectors.query import Query
from sparda.selectors.random import Random
from sparda.selectors.streaming import Streaming
from sparda.selectors.waiting import Waiting, waiting
from sparda.waits import split

SELECTORS: dict[str, type[Selector]] = {
    c.name: c for c in (All, Query, Forecast, Proxy, Streaming, Random, Oracle)
}

__all__ = [
    "SELECTORS",
    "All",
    "Forecast",
    "LayerView",
    "Oracle",
    "Proxy",
    "Query",
    "Random",
    "Selector",
    "Streaming",
    "Waiting",
    "make",
]


HOW = {  # to make a selector that needs more than its name
    "forecast": "weights=Forecast.load(file, Shape.of(model)); `sparda train` makes a file for a model",
    "proxy": "selector=Proxy.calibrate(model, ids), with ids [1, T] of some text",
}


def make(name: str | Selector, **options) -> Selector:
    """Return a selector by name with its options; ValueError lists the names, TypeError the options.

    "forecast@7" is the selector "forecast" with layer 7 waiting for its own query (``selectors.waiting``).
    """
    if isinstance(name, Selector):
        if options:
            raise TypeError(f"the selector is already made; set {sorted(options)} where you make it")
        return name
    if not isinstance(name, str):
        raise TypeError(f"selector is a name, such as 'query', or a Selector; got {name!r}")
    name, layers = split(name)
    if name not in SELECTORS:
        raise ValueError(f"unknown selector {name!r}; choose one of {', '.join(sorted(SELECTORS))}")
    known = list(inspect.signature(SELECTORS[name]).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"selector {name!r} has no option {unknown}; it has {known or 'none'}")
    needed = [key for key, p in inspect.signature(SELECTORS[name]).parameters.items() if p.default is p.empty]
    if missing := [key for key in needed if key not in options]:
        how = HOW.get(name, "give them as keywords")
        raise TypeError(f"selector {name!r} needs {', '.join(missing)}: {how}")
    return waiting(SELECTORS[name](**options), layers)
