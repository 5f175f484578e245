"""The copy engine: one cudaMemcpyAsync a miss, driven by the host, which must first read the miss list.

The bytes flow at the link's full rate; what costs is the wait for the list and the launch of every copy.
"""

from __future__ import annotations

from sparda.transports.base import SideStream, listed_misses


class CopyEngine(SideStream):
    name = "copy_engine"
    captured = False  # the host reads the miss list

    def copy(self, layer: int) -> None:
        host, slots, sources, places = listed_misses(self.jobs[layer])
        for source, place in zip(sources.tolist(), places.tolist(), strict=True):
            slots[place].copy_(host[source], non_blocking=True)
