"""How do missed blocks come? One file per answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

Job = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # host, slots, src, dst, count: as gather_misses takes it


class Transport(ABC):
    """Copies the misses of a layer from host memory into its slots.

    ``start`` is called once the layer's miss list is written, on the stream that wrote it; ``wait`` before
    attention reads the slots. Between the two the list must not change.
    """

    name: ClassVar[str] = ""
    early: ClassVar[bool] = False  # starts one layer early, with a selector that looks ahead
    only_early: ClassVar[bool] = False  # and is of no use with another

    def __init__(self, jobs: Mapping[int, Job]):
        self.jobs = jobs

    @abstractmethod
    def start(self, layer: int) -> None:
        """Begin to copy the layer's misses."""

    @abstractmethod
    def wait(self, layer: int) -> None:
        """Return, or hold the stream, until the layer's misses are in their slots."""

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give back streams and memory; the transport cannot be used afterwards."""


class SideStream(Transport):
    """Copies on a stream of its own.

    On a CPU the copy happens at ``wait``, as late as a real one could: a list that changes too early shows.
    """

    early = True

    def __init__(self, jobs: Mapping[int, Job]):
        super().__init__(jobs)
        self._on_gpu = any(job[1].is_cuda for job in jobs.values())
        if self._on_gpu:
            self._stream = torch.cuda.Stream(priority=-1)
            self._done = {layer: torch.cuda.Event() for layer in jobs}

    @abstractmethod
    def copy(self, layer: int) -> None:
        """Copy the layer's misses on the current stream."""

    def start(self, layer: int) -> None:
        if not self._on_gpu:
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.copy(layer)
            self._done[layer].record()

    def wait(self, layer: int) -> None:
        if self._on_gpu:
            torch.cuda.current_stream().wait_event(self._done[layer])
        else:
            self.copy(layer)

    def close(self) -> None:
        if self._on_gpu:
            self._stream.synchronize()  # the host store is freed next


def listed_misses(job: Job) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Host and slots as lists of runs [n, 2, S, d], and the miss list on the host: waits for the GPU."""
    host, slots, src, dst, count = job
    n = int(count)
    run = host.shape[-3:]
    return host.view(-1, *run), slots.view(-1, *run), src[:n].long().cpu(), dst[:n].long().cpu()
