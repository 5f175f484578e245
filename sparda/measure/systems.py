"""The systems that benchmarks compare: named points of the grid selector x cache x transport."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """One point of the grid; ``cache`` "k" may be replaced by a number of slots."""

    name: str
    selector: str
    cache: str
    transport: str

    @property
    def offloads(self) -> bool:
        return self.cache != "full"


SYSTEMS = {
    system.name: system
    for system in (
        System("dense", "all", "full", "none"),
        System("sparse", "query", "full", "none"),
        System("sparse_offload", "query", "k", "demand"),
        System("sparda_no_prefetch", "forecast", "k", "demand"),
        System("sparda", "forecast", "k", "lookahead"),
        System("sparda_wait", "forecast@1", "k", "lookahead"),
        System("sparda_worker", "forecast", "k", "lookahead_worker"),
        System("sparda_copy_engine", "forecast", "k", "copy_engine"),
        System("sparda_resident", "forecast", "full", "none"),
        System("infinigen", "proxy", "k", "cpu_gather"),
        System("infinigen_uva", "proxy", "k", "lookahead"),
    )
}


def name_of(selector: str, transport: str) -> str:
    """The system that chooses and copies so.

    >>> name_of("query", "demand")
    'sparse_offload'
    """
    return next(s.name for s in SYSTEMS.values() if (s.selector, s.transport) == (selector, transport))


@dataclass(frozen=True)
class Case:
    """One line of a benchmark: a system at one size.

    slots    : "full", "k" or a number of slots a (sequence, KV head)
    hit_rate : share of the chosen blocks that the step before chose too; 1.0 where nothing is offloaded;
               None: choices that were recorded of a real model, at whatever rate they have
    """

    system: System
    context: int
    batch: int = 1
    hit_rate: float | None = 1.0
    slots: str | int = "k"


def cases(
    systems: list[str], *, contexts: list[int], batches: list[int], hit_rates: list[float | None],
    slots: list[str | int],
) -> list[Case]:  # fmt: skip
    """The sweep, the largest batch first (its host memory then serves all) and the highest hit rate first.

    A system that offloads nothing has neither hit rates nor slots to sweep.
    """
    found = []
    for context in sorted(contexts, reverse=True):
        for batch in sorted(batches, reverse=True):
            for system in (SYSTEMS[name] for name in systems):
                if not system.offloads:
                    found.append(Case(system, context, batch, 1.0, "full"))
                    continue
                rates = sorted(hit_rates, key=lambda rate: -1.0 if rate is None else rate, reverse=True)
                found += [Case(system, context, batch, rate, c) for c in slots for rate in rates]
    return found
