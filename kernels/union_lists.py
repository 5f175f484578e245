"""The blocks that a tile of neighbouring queries reads, merged from their lists: what sparse_prefill walks.

A program writes one bit per reader into a word per block, then lists the words that are not zero, in three
parts, because each part needs another mask:

    shared   blocks that all tokens of the tile read to the end: no mask. The dense band comes out by itself
    other    blocks that some tokens read: rows are masked
    edge     blocks that reach past the first token (its own, mostly): masked key by key
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

from torch import Tensor

from sparda.kernels import backend
from sparda.kernels.backend import tl, triton

MOST_TOKENS = 16  # tokens of a tile: an entry is block * 2**16 + one bit per token
BLOCKS_AT_ONCE = 1024  # blocks that one turn of the kernel looks at


@triton.jit
def _union_kernel(
    block_ids, positions, marks, entries, bounds, n_queries, n_tiles, n_all, n_blocks, budget, n_kv,
    TOKENS: tl.constexpr, LIST: tl.constexpr, S: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Mark every block of the tile with one bit per reader, then list the marked ones; tile after tile."""
    token = tl.arange(0, TOKENS)
    slot = tl.arange(0, LIST)
    n_marks = tl.cdiv(n_blocks, STEP) * STEP
    mine = marks + tl.program_id(0).to(tl.int64) * n_marks  # one word per block, all zero between tiles
    tile = tl.program_id(0)
    while tile < n_all:
        pair = tile // n_tiles  # (sequence, KV head)
        query = tile % n_tiles * TOKENS + token
        there = query < n_queries
        at = (pair.to(tl.int64) * n_queries + query)[:, None] * budget + slot[None, :]
        ids = tl.load(block_ids + at, mask=there[:, None] & (slot < budget)[None, :], other=-1)
        bit = tl.where(ids >= 0, (1 << token)[:, None], 0)
        tl.atomic_or(mine + ids, bit, mask=ids >= 0, sem="relaxed")
        place = (pair // n_kv).to(tl.int64) * n_queries + query
        first = tl.min(tl.load(positions + place, mask=there, other=2**31 - 1).to(tl.int32), 0)
        everyone = tl.sum(tl.where(there, 1 << token, 0), 0)
        tl.debug_barrier()
        capacity = TOKENS * budget
        target = entries + tile.to(tl.int64) * capacity
        shared, edge, other = _list_marks(mine, target, everyone, first, n_marks, capacity, S, STEP)
        tl.store(bounds + tile * 3, shared)
        tl.store(bounds + tile * 3 + 1, edge)
        tl.store(bounds + tile * 3 + 2, other)
        tl.debug_barrier()
        tile += tl.num_programs(0)


@triton.jit
def _list_marks(marks, target, everyone, first, n_marks, capacity, S: tl.constexpr, STEP: tl.constexpr):
    """Write shared blocks from the front, the rest from the back; return where the parts end and begin.

    Written from the back in ascending order, edges, which are the last blocks, lie before the others.
    """
    n_shared = tl.zeros([], tl.int32)
    n_rest = tl.zeros([], tl.int32)
    n_edge = tl.zeros([], tl.int32)
    for start in tl.range(0, n_marks, STEP):
        block = start + tl.arange(0, STEP)
        bits = tl.load(marks + block, cache_modifier=".cg")  # as the atomics left it, not from L1
        tl.store(marks + block, tl.zeros([STEP], tl.int32))
        inner = (block + 1) * S <= first + 1
        shared = (bits == everyone) & inner
        rest = (bits != 0) & ~shared
        rank = n_shared + tl.cumsum(shared.to(tl.int32), 0) - 1
        tl.store(target + rank, block * 65536 + bits, mask=shared)
        rank = capacity - n_rest - tl.cumsum(rest.to(tl.int32), 0)
        tl.store(target + rank, block * 65536 + bits, mask=rest)
        n_shared += tl.sum(shared.to(tl.int32), 0)
        n_rest += tl.sum(rest.to(tl.int32), 0)
        n_edge += tl.sum((rest & ~inner).to(tl.int32), 0)
    return n_shared, capacity - n_rest, capacity - n_rest + n_edge


def union_lists(
    block_ids: Tensor, positions: Tensor, tokens: int, n_blocks: int, size: int
) -> tuple[Tensor, Tensor]:
    """Merge the lists of each tile of ``tokens`` neighbouring queries.

    returns entries [B*H*tiles, tokens*k] int32, each block * 2**16 + the bits of the tokens that read it;
    bounds [B*H*tiles, 3] int32: shared blocks lie at 0 .. bounds[0], edges at bounds[1] .. bounds[2], the
    others from there to the end of the row
    """
    batch, n_kv, n_queries, budget = block_ids.shape
    n_tiles = -(-n_queries // tokens)
    n_all = batch * n_kv * n_tiles
    programs = min(n_all, 8 * backend.multiprocessors(block_ids.device))
    step = min(BLOCKS_AT_ONCE, backend.next_power_of_two(n_blocks))
    marks = block_ids.new_zeros(programs, -(-n_blocks // step) * step)
    entries = block_ids.new_empty(n_all, tokens * budget)
    bounds = block_ids.new_empty(n_all, 3)
    _union_kernel[(programs,)](
        block_ids, positions, marks, entries, bounds, n_queries, n_tiles, n_all, n_blocks, budget, n_kv,
        TOKENS=tokens, LIST=backend.next_power_of_two(budget), S=size, STEP=step, num_warps=4,
    )  # fmt: skip
    return entries, bounds
