"""Host memory that the cases of a sweep share: pinning takes half a second a GiB, so it is done once."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, field

import torch

from sparda.plan import HostPool, Plan
from sparda.units import format_bytes


class WrittenOnce(HostPool):
    """Random pages are written by the first case: what later ones read there is as random."""

    _written = False

    def write(self, noise: torch.Generator) -> None:
        if not self._written:
            super().write(noise)
        self._written = True


@dataclass
class Hosts:
    """Makes the pool of the largest case, which should come first; smaller ones take a part of it.

    share : so many layers use the same pages, where the host is too small for one each: for speed only, the
            layers then read each other's blocks
    limit : most bytes to pin, where the machine's own figure cannot be trusted; None: no limit
    """

    share: int = 1
    limit: int | None = None
    _pool: HostPool | None = field(default=None, repr=False)
    _bytes: int = 0  # of a layer

    def pool(self, plan: Plan) -> HostPool | None:
        """Memory for this plan, None if it offloads nothing; MemoryError says what to lower."""
        if not plan.host_bytes:
            return None
        n_bytes = math.prod(plan.host_shape) * plan.dtype.itemsize
        if self._pool is None or n_bytes > self._bytes:
            if self._pool is not None:  # given back before more is asked for
                self._pool, self._bytes = None, 0
                gc.collect()
            self._expect_allowed(n_bytes * len({i // self.share for i in range(1, plan.n_layers)}))
            self._pool, self._bytes = WrittenOnce(plan, self.share), n_bytes
        return self._pool

    def _expect_allowed(self, n_bytes: int) -> None:
        if self.limit is not None and n_bytes > self.limit:
            raise MemoryError(
                f"{format_bytes(n_bytes)} of host memory are over the limit of {format_bytes(self.limit)}; "
                "lower the batch, or let layers share pages (--share-host)"
            )
