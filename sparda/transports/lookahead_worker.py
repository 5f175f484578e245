"""One layer ahead, by CTAs that stay on the GPU for the whole generation and answer bells.

A kernel that is loaded while the worker lives waits for it to leave. So the first step copies without it, by
launches, and loads all that a step needs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sparda.kernels import gather_misses
from sparda.kernels.resident_worker import ResidentWorker
from sparda.transports.base import Job, Transport


class LookaheadWorker(Transport):
    name = "lookahead_worker"
    early = True
    only_early = True

    def __init__(self, jobs: Mapping[int, Job], n_ctas: int | None = None):
        super().__init__(jobs, n_ctas)
        self._place = {layer: place for place, layer in enumerate(jobs)}
        self._worker = ResidentWorker(list(jobs.values()), n_ctas=self.n_ctas)
        self._loaded: set[int] = set()  # layers that have been copied by a launch
        self._rung: set[int] = set()

    def start(self, layer: int) -> None:
        if layer not in self._loaded:
            self._loaded.add(layer)
            gather_misses(*self.jobs[layer], n_ctas=self.n_ctas)
            return
        self._worker.ring(self._place[layer])
        self._rung.add(layer)

    def wait(self, layer: int) -> None:
        if layer in self._rung:
            self._worker.wait(self._place[layer])
        elif self._ahead is not None:
            torch.cuda.current_stream().wait_stream(self._ahead)

    def resume(self) -> None:
        if len(self._loaded) == len(self.jobs):
            self._worker.start()  # it leaves when nobody rings for a while
            self._worker.check()

    def pause(self) -> None:
        self._worker.stop()

    def close(self) -> None:
        self._worker.stop()
        self._worker.check()
