"""Attention of one new token over its selected slots, split over many programs (flash decoding).

The slots of a layer are [B, H, C, 2 (K, V), S, d]: the keys and values of a block lie side by side. A program
takes a share of the selected slots of one (sequence, KV head), serves the G query heads of the group from one
read of each, and leaves a partial result with its log-sum-exp; a second, tiny kernel merges them. Reading
the slots once is the floor, so what counts is to have enough loads in flight on every SM.

Reference: ``sparda.attention.block_attention`` on the blocks put back at their positions.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparda.attention import block_attention
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton

LOG2_E = 1.4426950408889634
LONG_SHARE = 12  # slots: enough to hide the start of a program
SHARED_BYTES = 200 * 2**10  # of a Hopper SM's 227 KiB, for the blocks in flight


@triton.jit
def _read_slot(
    query, base, real, top, sums, acc, scale, S: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr
):
    """One turn of online softmax: the heads of the group meet one slot."""
    at = tl.arange(0, S)[:, None] * D + tl.arange(0, D)[None, :]
    # rows after the last token were never written: zeros, because 0 * NaN is NaN
    keys = tl.load(base + at, mask=real[:, None], other=0.0)
    values = tl.load(base + S * D + at, mask=real[:, None], other=0.0)
    logits = tl.dot(query, tl.trans(keys), input_precision=PRECISION)
    logits = tl.where(real[None, :], logits, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, 1) * scale)
    weight = tl.exp2(logits * scale - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    sums = sums * shrink[:, None] + weight
    acc = tl.dot(weight.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
    return new_top, sums, acc


@triton.jit
def _split_kernel(
    q, slots, slot_ids, block_ids, lengths, partial, lse, scale, n_slots, budget, share, n_kv,
    G: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One program: ``share`` selected slots, one after the other, of one (sequence, KV head)."""
    split = tl.program_id(0)
    pair = tl.program_id(1)
    head = tl.arange(0, ROWS)  # padded: a matrix unit takes 16 rows
    lane = tl.arange(0, D)
    rows = pair.to(tl.int64) * G + head  # rows of q and of the output
    if CHAINED:
        tl.extra.cuda.gdc_wait()  # what the kernel before this one wrote is now there to be read
        tl.extra.cuda.gdc_launch_dependents()
    length = tl.load(lengths + pair // n_kv).to(tl.int32)
    query = tl.load(q + rows[:, None] * D + lane[None, :], mask=head[:, None] < G, other=0.0)
    top = tl.full([ROWS], -1e30, tl.float32)  # finite: a row without keys must not give inf - inf
    sums = tl.zeros([ROWS, S], tl.float32)  # added up once, at the end: one barrier less a slot
    acc = tl.zeros([ROWS, D], tl.float32)
    # the bounds do not depend on the length, so that the first loads need not wait for it
    for i in tl.range(split * share, tl.minimum(budget, split * share + share)):
        slot = tl.load(slot_ids + pair * budget + i)
        block = tl.load(block_ids + pair * budget + i)
        real = (block * S + tl.arange(0, S) < length) & (slot >= 0) & (block >= 0)
        base = slots + (pair.to(tl.int64) * n_slots + slot) * (2 * S * D)
        top, sums, acc = _read_slot(query, base, real, top, sums, acc, scale, S, D, PRECISION)
    total = tl.sum(sums, 1)
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    place = (pair.to(tl.int64) * tl.num_programs(0) + split) * G + head
    tl.store(lse + place, tl.where(seen, top + tl.log2(total), float("-inf")), mask=head < G)
    tl.store(partial + place[:, None] * D + lane[None, :], acc / total[:, None], mask=head[:, None] < G)


@triton.jit
def _merge_kernel(
    partial, lse, out, n_splits, G: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr
):
    """One program: the partial results of one query head."""
    pair = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    lane = tl.arange(0, D)
    place = (pair * n_splits + split) * G + head
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.load(lse + place, mask=split < n_splits, other=float("-inf"))
    values = tl.load(partial + place[:, None] * D + lane[None, :], mask=split[:, None] < n_splits, other=0.0)
    top = tl.max(part, 0)
    weight = tl.exp2(part - tl.where(top > float("-inf"), top, 0.0))
    total = tl.sum(weight, 0)
    result = tl.sum(values * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + (pair * G + head) * D + lane, result.to(out.dtype.element_ty))


@dataclass(frozen=True)
class DecodeTiles:
    """Launch shape of ``sparse_decode``; the defaults were measured on an H200."""

    n_splits: int | None = None  # None: see choose_tiles
    num_warps: int = 4
    num_stages: int | None = None
    chained: bool = True  # programmatic dependent launch, where the GPU has it


def sparse_decode(
    q: Tensor, slots: Tensor, slot_ids: Tensor, block_ids: Tensor, lengths: Tensor,
    scale: float | None = None, *, out: Tensor | None = None, tiles: DecodeTiles = DecodeTiles(),
) -> Tensor:  # fmt: skip
    """Exact softmax attention of each sequence's last token over the tokens of its selected blocks.

    q         : [B, H_q, d]          after RoPE, bf16, fp16 or fp32
    slots     : [B, H, C, 2, S, d]   resident blocks, keys then values, same dtype
    slot_ids  : [B, H, k] int32      slot of each selected block, -1 for none
    block_ids : [B, H, k] int32      its block, ascending, min(k, ceil(length / S)) of them, then -1
    lengths   : [B] int              tokens of each sequence, the new one included; 0 gives zeros
    scale     : replaces 1 / sqrt(d)
    returns   : [B, H_q, d] like q

    ValueError, TypeError: shapes, dtypes, layout or ids that do not fit; ids are read on the CPU, and on a
    GPU with SPARDA_CHECK=1.
    """
    where = backend.choose(q, slots, slot_ids, block_ids, lengths, out)
    _check(q, slots, slot_ids, block_ids, lengths)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty_like(q) if out is None else out
    backend.expect("out", out, tuple(q.shape), q.dtype)
    if not len(q):
        return out
    if where == "torch":
        return out.copy_(_reference(q, slots, slot_ids, block_ids, lengths, scale))
    return _launch(q, slots, slot_ids, block_ids, lengths, scale, out, tiles)


def _launch(q, slots, slot_ids, block_ids, lengths, scale, out, tiles: DecodeTiles) -> Tensor:
    batch, n_kv, n_slots, _, size, dim = slots.shape
    group, pairs, budget = q.shape[1] // n_kv, batch * n_kv, slot_ids.shape[2]
    backend.expect_power_of_two(block_size=size, d=dim)
    chosen = choose_tiles(pairs, budget, backend.multiprocessors(q.device))
    share = -(-budget // (tiles.n_splits or chosen[0]))
    n_splits = -(-budget // share)
    partial = q.new_empty(pairs, n_splits, group, dim, dtype=torch.float32)
    lse = q.new_empty(pairs, n_splits, group, dtype=torch.float32)
    precision = "ieee" if q.dtype is torch.float32 else "tf32"
    chained = tiles.chained and backend.can_chain(q.device)
    early = backend.launch_early(chained)
    _split_kernel[(n_splits, pairs)](
        q, slots, slot_ids, block_ids, lengths, partial, lse, scale * LOG2_E, n_slots, budget, share, n_kv,
        G=group, ROWS=max(16, backend.next_power_of_two(group)), S=size, D=dim, PRECISION=precision,
        CHAINED=chained, num_warps=tiles.num_warps,
        num_stages=fit_stages(tiles.num_stages or chosen[1], slots[0, 0, 0].nbytes), **early,
    )  # fmt: skip
    _merge_kernel[(pairs, group)](
        partial, lse, out, n_splits, G=group, D=dim, SPLITS=backend.next_power_of_two(n_splits),
        CHAINED=chained, num_warps=1, **early,
    )  # fmt: skip
    return out


def fit_stages(stages: int, block_bytes: int) -> int:
    """Pipeline stages whose blocks (K and V) fit in shared memory: fewer for large float32 blocks.

    >>> fit_stages(4, 2 * 64 * 128 * 2), fit_stages(4, 2 * 128 * 128 * 4)
    (4, 1)
    """
    return max(1, min(stages, SHARED_BYTES // block_bytes))


def choose_tiles(pairs: int, budget: int, n_sms: int) -> tuple[int, int]:
    """Programs per (sequence, KV head), and stages of the pipeline of each (slots in flight, plus one).

    Two programs on every SM, in equal shares, if each then has LONG_SHARE slots to stream; else one with a
    deeper pipeline, if that one has; else two again, each with two slots or more.

    >>> [choose_tiles(2 * batch, 96, 132) for batch in (1, 4, 8, 64)]
    [(48, 3), (32, 3), (8, 4), (2, 3)]
    """
    most = {per_sm: max(1, min(budget // 2, per_sm * n_sms // pairs)) for per_sm in (2, 1)}
    alone = budget < LONG_SHARE * most[2] and budget >= LONG_SHARE * most[1]
    return -(-budget // -(-budget // most[1 if alone else 2])), 4 if alone else 3


def _reference(q, slots, slot_ids, block_ids, lengths, scale) -> Tensor:
    """Put the selected blocks back at their positions, then attend as the rule says."""
    batch, n_kv, _, _, size, dim = slots.shape
    used = (slot_ids >= 0) & (block_ids >= 0)
    sequence, head, _ = used.nonzero(as_tuple=True)
    block, slot = block_ids[used].long(), slot_ids[used].long()
    n_blocks = max(1, -(-int(lengths.max()) // size))
    store = slots.new_zeros(2, batch, n_kv, n_blocks, size, dim)
    store[:, sequence, head, block] = slots[sequence, head, slot].transpose(0, 1)
    ids = block_ids.masked_fill(~used, -1)[:, :, None]  # [B, H, 1, k]
    written = torch.arange(n_blocks * size, device=q.device) < lengths[:, None]  # [B, N*S]
    # rows of the tail that no token wrote may hold anything, and 0 * NaN is NaN
    keys, values = store.flatten(3, 4).where(written[:, None, :, None], 0.0)  # [B, H, N*S, d] each
    position = lengths[:, None].long() - 1
    attended = block_attention(
        q[:, :, None], keys, values, ids.long(), position, block_size=size, scale=scale
    )
    return attended[:, :, 0].masked_fill(lengths[:, None, None] < 1, 0.0)


def _check(q, slots, slot_ids, block_ids, lengths) -> None:
    if slots.dim() != 6 or slots.shape[3] != 2:
        raise ValueError(f"slots must be [B, H, C, 2 (K, V), S, d], got {list(slots.shape)}")
    batch, n_kv, n_slots, _, size, dim = slots.shape
    backend.expect("q", q, (batch, None, dim), backend.FLOATS)
    backend.expect("slots", slots, tuple(slots.shape), q.dtype)
    backend.expect("slot_ids", slot_ids, (batch, n_kv, None), torch.int32)
    backend.expect("block_ids", block_ids, tuple(slot_ids.shape), torch.int32)
    backend.expect("lengths", lengths, (batch,), (torch.int32, torch.int64))
    if q.shape[1] % n_kv:
        raise ValueError(f"{q.shape[1]} query heads cannot be grouped over {n_kv} KV heads")
    if not backend.check_values(q):
        return
    if slot_ids.numel() and not -1 <= int(slot_ids.min()) <= int(slot_ids.max()) < n_slots:
        raise ValueError(
            f"slots {int(slot_ids.min())}..{int(slot_ids.max())} are out of range: the cache holds {n_slots} "
            "slots per head, and an empty place is -1"
        )
    if lengths.numel() and int(lengths.min()) < 0:
        raise ValueError(f"lengths must not be negative, got {int(lengths.min())}")
    behind = block_ids.amax(dim=(1, 2)).long() * size >= lengths.clamp(min=1) if block_ids.numel() else None
    if behind is not None and bool(behind.any()):
        sequence = int(behind.nonzero()[0])
        raise ValueError(
            f"sequence {sequence} lists block {int(block_ids[sequence].max())}, which starts after its "
            f"{int(lengths[sequence])} tokens; pass lengths that include the new token"
        )
