"""One layer ahead, by CTAs that stay on the GPU for the whole generation and answer bells.

A kernel that is loaded while the worker lives waits for it to leave. So the first step copies without it, by
launches, and loads all that a step needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparda.kernels import gather_misses
from sparda.kernels.resident_worker import ResidentWorker
from sparda.transports.base import Job, Transport


class LookaheadWorker(Transport):
    name = "lookahead_worker"
    early = True
    only_early = True

    def __init__(self, jobs: Mapping[int, Job]):
        super().__init__(jobs)
        self._place = {layer: place for place, layer in enumerate(jobs)}
        self._worker = ResidentWorker(list(jobs.values()))
        self._loaded: set[int] = set()  # layers that have been copied by a launch
        self._rung: set[int] = set()

    def start(self, layer: int) -> None:
        if layer not in self._loaded:
            self._loaded.add(layer)
            gather_misses(*self.jobs[layer])
            return
        self._worker.start()  # it leaves when nobody rings for a while
        self._worker.ring(self._place[layer])
        self._rung.add(layer)

    def wait(self, layer: int) -> None:
        if layer in self._rung:
            self._worker.wait(self._place[layer])

    def close(self) -> None:
        self._worker.stop()
        self._worker.check()
