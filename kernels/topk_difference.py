"""One decode step's choice for a layer: top-k, what of it is resident, what must be copied, and the new maps.

Reference: ``blocks.select_blocks`` then ``cache.difference``. One program per (sequence, KV head) does all of
it on the GPU; only the compacted miss list leaves it, for ``gather_misses``. Whether a slot's block is still
wanted is looked up in the row of taken blocks, so that slots need no search. Misses of all heads
share one list: each program reserves its part with one atomic add, and the last to come publishes the count
and clears the counter for the next launch.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import torch
from torch import Tensor

from sparda import blocks
from sparda.cache import Policy, Selection, difference
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.kernels.select_topk import check_rows, last_key_soon, order_key, rule_constants, sortable, take
from sparda.spec import Sparsity


@triton.jit
def _free_slots(held, taken, slot, n_slots):
    """Slots whose block is not wanted."""
    kept = tl.gather(taken.to(tl.int32), tl.maximum(held, 0), 0)
    return (slot < n_slots) & ((held < 0) | (kept == 0))


@triton.jit
def _given_away(free, held, last_use, score, slot, own, wanted, POLICY: tl.constexpr):
    """Which free slots get another block, in ascending order, and the number of each: ``wanted`` of them.

    By policy: the empty ones, then the longest not wanted (1), or those of the lowest score (2); the lower
    slot first. Policy 0: the first ones.
    """
    if POLICY == 0:
        return free, tl.cumsum(free.to(tl.int32), 0) - 1
    if POLICY == 1:
        used = tl.load(last_use + slot, mask=free & (held >= 0), other=-1)
        newest = tl.max(used)
        oldest = tl.min(tl.where(free & (held >= 0), used, newest))
        worst = tl.where(held < 0, newest - oldest + 2, newest - used + 1).to(tl.uint32)
        shift = tl.full((), 0, tl.int32)
        while (newest - oldest + 2) >> shift > 3:  # two bits a turn: up to the highest pair that counts
            shift += 2
    else:
        worth = tl.gather(score, tl.maximum(held, 0), 0)
        worst = 0xFFFFFFFF ^ sortable(tl.where(held > own, float("-inf"), worth))
        worst = tl.where(held < 0, 0xFFFFFFFF, worst).to(tl.uint32)
        shift = tl.full((), 30, tl.int32)
    key = tl.where(free, worst, 0).to(tl.uint32)
    given, number = take(key, wanted, last_key_soon(key, wanted, shift))
    return given, number - 1


@triton.jit
def _reserve(ticket, count, n_misses):
    """Reserve places in the shared list; the last program writes the total. Returns the first place."""
    before = tl.atomic_add(ticket, n_misses.to(tl.int64) + (1 << 32), sem="relaxed")
    start = (before & 0xFFFFFFFF).to(tl.int32)
    last = (before >> 32) == tl.num_programs(0) - 1
    tl.store(count, start + n_misses, mask=last)
    tl.store(ticket, 0, mask=last)
    return start


@triton.jit
def _write_lists(block_ids, slot_ids, taken, number, block, at, wanted, K: tl.constexpr, KP: tl.constexpr):
    """Blocks and slots in ascending order of the block, then -1."""
    tl.store(block_ids + number - 1, block, mask=taken)
    tl.store(slot_ids + number - 1, at, mask=taken)
    column = tl.arange(0, KP)
    tl.store(block_ids + column, -1, mask=(column >= wanted) & (column < K))
    tl.store(slot_ids + column, -1, mask=(column >= wanted) & (column < K))


@triton.jit
def difference_kernel(
    scores, positions, slot_block, block_slot, block_ids, slot_ids, tail_slot, src, dst, count, ticket,
    scratch, last_use, n_blocks, n_slots, HEADS: tl.constexpr, S: tl.constexpr, INIT: tl.constexpr,
    LOCAL: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, NP: tl.constexpr, CP: tl.constexpr,
    POLICY: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(0)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    t = tl.load(positions + bh // HEADS).to(tl.int32)
    own = t // S
    scores += bh * n_blocks
    block_slot += bh * n_blocks
    slot_block += bh * n_slots
    scratch += bh * n_slots
    last_use += bh * n_slots
    block, slot = tl.arange(0, NP), tl.arange(0, CP)
    score = tl.load(scores + block, mask=block < n_blocks, other=float("-inf"))
    resident_at = tl.load(block_slot + block, mask=block < n_blocks, other=-1)  # [NP]
    held = tl.load(slot_block + slot, mask=slot < n_slots, other=-1)  # [CP]
    n_mine = (tl.load(block_slot + own) < 0).to(tl.int32)  # 1: the own block is new

    wanted = tl.minimum(K, own + 1)
    key = order_key(score, block, own, INIT, LOCAL)
    taken, number = take(key, wanted, last_key_soon(key, wanted, 30))

    # the n-th missing block takes the n-th free slot; the own block, last of all, goes first
    missing = taken & (resident_at < 0)
    so_far = tl.cumsum(missing.to(tl.int32), 0)
    turn = tl.where(block == own, 0, so_far - 1 + n_mine)
    n_missing = tl.max(so_far)
    free = _free_slots(held, taken, slot, n_slots)
    given, place = _given_away(free, held, last_use, score, slot, own, n_missing, POLICY)
    given = given & (place < n_missing)
    tl.store(scratch + place, slot, mask=given)
    tl.store(block_slot + held, -1, mask=given & (held >= 0))  # evicted
    if POLICY > 0:
        tl.store(last_use + slot, t, mask=(slot < n_slots) & (given | ~free))
    tl.debug_barrier()  # scratch is read by other threads than those that wrote it
    new_slot = tl.load(scratch + turn, mask=missing, other=-1)
    at = tl.where(missing, new_slot, resident_at)
    tl.store(slot_block + new_slot, block, mask=missing)
    tl.store(block_slot + block, new_slot, mask=missing)

    _write_lists(block_ids + bh * K, slot_ids + bh * K, taken, number, block, at, wanted, K, KP)
    tl.store(tail_slot + bh + block * 0, at, mask=block == own)

    start = _reserve(ticket, count, n_missing - n_mine)
    copied = missing & (block != own)
    tl.store(src + start + turn - n_mine, bh * n_blocks + block, mask=copied)
    tl.store(dst + start + turn - n_mine, bh * n_slots + new_slot, mask=copied)


def topk_difference(
    block_scores: Tensor, positions: Tensor, slot_block: Tensor, block_slot: Tensor, sparsity: Sparsity, *,
    out: Selection | None = None, policy: Policy = "recent",
) -> Selection:  # fmt: skip
    """Choose the blocks of one decode step and place them.

    block_scores [B, H, N] float32, positions [B]; slot_block [B, H, C] and block_slot [B, H, N] int32 change
    in place; C must be at least k. ``out`` is reused between steps (``Selection.empty``): it remembers when
    each slot was last wanted, and a CUDA graph holds its addresses. ``policy``: which unwanted blocks leave
    first where C > k, those longest not wanted or those of the lowest score now (``cache.difference``).
    """
    where = backend.choose(block_scores, positions, slot_block, block_slot)
    backend.expect("block_scores", block_scores, (None, None, None), torch.float32)
    batch, heads, n_blocks = block_scores.shape
    backend.expect("positions", positions, (batch,), (torch.int32, torch.int64))
    backend.expect("slot_block", slot_block, (batch, heads, None), torch.int32)
    backend.expect("block_slot", block_slot, (batch, heads, n_blocks), torch.int32)
    n_slots, budget = slot_block.shape[-1], sparsity.budget_blocks
    if n_slots < min(budget, n_blocks):
        raise ValueError(f"{n_slots} slots cannot hold {budget} blocks; use at least k slots or lower k")
    if batch * heads * max(n_blocks, n_slots) >= 2**31:
        raise ValueError(
            "B * H * N passes 2**31 runs, more than the int32 miss list can name; lower the batch"
        )
    if policy not in POLICIES[1:]:
        raise ValueError(f'policy must be "recent" or "score", got {policy!r}')
    check_rows(block_scores, positions, sparsity)
    _check_maps(slot_block, block_slot)
    if out is None:
        out = Selection.empty(batch, heads, budget, n_slots, block_scores.device)
    _check_out(out, batch, heads, budget, n_slots)
    backend.choose(block_scores, *vars(out).values())
    if where == "torch":
        ids = blocks.select_blocks(block_scores[:, :, None], positions[:, None].long(), sparsity)[:, :, 0]
        maps = slot_block, block_slot, sparsity.block_size, out
        return difference(ids, positions, *maps, policy=policy, scores=block_scores)
    chained = backend.can_chain(block_scores.device)
    difference_kernel[(batch * heads,)](
        block_scores, positions, slot_block, block_slot, out.block_ids, out.slot_ids, out.tail_slot, out.src,
        out.dst, out.count, out.ticket, out.scratch, out.last_use, n_blocks, n_slots, HEADS=heads,
        **rule_constants(sparsity), NP=backend.next_power_of_two(n_blocks),
        CP=backend.next_power_of_two(n_slots), POLICY=POLICIES.index(policy) if n_slots > budget else 0,
        CHAINED=chained, num_warps=WARPS, **backend.launch_early(chained),
    )  # fmt: skip
    return out


POLICIES = (None, "recent", "score")
WARPS = 8  # fastest on an H200 at 2,048 blocks


def _check_out(out: Selection, batch: int, heads: int, budget: int, n_slots: int) -> None:
    most = batch * heads * budget
    shapes = {
        "block_ids": (batch, heads, budget), "slot_ids": (batch, heads, budget), "tail_slot": (batch, heads),
        "src": (most,), "dst": (most,), "count": (1,), "scratch": (batch, heads, n_slots),
        "last_use": (batch, heads, n_slots),
    }  # fmt: skip
    for name, shape in shapes.items():
        backend.expect(f"out.{name}", getattr(out, name), shape, torch.int32)
    backend.expect("out.ticket", out.ticket, (1,), torch.int64)


def _check_maps(slot_block: Tensor, block_slot: Tensor) -> None:
    """Maps must be each other's inverse: checked on the CPU, and on a GPU with SPARDA_CHECK=1."""
    if not backend.check_values(slot_block):
        return
    n_blocks = block_slot.shape[-1]
    if not -1 <= int(slot_block.min()) <= int(slot_block.max()) < n_blocks:
        raise ValueError(
            f"slot_block names blocks {int(slot_block.min())} to {int(slot_block.max())}, but may only name "
            f"0 to {n_blocks - 1}, or -1 for empty"
        )
    slots = torch.arange(slot_block.shape[-1], device=slot_block.device).expand_as(slot_block)
    back = block_slot.gather(-1, slot_block.clamp(min=0).long())
    n_held = (slot_block >= 0).sum()
    if ((slot_block >= 0) & (back != slots)).any() or (block_slot >= 0).sum() != n_held:
        raise ValueError("slot_block and block_slot disagree; start both from cache.empty_maps")
