"""One layer ahead: few CTAs copy on a stream of their own while the layer before computes (SparDA)."""

from __future__ import annotations

from sparda.kernels import gather_misses
from sparda.transports.base import SideStream


class Lookahead(SideStream):
    name = "lookahead"
    only_early = True

    def copy(self, layer: int) -> None:
        gather_misses(*self.jobs[layer], n_ctas=self.n_ctas)
