"""One layer ahead: the copy runs on a stream of its own while the layer before computes (SparDA).

On a CPU the copy happens at ``wait``, as late as a real one could: a miss list that changes too early shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sparda.kernels import gather_misses
from sparda.transports.base import Job, Transport


class Lookahead(Transport):
    name = "lookahead"
    ahead = True

    def __init__(self, jobs: Mapping[int, Job]):
        super().__init__(jobs)
        self._on_gpu = any(job[1].is_cuda for job in jobs.values())
        if self._on_gpu:
            self._stream = torch.cuda.Stream(priority=-1)
            self._done = {layer: torch.cuda.Event() for layer in jobs}

    def start(self, layer: int) -> None:
        if not self._on_gpu:
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            gather_misses(*self.jobs[layer])
            self._done[layer].record()

    def wait(self, layer: int) -> None:
        if self._on_gpu:
            torch.cuda.current_stream().wait_event(self._done[layer])
        else:
            gather_misses(*self.jobs[layer])

    def close(self) -> None:
        if self._on_gpu:
            self._stream.synchronize()  # the host store is freed next
