"""The processor gathers the misses into one buffer, which is copied at once and dealt out (InfiniGen)."""

from __future__ import annotations

import torch

from sparda.transports.base import SideStream, listed_misses


class CpuGather(SideStream):
    name = "cpu_gather"
    captured = False  # the host reads the miss list

    def copy(self, layer: int) -> None:
        host, slots, sources, places = listed_misses(self.jobs[layer])
        if not len(sources):
            return
        staged = torch.empty(len(sources), *host.shape[1:], dtype=host.dtype, pin_memory=slots.is_cuda)
        torch.index_select(host, 0, sources, out=staged)
        slots[places.to(slots.device)] = staged.to(slots.device, non_blocking=True)
