"""Stores, slots and miss lists for the tests of the transfer, and what must come out."""

from __future__ import annotations

import torch
from sparda.kernels.host_memory import pinned_empty

BITS = {2: torch.int16, 4: torch.int32}


def make_case(
    device, *, batch=1, heads=2, n_blocks=9, n_slots=4, size=16, dim=16, dtype=torch.float32, seed=0
):
    """Random store and poisoned slots, and a shuffled list of misses for half of the slots."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, n_blocks, 2, size, dim)
    host = torch.randn(shape, generator=generator).to(dtype)
    if device.type == "cuda":
        host = pinned_empty(shape, dtype).copy_(host)
    slots = torch.full((batch, heads, n_slots, 2, size, dim), float("nan"), dtype=dtype, device=device)
    pairs = batch * heads
    n = pairs * n_slots // 2
    dst = torch.randperm(pairs * n_slots, generator=generator)[:n]
    src = (dst // n_slots) * n_blocks + torch.randint(n_blocks, (n,), generator=generator)
    capacity = pairs * n_slots
    lists = [torch.full((capacity,), -1, dtype=torch.int32) for _ in range(2)]
    lists[0][:n], lists[1][:n] = src, dst
    return host, slots, *(t.to(device) for t in lists), torch.tensor([n], dtype=torch.int32, device=device)


def expected(host, slots, src, dst, count):
    want = slots.cpu().clone()
    runs, n = host.view(-1, *host.shape[3:]), int(count)
    want.view(-1, *slots.shape[3:])[dst[:n].cpu().long()] = runs[src[:n].cpu().long()]
    return want


def same_bits(got, want):
    kind = BITS[got.element_size()]
    return torch.equal(got.cpu().view(kind), want.view(kind))
