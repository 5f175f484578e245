"""How do missed blocks come? One file per answer.

A layer's misses go through four calls, in this order:

    with transport.prepare(l):   the engine scores, takes the top k and lists the misses; then the copy starts
    transport.chosen(l)          before anything reads the lists or the tail slot of l
    transport.wait(l)            before attention reads the slots of l

On a GPU a transport that starts early prepares on a stream of its own, beside the attention of the layer
before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sparda.trace import Trace

Job = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # host, slots, src, dst, count: as gather_misses takes it


@cache
def side_stream(role: str, device: int) -> torch.cuda.Stream:
    """One stream a role, for all batches: torch and cuBLAS keep memory for each that ever computed."""
    return torch.cuda.Stream(device, priority=-1)


class Transport(ABC):
    """Copies the misses of a layer from host memory into its slots.

    jobs   : for each layer whose blocks are offloaded, what to copy
    n_ctas : CTAs that copy, where a kernel of ours does; None: its default
    """

    name: ClassVar[str] = ""
    early: ClassVar[bool] = False  # starts one layer early, with a selector that looks ahead
    only_early: ClassVar[bool] = False  # and is of no use with another
    captured: ClassVar[bool] = True  # never waits for the GPU, so that a CUDA graph can hold it

    def __init__(self, jobs: Mapping[int, Job], n_ctas: int | None = None):
        from sparda.kernels.gather_misses import N_CTAS

        self.jobs = jobs
        self.n_ctas = n_ctas or N_CTAS
        self.trace: Trace | None = None
        self.on_gpu = any(job[1].is_cuda for job in jobs.values())
        self._ahead: torch.cuda.Stream | None = None
        self._streams: list[torch.cuda.Stream] = []  # beside the one of compute
        if self.on_gpu and self.early:
            self._ahead = side_stream("choose", torch.cuda.current_device())
            self._streams.append(self._ahead)
            self._chosen = {layer: torch.cuda.Event() for layer in jobs}

    @contextmanager
    def prepare(self, layer: int, early: bool = False) -> Iterator[None]:
        """Choose inside; the copy starts at the end. ``early``: for the next layer, beside this one."""
        if not early or self._ahead is None:
            with self.traced("prep", layer):
                yield
            self._start(layer)
            return
        self._ahead.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._ahead):
            with self.traced("prep", layer):
                yield
            self._start(layer)
            self._chosen[layer].record()  # after a bell, too: a capture must end with all streams joined

    def _start(self, layer: int) -> None:
        if layer in self.jobs:
            self.start(layer)

    def chosen(self, layer: int) -> None:
        """Hold the stream until the early choice for ``layer`` stands."""
        if self._ahead is not None:
            torch.cuda.current_stream().wait_event(self._chosen[layer])

    @abstractmethod
    def start(self, layer: int) -> None:
        """Begin to copy the layer's misses; the list is complete on the current stream."""

    @abstractmethod
    def wait(self, layer: int) -> None:
        """Return, or hold the stream, until the layer's misses are in their slots."""

    def resume(self) -> None:  # noqa: B027 (most keep nothing running)
        """Called before each step, or replay of one."""

    def pause(self) -> None:  # noqa: B027
        """Called before kernels are loaded and graphs captured: nothing may occupy the GPU."""

    def check(self) -> None:  # noqa: B027
        """Raise TimeoutError if a wait gave up, so that tokens since then are not to be trusted."""

    def join(self) -> None:
        """Lead a capture that is given up half-way back to the current stream: else it cannot end."""
        for stream in self._streams:
            with torch.cuda.stream(stream):
                forked = torch.cuda.is_current_stream_capturing()
            if forked:
                torch.cuda.current_stream().wait_stream(stream)

    def close(self) -> None:
        """Stop what runs; the transport cannot be used afterwards."""
        for stream in self._streams:
            stream.synchronize()  # slots and host store are freed next

    @property
    def staged_bytes(self) -> int:
        """Host memory of buffers between host store and slots."""
        return 0

    @property
    def workspace_bytes(self) -> int:
        """Memory of what keeps the transport going."""
        return 0

    @contextmanager
    def traced(self, kind: str, layer: int) -> Iterator[None]:
        """Mark when this part of a layer runs, if a trace is taken."""
        if self.trace is not None:
            self.trace.mark(kind, layer, "start")
        yield
        if self.trace is not None:
            self.trace.mark(kind, layer, "end")


class SideStream(Transport):
    """Copies on a stream of its own.

    On a CPU the copy happens at ``wait``, as late as a real one could: a list that changes too early shows.
    """

    early = True

    def __init__(self, jobs: Mapping[int, Job], n_ctas: int | None = None):
        super().__init__(jobs, n_ctas)
        if self.on_gpu:
            self._stream = side_stream("copy", torch.cuda.current_device())
            self._streams.append(self._stream)
            self._done = {layer: torch.cuda.Event() for layer in jobs}

    @abstractmethod
    def copy(self, layer: int) -> None:
        """Copy the layer's misses on the current stream."""

    def start(self, layer: int) -> None:
        if not self.on_gpu:
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            with self.traced("transfer", layer):
                self.copy(layer)
            self._done[layer].record()

    def wait(self, layer: int) -> None:
        if self.on_gpu:
            torch.cuda.current_stream().wait_event(self._done[layer])
        else:
            with self.traced("transfer", layer):
                self.copy(layer)


def listed_misses(job: Job) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Host and slots as lists of runs [n, 2, S, d], and the miss list on the host: waits for the GPU."""
    host, slots, src, dst, count = job
    n = int(count)
    run = host.shape[-3:]
    return host.view(-1, *run), slots.view(-1, *run), src[:n].long().cpu(), dst[:n].long().cpu()
