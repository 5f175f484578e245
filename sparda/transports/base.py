"""How do missed blocks come? One file per answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

Job = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # host, slots, src, dst, count: as gather_misses takes it


class Transport(ABC):
    """Copies the misses of a layer from host memory into its slots.

    ``start`` is called once the layer's miss list is written, on the stream that wrote it; ``wait`` before
    attention reads the slots. Between the two the list must not change.
    """

    name: ClassVar[str] = ""
    ahead: ClassVar[bool] = False  # overlaps: started one layer early

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
