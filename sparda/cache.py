"""Resident slots: which block sits where, what must move, and where the new token goes.

The plain rules, in torch and Python loops: the reference of the kernels ``topk_difference`` and
``rope_append``, and the path that a CPU takes.

Maps of one layer, int32: slot_block [B, H, C] names the block that a slot holds (-1: empty); block_slot
[B, H, N] is its inverse (-1: not resident). Both change in place.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparda import blocks
from sparda.spec import Sparsity

Policy = Literal["recent", "score"]  # first to leave: the block longest not wanted, or of the lowest score


@dataclass(frozen=True)
class Selection:
    """What one selection step decides for a layer; buffers that a CUDA graph writes again and again.

    block_ids : [B, H, k] int32, ascending, then -1
    slot_ids  : [B, H, k] int32, the slot of each of those blocks, then -1
    tail_slot : [B, H] int32, the slot of the block that is being written
    src, dst  : [B*H*k] int32, the misses: run (b*H + h)*N + block of the host goes to run (b*H + h)*C + slot
                of the slots; the first ``count`` entries are valid, the order between heads is free
    count     : [1] int32
    last_use  : [B, H, C] int32, position at which the slot's block was last wanted; the memory of the
                replacement policy "recent", kept where C > k only
    """

    block_ids: Tensor
    slot_ids: Tensor
    tail_slot: Tensor
    src: Tensor
    dst: Tensor
    count: Tensor
    scratch: Tensor  # [B, H, C] int32, free slots in order
    ticket: Tensor  # [1] int64, zero between launches
    last_use: Tensor

    @classmethod
    def empty(cls, batch: int, heads: int, budget: int, n_slots: int, device: torch.device) -> Selection:
        """Allocate the buffers of a layer with C = n_slots."""

        def ids(*shape: int) -> Tensor:
            return torch.full(shape, -1, dtype=torch.int32, device=device)

        return cls(
            block_ids=ids(batch, heads, budget),
            slot_ids=ids(batch, heads, budget),
            tail_slot=ids(batch, heads),
            src=ids(batch * heads * budget),
            dst=ids(batch * heads * budget),
            count=torch.zeros(1, dtype=torch.int32, device=device),
            scratch=ids(batch, heads, n_slots),
            ticket=torch.zeros(1, dtype=torch.int64, device=device),
            last_use=ids(batch, heads, n_slots),
        )

    def misses(self) -> list[tuple[int, int]]:
        """The valid (src, dst) pairs in ascending order; waits for the GPU."""
        n = int(self.count)
        return sorted(zip(self.src[:n].tolist(), self.dst[:n].tolist(), strict=True))


def empty_maps(
    batch: int, heads: int, n_slots: int, n_blocks: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """slot_block [B, H, C] and block_slot [B, H, N] of a cache that holds nothing."""
    slot_block = torch.full((batch, heads, n_slots), -1, dtype=torch.int32, device=device)
    return slot_block, torch.full((batch, heads, n_blocks), -1, dtype=torch.int32, device=device)


def difference(
    block_ids: Tensor, positions: Tensor, slot_block: Tensor, block_slot: Tensor, block_size: int,
    out: Selection, *, policy: Policy = "recent", scores: Tensor | None = None,
) -> Selection:  # fmt: skip
    """Give every wanted block a slot, and list what must be copied.

    Resident blocks keep their slot. Of the slots whose block is not wanted, as many as blocks are missing are
    given away: where C = k the first ones, else the empty ones, then by ``policy``. In ascending order the
    first goes to the query's own block, if that has no slot, without a copy: it is new; the next ones go to
    the missing blocks, ascending.

    block_ids [B, H, k] int, ascending, then -1; positions [B]; scores [B, H, N], needed by policy "score"
    the maps and out.last_use change in place; the rest of out is filled

    >>> slot_block, block_slot = empty_maps(1, 1, 4, 16)
    >>> slot_block[0, 0] = torch.tensor([5, 7, 9, 12])
    >>> block_slot[0, 0, [5, 7, 9, 12]] = torch.arange(4).int()
    >>> wanted, out = torch.tensor([[[5, 9, 11, 12]]]), Selection.empty(1, 1, 4, 4, torch.device("cpu"))
    >>> _ = difference(wanted, torch.tensor([12 * 64]), slot_block, block_slot, 64, out)
    >>> slot_block.tolist(), out.slot_ids.tolist(), out.misses()
    ([[[5, 11, 9, 12]]], [[[0, 2, 1, 3]]], [(11, 1)])
    """
    batch, heads, n_slots = slot_block.shape
    n_blocks, n_misses = block_slot.shape[-1], 0
    larger = n_slots > block_ids.shape[-1]  # than k: there is a choice
    out.slot_ids.fill_(-1)
    out.block_ids.copy_(block_ids)
    for b, h in itertools.product(range(batch), range(heads)):
        own = int(positions[b]) // block_size
        wanted = [i for i in block_ids[b, h].tolist() if i >= 0]
        missing = [i for i in wanted if block_slot[b, h, i] < 0]
        missing.sort(key=lambda i: i != own)  # stable: the own block first, then ascending
        held, worth = slot_block[b, h].tolist(), None
        if larger and policy == "recent":
            worth = out.last_use[b, h].tolist()
        elif larger:
            assert scores is not None, "policy 'score' needs scores"
            worth = [float(scores[b, h, i]) if i <= own else float("-inf") for i in held]
        for block, slot in zip(missing, _given_away(held, wanted, worth, len(missing)), strict=False):
            if held[slot] >= 0:
                block_slot[b, h, held[slot]] = -1
            slot_block[b, h, slot], block_slot[b, h, block] = block, slot
            if block != own:
                out.src[n_misses] = (b * heads + h) * n_blocks + block
                out.dst[n_misses] = (b * heads + h) * n_slots + slot
                n_misses += 1
        out.slot_ids[b, h, : len(wanted)] = block_slot[b, h, wanted]
        out.tail_slot[b, h] = block_slot[b, h, own]
        if larger:
            out.last_use[b, h, block_slot[b, h, wanted].long()] = int(positions[b])
    out.count.fill_(n_misses)
    return out


def _given_away(held: list[int], wanted: list[int], worth: list[float] | None, n: int) -> list[int]:
    """The n slots that get another block, ascending.

    Of the slots whose block is not wanted: the first ones, or by worth: empty ones, then those worth least,
    the lower slot first.
    """
    free = [slot for slot, block in enumerate(held) if block not in wanted]
    if worth is not None:
        free.sort(key=lambda slot: (held[slot] >= 0, worth[slot] if held[slot] >= 0 else 0, slot))
    return sorted(free[:n])


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout, in float32, returned in the dtype of x.

    x [..., d]; cos and sin [..., d/2], broadcast
    """
    low, high = x.float().chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


@dataclass(frozen=True)
class LayerCache:
    """Where a layer keeps the past of a batch; every tensor changes in place.

    slots      : [B, H, C, 2 (K, V), S, d]
    ring       : [B, H, window, d], the last post-RoPE keys, token t at t % window
    compressed : [B, H, N_c, d]
    host       : [B, H, N, 2, S, d] pinned, or None when nothing is offloaded
    """

    slots: Tensor
    ring: Tensor
    compressed: Tensor
    host: Tensor | None = None


def append(
    k: Tensor, v: Tensor, positions: Tensor, tail_slot: Tensor, cache: LayerCache, sparsity: Sparsity
) -> None:
    """Write one token to the tail slot and the ring, and the window and the block that it completes.

    k (post-RoPE) and v [B, H, d]; positions [B], the index of this token; tail_slot [B, H], -1 writes no slot
    """
    for b, t in enumerate(positions.tolist()):
        window = sparsity.window
        cache.ring[b, :, t % window] = k[b]
        first = t + 1 - window  # of the window that ends here
        if first >= 0 and first % sparsity.stride == 0:
            mean = blocks.compress_keys(cache.ring[b][None], sparsity)[0, :, 0]  # order does not matter
            cache.compressed[b, :, first // sparsity.stride] = mean
    store_token(v, positions, tail_slot, cache)


def store_token(v: Tensor, positions: Tensor, tail_slot: Tensor, cache: LayerCache) -> None:
    """Write one token, whose key is in the ring already, to the tail slot; to the host the block it fills.

    v [B, H, d]; positions [B], the index of this token; tail_slot [B, H], -1 writes nothing
    """
    window, size = cache.ring.shape[2], cache.slots.shape[4]
    for b, t in enumerate(positions.tolist()):
        for h, slot in enumerate(tail_slot[b].tolist()):
            if slot < 0:
                continue
            cache.slots[b, h, slot, 0, t % size] = cache.ring[b, h, t % window]
            cache.slots[b, h, slot, 1, t % size] = v[b, h]
            if t % size == size - 1 and cache.host is not None:
                cache.host[b, h, t // size] = cache.slots[b, h, slot]
