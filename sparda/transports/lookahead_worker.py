"""One layer ahead, by CTAs that stay on the GPU for the whole generation and answer bells.

A kernel that is loaded while the worker lives waits for it to leave. So the first step copies without it, by
launches, and loads all that a step needs.
"""

from __future__ import annotations

import time
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
        self._resumed = 0.0  # when

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
            now, patience_s = time.monotonic(), self._worker.limit_ns / 1e9
            if now - self._resumed > patience_s / 2:  # it may be about to leave, before the bell
                self._worker.stop()
            self._resumed = now
            self._worker.start()
            self.check()

    def pause(self) -> None:
        self._worker.stop()

    def check(self) -> None:
        try:
            self._worker.check()
        except TimeoutError as error:
            raise TimeoutError(
                "a layer's blocks did not arrive, so the tokens since then are wrong; the batch is given up: "
                "try again, with transport='lookahead' if it happens again"
            ) from error

    def close(self) -> None:
        self._worker.stop()
        super().close()

    @property
    def workspace_bytes(self) -> int:
        worker = self._worker
        if not worker.on_gpu:
            return 0
        buffers = (worker.table, worker.queue, worker.head, worker.done, worker.tickets, worker.control)
        return sum(buffer.nbytes for buffer in buffers)
