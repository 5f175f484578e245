"""How large a store is, before it exists; and the host memory that it takes.

    cache "full"    every block has its own slot and nothing is offloaded
    cache "k"       k slots a (sequence, KV head), all blocks in host memory
    cache 144       so many slots, at least k

Layer 0 has no layer before it that could look ahead: by default its blocks stay on the GPU, for every method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sparda import blocks
from sparda.kernels.host_memory import expect_free, pinned_empty
from sparda.spec import Sparsity


@dataclass(frozen=True)
class Plan:
    """Sizes of a store. ``slots``: "full", "k" or a number; ``max_tokens``: prompt and reply together."""

    batch: int
    max_tokens: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    sparsity: Sparsity
    slots: int | str = "k"
    layer0_resident: bool = True
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    index_dim: int = 0  # channels of a selector's own index; 0: it has none

    def __post_init__(self):
        if min(self.batch, self.max_tokens) < 1:
            raise ValueError(f"batch and max_tokens must be at least 1, got {self.batch}, {self.max_tokens}")
        if type(self.slots) is not int and self.slots not in ("full", "k"):
            raise ValueError(f"cache is 'full', 'k' or a number of slots, got {self.slots!r}")
        if isinstance(self.slots, int) and self.slots < self.sparsity.budget_blocks:
            raise ValueError(
                f"cache = {self.slots} slots cannot hold the {self.sparsity.budget_blocks} chosen blocks; "
                "use 'k' or more slots, or lower budget_blocks"
            )

    @property
    def n_blocks(self) -> int:
        return blocks.count_blocks(self.max_tokens, self.sparsity)

    def n_slots(self, layer: int) -> int:
        """Slots of a (sequence, KV head) in this layer; N where nothing is offloaded."""
        if self.slots == "full" or (layer == 0 and self.layer0_resident):
            return self.n_blocks
        wanted = self.sparsity.budget_blocks if self.slots == "k" else int(self.slots)
        return min(wanted, self.n_blocks)

    def offloads(self, layer: int) -> bool:
        return self.slots != "full" and not (layer == 0 and self.layer0_resident)

    @property
    def host_shape(self) -> tuple[int, ...]:
        """Host store of one layer, [B, H, N, 2 (K, V), S, d]."""
        size = self.sparsity.block_size
        return self.batch, self.n_kv_heads, self.n_blocks, 2, size, self.head_dim

    @property
    def host_bytes(self) -> int:
        """Host memory of all offloaded layers."""
        layers = sum(self.offloads(layer) for layer in range(self.n_layers))
        return layers * math.prod(self.host_shape) * self.dtype.itemsize


class HostPool:
    """Host memory for the blocks of all offloaded layers, pinned once for the largest batch that will come.

    share : so many neighbouring layers use the same pages; more than 1 only to measure speeds with

    MemoryError, before anything is pinned: the host has not enough memory.
    """

    def __init__(self, plan: Plan, share: int = 1):
        self.share, self._dtype = share, plan.dtype
        self._bytes = math.prod(plan.host_shape) * plan.dtype.itemsize
        offloaded = [layer for layer in range(plan.n_layers) if plan.offloads(layer)]
        stores = {layer // share for layer in offloaded}
        on_gpu = torch.device(plan.device).type == "cuda"
        if stores:
            expect_free(len(stores) * self._bytes)
        allocate = pinned_empty if on_gpu else partial(torch.empty, device="cpu")
        self._stores = {i: allocate((self._bytes,), dtype=torch.uint8) for i in stores}

    @property
    def nbytes(self) -> int:
        return len(self._stores) * self._bytes

    def write(self, noise: torch.Generator) -> None:
        """Fill every page with random numbers of the plan's dtype: pages never written read faster."""
        piece = torch.empty(
            min(self._bytes, 2**28) // self._dtype.itemsize, dtype=self._dtype, device=noise.device
        )
        for store in self._stores.values():
            for part in store.view(self._dtype).split(len(piece)):
                part.copy_(piece[: len(part)].normal_(generator=noise))

    def take(self, layer: int, plan: Plan) -> Tensor:
        """The layer's host store [B, H, N, 2, S, d]; ValueError if the pool was made for less."""
        n_bytes = math.prod(plan.host_shape) * plan.dtype.itemsize
        store = self._stores.get(layer // self.share)
        if store is None:
            raise ValueError(
                f"the pool has no memory for layer {layer}; make it from a plan that offloads that layer"
            )
        if n_bytes > self._bytes:
            raise ValueError(
                f"the pool holds {self._bytes} bytes a layer, but {n_bytes} are needed; make it for the "
                "largest batch and context"
            )
        return store[:n_bytes].view(plan.dtype).view(plan.host_shape)
