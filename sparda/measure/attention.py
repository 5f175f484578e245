"""Attention on the present GPU: a decode step over slots, a whole prompt over block lists, and dense.

    python -m sparda.measure.attention [--context 131072] [--quick]
    python -m sparda.measure.attention --overlap    lists of SmolLM2's neighbouring tokens, on the CPU

Shapes are MiniCPM4.1-8B's (32 query heads, 2 KV heads, d 128, k 96), random data. The floor of a decode row
is the bytes of the selected slots at the copy rate; "slots_read", timed beside it, is a plain kernel that
only reads them. The floor of a prefill row is the arithmetic of the pairs in it.

How much a tile of tokens can share depends on how alike the lists of neighbours are. Two kinds are timed:
"alike" draws block scores that share a part ALIKE of their variance with the neighbours', chosen so that the
union of 4 lists holds about as many learned blocks as in SmolLM2 (``--overlap`` counts them); "random" lists
are independent, the worst case. The sidecar keeps the union of both.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor

from sparda import blocks, kernels, spec
from sparda.kernels import backend
from sparda.kernels.backend import tl, triton
from sparda.kernels.dense import dense
from sparda.measure import bench
from sparda.spec import Sparsity

SHAPE, RULE = spec.model("minicpm4.1-8b"), spec.sparsity("minicpm4.1-8b")
HEADS, GROUP, DIM = SHAPE.n_kv_heads, SHAPE.n_heads // SHAPE.n_kv_heads, SHAPE.head_dim
KIND = torch.bfloat16
BATCHES = (1, 4, 8, 16, 32, 64)
CALLS = 32  # decode calls in a graph, so that launching the graph itself does not count
ALIKE = 0.88  # part of the variance of a block's score that neighbouring tokens share
SPAN = 64  # tokens over which the shared part changes completely


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=KIND)


@triton.jit
def read_kernel(slots, slot_ids, out, n_slots, budget, share, WORDS: tl.constexpr):
    """Read the selected slots once, in words of 4 bytes, and leave something that depends on all of them."""
    split = tl.program_id(0)
    pair = tl.program_id(1)
    word = tl.arange(0, WORDS)
    seen = tl.zeros([WORDS], tl.int32)
    for i in tl.range(split * share, tl.minimum(budget, split * share + share), loop_unroll_factor=2):
        slot = tl.load(slot_ids + pair * budget + i)
        seen ^= tl.load(slots + (pair.to(tl.int64) * n_slots + slot) * WORDS + word)
    tl.store(out + pair * tl.num_programs(0) + split, tl.xor_sum(seen, 0))


def read_times(sets: list[Tensor], slot_ids: Tensor) -> bench.Times:
    """Time of reading the selected slots once, by the best of a few grids: what sparse_decode is held to."""
    batch, n_kv, n_slots = sets[0].shape[:3]
    budget, pairs = slot_ids.shape[2], batch * n_kv
    words = [slots.view(torch.int32) for slots in sets]
    out = torch.empty(pairs * budget, dtype=torch.int32, device="cuda")

    def read(slots, n_splits, warps):
        share = -(-budget // n_splits)
        grid = (-(-budget // share), pairs)
        size = slots[0, 0, 0].numel()
        read_kernel[grid](slots, slot_ids, out, n_slots, budget, share, WORDS=size, num_warps=warps)

    tried = []
    for per_sm, warps in ((1, 16), (2, 8), (2, 16), (4, 8), (8, 8)):
        n_splits = max(1, min(budget, per_sm * backend.multiprocessors(slot_ids.device) // pairs))
        calls = [partial(read, slots, n_splits, warps) for slots in words]
        tried.append(bench.time_graph(calls * max(1, CALLS // len(calls))))
    return min(tried, key=lambda times: times.median_us)


def decode_case(batch: int, context: int, **options) -> list[bench.Row]:
    """One layer of a decode step: every sequence reads its k selected slots; and reading them without more.

    Each call has its own slots, so that they come from memory; queries and lists are those of one step, in
    the L2 cache, where the kernels before this one have just written them.
    """
    k, size = RULE.budget_blocks, RULE.block_size
    n_bytes = batch * HEADS * k * 2 * size * DIM * KIND.itemsize
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    scores = torch.rand(batch, HEADS, 1, context // size, device="cuda")
    ids = blocks.select_blocks(scores, lengths[:, None].long() - 1, RULE)[:, :, 0].int().contiguous()
    slot_ids = torch.rand(ids.shape, device="cuda").argsort(-1).int()
    q = randn(batch, SHAPE.n_heads, DIM)
    sets = [randn(batch, HEADS, k, 2, size, DIM) for _ in range(bench.rotations(n_bytes))]
    calls = [partial(kernels.sparse_decode, q, slots, slot_ids, ids, lengths, **options) for slots in sets]
    times = bench.time_graph(calls * max(1, CALLS // len(calls)))
    case = f"decode_b{batch}_{context // 1024}k"
    flops = batch * SHAPE.n_heads * k * size * 4 * DIM
    return [
        bench.row("sparse_decode", case, "triton", times, n_bytes=n_bytes, flops=flops),
        bench.row("slots_read", case, "triton", read_times(sets, slot_ids), n_bytes=n_bytes),
    ]


def block_lists(context: int, alike: float, step: int = 4096) -> Tensor:
    """Lists of every token of a prompt, [1, H, T, k] int32, chosen by the rule from random block scores.

    alike: part of the variance that neighbours share (0: independent); it drifts over SPAN tokens.
    """
    n_blocks = blocks.count_blocks(context, RULE)
    anchors = torch.randn(1, HEADS, context // SPAN + 2, n_blocks, device="cuda")
    lists = []
    for start in range(0, context, step):
        token = torch.arange(start, min(start + step, context), device="cuda")
        turn = (token % SPAN / SPAN * torch.pi / 2)[:, None]  # from one anchor to the next at equal variance
        shared = anchors[:, :, token // SPAN] * turn.cos() + anchors[:, :, token // SPAN + 1] * turn.sin()
        scores = alike**0.5 * shared + (1 - alike) ** 0.5 * torch.randn_like(shared)
        lists.append(blocks.select_blocks(scores, token[None], RULE).int())
    return torch.cat(lists, 2)


def union_ratio(block_ids: Tensor, positions: Tensor, tokens: int, rule: Sparsity) -> float:
    """Distinct learned blocks in the lists of neighbouring tokens, over the learned blocks of one.

    block_ids [B, H, T, k], -1 padded; positions [B, T]; tiles of ``tokens`` neighbours

    >>> ids = torch.tensor([[[[0, 2, 9], [0, 3, 9], [0, 2, 9], [0, 2, 9]]]])
    >>> rule = Sparsity(3, block_size=16, local_blocks=0)
    >>> union_ratio(ids, torch.full((1, 4), 144), 2, rule)
    1.5
    """
    own = (positions // rule.block_size)[:, None, :, None]
    learned = (block_ids >= rule.init_blocks) & (block_ids < own - rule.local_blocks)
    n_tiles = block_ids.shape[2] // tokens
    tiles = block_ids.masked_fill(~learned, -1)[:, :, : n_tiles * tokens].unflatten(2, (n_tiles, tokens))
    union = blocks.block_mask(tiles.flatten(3).long(), int(block_ids.max()) + 1)
    return (union.sum() * tokens / (tiles >= 0).sum()).item()


def prefill_case(context: int, alike: float) -> tuple[bench.Row, float]:
    """A whole prompt over block lists; also the union of 4 neighbours' learned blocks over one list."""
    q, k, v = randn(1, SHAPE.n_heads, context, DIM), *(randn(1, HEADS, context, DIM) for _ in range(2))
    positions = torch.arange(context, device="cuda")[None]
    lists = block_lists(context, alike)
    out = torch.empty_like(q)
    call = partial(kernels.sparse_prefill, q, k, v, lists, positions, block_size=RULE.block_size, out=out)
    times = bench.time_graph([call], replays=9, warm_up=1)
    own = positions // RULE.block_size + 1
    keys = (own.clamp(max=RULE.budget_blocks) - 1) * RULE.block_size + positions % RULE.block_size + 1
    n_bytes = sum(t.nbytes for t in (q, k, v, out, lists))
    case = f"prefill_{context // 1024}k_{'alike' if alike else 'random'}"
    flops = int(keys.sum()) * SHAPE.n_heads * 4 * DIM
    row = bench.row("sparse_prefill", case, "triton", times, n_bytes=n_bytes, flops=flops)
    return row, union_ratio(lists, positions, 4, RULE)


def dense_case(context: int) -> list[bench.Row]:
    """The same prompt, every token, by torch's kernels."""
    q, k, v = randn(1, SHAPE.n_heads, context, DIM), *(randn(1, HEADS, context, DIM) for _ in range(2))
    n_bytes = 2 * q.nbytes + k.nbytes + v.nbytes
    flops = context * (context + 1) // 2 * SHAPE.n_heads * 4 * DIM
    return [
        bench.row(
            "dense", f"prefill_{context // 1024}k", name,
            bench.time_graph([partial(dense, q, k, v, through=name)], replays=7, warm_up=1),
            n_bytes=n_bytes, flops=flops,
        )
        for name in ("flash", "cudnn")
    ]  # fmt: skip


def measure_overlap() -> None:
    """Print how alike the lists of neighbouring tokens are in a real model (needs the models extra)."""
    import sparda
    from sparda.models.probe import Probe
    from sparda.text import read_text

    model, tokenizer = sparda.load("smollm2-135m")
    ids = torch.tensor([tokenizer(read_text("king_james")[200_000:216_000]).input_ids[:2560]])
    rule, probe = Sparsity(16, block_size=16, local_blocks=8), Probe(queries=256)
    with torch.no_grad(), sparda.attach(model, selector="query", sparsity=rule, probe=probe):
        model(ids)
    for tokens in (2, 4, 8):
        ratios = [union_ratio(r.block_ids, r.positions, tokens, rule) for r in probe.records]
        print(f"{tokens} neighbours: {sum(ratios) / len(ratios):.2f} times the learned blocks of one")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time the attention kernels on this GPU.")
    parser.add_argument("--context", type=int, default=131072, help="tokens")
    parser.add_argument("--quick", action="store_true", help="decode only, batch 8; nothing is stored")
    parser.add_argument("--overlap", action="store_true", help="only count shared blocks, on the CPU")
    wanted = parser.parse_args(arguments)
    if wanted.overlap:
        return measure_overlap()
    bench.need_cuda()
    torch.manual_seed(0)
    if wanted.quick:
        return bench.show(decode_case(8, wanted.context))
    rows = [row for batch in BATCHES for row in decode_case(batch, wanted.context)]
    dense_rows = dense_case(wanted.context)
    ratios = {}
    for alike in (ALIKE, 0.0):
        row, ratios[row.case] = prefill_case(wanted.context, alike)
        rows.append(row)
    path = bench.save(
        rows + dense_rows, topic="attention", about=bench.describe_run() | {"union_of_4": ratios}
    )
    bench.show(rows + dense_rows)
    for row, read in zip(rows[:-2:2], rows[1:-2:2], strict=True):
        print(f"{row.case}: {row.median_us / read.median_us:.2f} times as long as reading its slots")
    for row in rows[-2:]:
        for other in dense_rows:
            print(f"{row.case}: {other.median_us / row.median_us:.2f} times as fast as dense {other.backend}")
        print(f"{row.case}: 4 neighbours read {ratios[row.case]:.2f} times the learned blocks of one")
    print(f"written to {path.relative_to(path.parents[3])}")
    return None


if __name__ == "__main__":
    main()
