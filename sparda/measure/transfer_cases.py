"""Stores, slots and miss lists with known answers: the inputs of the transfer's tests and benchmarks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparda.kernels.host_memory import pinned_empty


class TransferCase(NamedTuple):
    """The arguments of gather_misses: ``gather_misses(*case)``."""

    host: Tensor  # [B, H, N, 2, S, d]
    slots: Tensor  # [B, H, C, 2, S, d]
    src: Tensor  # [M] int32
    dst: Tensor  # [M] int32
    count: Tensor  # [1] int32

    def expected(self) -> Tensor:
        """What the slots must hold after the gather, computed on the host from the slots of now."""
        want, run, n = self.slots.cpu().clone(), self.host.shape[3:], int(self.count)
        fetched = self.host.view(-1, *run)[self.src[:n].cpu().long()]
        want.view(-1, *run)[self.dst[:n].cpu().long()] = fetched
        return want


def random_case(
    device: torch.device | str,
    *,
    batch: int = 1,
    heads: int = 2,
    n_blocks: int = 9,
    n_slots: int = 4,
    misses: int | None = None,
    block_size: int = 16,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> TransferCase:
    """Random store, slots full of NaN, and ``misses`` distinct slots per head (default: half of them)."""
    generator = torch.Generator().manual_seed(seed)
    run = (2, block_size, head_dim)
    shape = (batch, heads, n_blocks, *run)
    on_gpu = torch.device(device).type == "cuda"
    host = pinned_empty(shape, dtype) if on_gpu else torch.empty(shape, dtype=dtype)
    host.copy_(torch.randn(shape, generator=generator))
    slots = torch.full((batch, heads, n_slots, *run), float("nan"), dtype=dtype, device=device)
    src, dst, count = random_misses(
        batch * heads, n_blocks, n_slots, n_slots // 2 if misses is None else misses, generator
    )
    return TransferCase(host, slots, src.to(device), dst.to(device), count.to(device))


def random_misses(
    pairs: int, n_blocks: int, n_slots: int, misses: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """src, dst, count of ``misses`` random blocks for each of ``pairs`` = B * H; unused entries are -1."""
    pair = torch.arange(pairs)[:, None]
    slots = torch.rand(pairs, n_slots, generator=generator).argsort(-1)[:, :misses]
    blocks = torch.rand(pairs, n_blocks, generator=generator).argsort(-1)[:, :misses]
    order = torch.randperm(pairs * misses, generator=generator)
    lists = []
    for ids in (pair * n_blocks + blocks, pair * n_slots + slots):
        padded = torch.full((pairs * n_slots,), -1, dtype=torch.int32)
        padded[: pairs * misses] = ids.flatten()[order].int()
        lists.append(padded)
    return lists[0], lists[1], torch.tensor([pairs * misses], dtype=torch.int32)


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Whether two tensors hold the same bytes; NaN equals itself here."""
    return torch.equal(got.cpu().contiguous().view(torch.uint8), want.cpu().contiguous().view(torch.uint8))
