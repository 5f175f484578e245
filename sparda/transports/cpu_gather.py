"""The processor gathers the misses into one buffer, which is copied at once and dealt out (InfiniGen)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sparda.kernels.host_memory import pinned_empty
from sparda.transports.base import Job, SideStream, listed_misses


class CpuGather(SideStream):
    name = "cpu_gather"
    captured = False  # the host reads the miss list

    def __init__(self, jobs: Mapping[int, Job], n_ctas: int | None = None):
        super().__init__(jobs, n_ctas)
        allocate = pinned_empty if self.on_gpu else torch.empty
        shapes = [((len(src), *host.shape[-3:]), host.dtype) for host, _, src, *_ in jobs.values()]
        self._staged = allocate(shapes[0][0], dtype=shapes[0][1]) if shapes else torch.empty(0)

    def copy(self, layer: int) -> None:
        host, slots, sources, places = listed_misses(self.jobs[layer])  # waits for the copy before this one
        if not len(sources):
            return
        staged = self._staged[: len(sources)]
        torch.index_select(host, 0, sources, out=staged)
        slots[places.to(slots.device)] = staged.to(slots.device, non_blocking=True)

    @property
    def staged_bytes(self) -> int:
        return self._staged.nbytes
