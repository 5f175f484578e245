"""On demand: the layer chooses, copies and waits; nothing overlaps (Sparse with synchronous offload)."""

from __future__ import annotations

from sparda.kernels import gather_misses
from sparda.transports.base import Transport


class Demand(Transport):
    name = "demand"

    def start(self, layer: int) -> None:
        with self.traced("transfer", layer):
            gather_misses(*self.jobs[layer], n_ctas=self.n_ctas)

    def wait(self, layer: int) -> None:
        pass  # the copy is on the stream that attention will use
