"""How do missed blocks come? One file per answer; ``get`` finds them by name.

>>> get("lookahead").early
True
>>> get("lookahead_worker").only_early
True
"""

from __future__ import annotations

from sparda.transports.base import Transport
from sparda.transports.copy_engine import CopyEngine
from sparda.transports.cpu_gather import CpuGather
from sparda.transports.demand import Demand
from sparda.transports.lookahead import Lookahead
from sparda.transports.lookahead_worker import LookaheadWorker
from sparda.transports.none import NoTransport

TRANSPORTS: dict[str, type[Transport]] = {
    c.name: c for c in (NoTransport, Demand, Lookahead, LookaheadWorker, CopyEngine, CpuGather)
}

__all__ = [
    "TRANSPORTS",
    "CopyEngine",
    "CpuGather",
    "Demand",
    "Lookahead",
    "LookaheadWorker",
    "NoTransport",
    "Transport",
    "get",
]


def get(name: str) -> type[Transport]:
    """Return a transport by name; ValueError lists the names."""
    if name not in TRANSPORTS:
        raise ValueError(f"unknown transport {name!r}; choose one of {', '.join(sorted(TRANSPORTS))}")
    return TRANSPORTS[name]
