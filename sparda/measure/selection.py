"""Selection on the present GPU: scores of blocks, top-k and slot difference, in decode and in prefill.

    python -m sparda.measure.selection [--context 131072] [--quick]

Shapes are MiniCPM4.1-8B's (32 query heads, 2 KV heads, d 128, k 96), random data. The floor of a row is the
time of reading the compressed keys once (decode) or of the products of a causal pass (prefill).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from sparda import blocks, cache, kernels, spec
from sparda.measure import bench

SHAPE, RULE = spec.model("minicpm4.1-8b"), spec.sparsity("minicpm4.1-8b")
HEADS, DIM, KIND = SHAPE.n_kv_heads, SHAPE.head_dim, torch.bfloat16
TOKENS = replace(RULE, window=1, stride=1)  # scores of single tokens
INDEX_DIM = 32  # channels of an index of every token: a quarter of d, as InfiniGen keeps
CHUNK = 4096  # queries that are scored at once in prefill
MISSES = 11  # of 96 slots: hit rate 0.89


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=KIND)


def decode_case(batch: int, context: int) -> list[bench.Row]:
    """Scores, top-k with difference, and both, for one layer of a decode step."""
    n_windows, n_blocks = blocks.count_windows(context, RULE), blocks.count_blocks(context, RULE)
    position = torch.full((batch, 1), context - 1, device="cuda")
    n_bytes = batch * HEADS * (n_windows * DIM * 2 + n_blocks * 4)
    sets = range(bench.rotations(n_bytes))
    keys = [randn(batch, HEADS, n_windows, DIM) for _ in sets]
    f, q = randn(batch, HEADS, 1, DIM), randn(batch, SHAPE.n_heads, 1, DIM)
    maps = cache.empty_maps(batch, HEADS, RULE.budget_blocks, n_blocks, "cuda")
    chosen = cache.Selection.empty(batch, HEADS, RULE.budget_blocks, RULE.budget_blocks, position.device)
    scores = [alternating_scores(batch, n_blocks, turn) for turn in range(2)]

    def score(turn):
        return kernels.score_blocks(f, keys[turn], position, RULE, n_blocks)

    def score_query(turn):
        return kernels.score_blocks_query(q, keys[turn], position, RULE, n_blocks)

    def choose(turn):
        return kernels.topk_difference(scores[turn % 2], position[:, 0], *maps, RULE, out=chosen)

    def both(turn):
        return score(turn), choose(turn)

    timed = {
        ("score_blocks", n_bytes): [partial(score, n) for n in sets],
        ("score_blocks_query", n_bytes): [partial(score_query, n) for n in sets],
        ("topk_difference", batch * HEADS * n_blocks * 8): [partial(choose, n) for n in range(2)],
        ("score_and_difference", n_bytes): [partial(both, n) for n in sets],
    }
    case = f"decode_b{batch}_{context // 1024}k"
    return [
        bench.row(name, case, "triton", bench.time_graph(calls), n_bytes=size)
        for (name, size), calls in timed.items()
    ]


def token_case(batch: int, context: int) -> bench.Row:
    """Decode scores from an index of every token, for one layer."""
    n_blocks = blocks.count_blocks(context, RULE)
    n_bytes = batch * HEADS * (context * INDEX_DIM * 2 + n_blocks * 4)
    position = torch.full((batch, 1), context - 1, device="cuda")
    keys = [randn(batch, HEADS, context, INDEX_DIM) for _ in range(bench.rotations(n_bytes))]
    query = randn(batch, HEADS, 1, INDEX_DIM)
    times = bench.time_graph(
        [partial(kernels.score_blocks, query, k, position, TOKENS, n_blocks) for k in keys]
    )
    return bench.row(
        "score_blocks", f"decode_tokens_b{batch}_{context // 1024}k", "triton", times, n_bytes=n_bytes
    )


def alternating_scores(batch: int, n_blocks: int, turn: int) -> Tensor:
    """[B, H, N] scores whose top-k misses MISSES blocks of the other turn's."""
    scores = torch.rand(batch, HEADS, n_blocks, device="cuda")
    first = RULE.init_blocks
    learned = RULE.budget_blocks - RULE.forced_blocks
    order = torch.randperm(n_blocks - RULE.forced_blocks, generator=torch.Generator().manual_seed(0)) + first
    scores[..., order[: learned - MISSES].cuda()] += 20
    other = order[learned + turn * MISSES : learned + (turn + 1) * MISSES]
    scores[..., other.cuda()] += 10
    return scores


def plain_query_scores(q: Tensor, keys: Tensor, positions: Tensor, n_blocks: int) -> Tensor:
    """The query selector written plainly in torch: tensor-core product, softmax, sum over the group, pool."""
    grouped = q.reshape(1, HEADS, -1, DIM)  # [1, H, G*T_q, d]
    logits = (grouped @ keys.transpose(-1, -2)).unflatten(2, (-1, q.shape[2]))  # [1, H, G, T_q, N_c] bf16
    hidden = ~blocks.visible_windows(positions, keys.shape[2], RULE)[:, None]  # [1, 1, T_q, N_c]
    logits.mul_(DIM**-0.5).masked_fill_(hidden[:, :, None], float("-inf"))
    weights = logits.softmax(-1, dtype=torch.float32).sum(2).masked_fill_(hidden, float("-inf"))
    return blocks.pool_to_blocks(weights, n_blocks, RULE)


class Prompt:
    """One sequence, scored chunk by chunk: each chunk scores the blocks up to its own end."""

    def __init__(self, context: int):
        self.keys = randn(1, HEADS, blocks.count_windows(context, RULE), DIM)
        self.parts = [(a, min(a + CHUNK, context)) for a in range(0, context, CHUNK)]
        self.forecasts = [randn(1, HEADS, b - a, DIM) for a, b in self.parts]
        self.queries = [randn(1, SHAPE.n_heads, b - a, DIM) for a, b in self.parts]
        self.positions = [torch.arange(a, b, device="cuda")[None] for a, b in self.parts]

    def score(self, scorer, rows: list[Tensor], top_k: bool) -> None:
        for row, place, (_, end) in zip(rows, self.positions, self.parts, strict=True):
            scores = scorer(row, self.keys, place, RULE, blocks.count_blocks(end, RULE))
            if top_k:
                kernels.select_topk(scores, place, RULE)

    def score_plainly(self, step: int = 256) -> None:
        """step queries at once: 0.3 GB of float32 a head group at 128K."""
        for row, place, (start, end) in zip(self.queries, self.positions, self.parts, strict=True):
            for a in range(0, end - start, step):
                last = start + a + step
                seen = self.keys[:, :, : blocks.count_windows(last, RULE)]
                cut = slice(a, a + step)
                plain_query_scores(row[:, :, cut], seen, place[:, cut], blocks.count_blocks(last, RULE))


def prefill_case(context: int) -> tuple[list[bench.Row], dict[str, int]]:
    """All queries of one sequence: both scorers, with and without top-k; the plain form; their peak bytes."""
    prompt = Prompt(context)
    forecast = partial(prompt.score, kernels.score_blocks, prompt.forecasts)
    query = partial(prompt.score, kernels.score_blocks_query, prompt.queries)
    runs = {
        ("score_blocks", "triton"): partial(forecast, False),
        ("score_blocks", "triton+topk"): partial(forecast, True),
        ("score_blocks_query", "triton"): partial(query, False),
        ("score_blocks_query", "triton+topk"): partial(query, True),
        ("score_blocks_query", "torch"): prompt.score_plainly,
    }
    pairs = context * prompt.keys.shape[2] // 2  # of a query and a window that it sees
    scores = context * blocks.count_blocks(context, RULE) // 2 * HEADS
    rows, peaks = [], {}
    for (name, backend), call in runs.items():
        heads, products = (HEADS, 1) if name == "score_blocks" else (SHAPE.n_heads, 2)  # two passes
        peaks[f"{name} {backend}"] = peak_extra_bytes(call)
        times = bench.time_graph([call], replays=7, warm_up=1)
        n_bytes = 2 * (context * DIM * heads + prompt.keys.numel()) + 4 * scores
        flops = 2 * products * pairs * DIM * heads
        case = f"prefill_{context // 1024}k"
        rows.append(bench.row(name, case, backend, times, n_bytes=n_bytes, flops=flops))
    return rows, peaks


def peak_extra_bytes(call) -> int:
    """Most GPU memory that a call holds beyond its inputs."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def small_cases(batch: int, context: int) -> list[bench.Row]:
    """Compression of a prompt, and one appended token."""
    keys = [randn(1, HEADS, context, DIM) for _ in range(4)]
    size = keys[0].numel() * 2
    times = bench.time_graph([partial(kernels.compress_keys, k, RULE) for k in keys])
    rows = [
        bench.row("compress_keys", f"prefill_{context // 1024}k", "triton", times, n_bytes=size * 17 // 16)
    ]
    layer = cache.LayerCache(
        randn(batch, HEADS, RULE.budget_blocks, 2, RULE.block_size, DIM),
        randn(batch, HEADS, RULE.window, DIM),
        randn(batch, HEADS, blocks.count_windows(context, RULE), DIM),
    )
    q, kvf = randn(batch, SHAPE.n_heads, DIM), randn(3, batch, HEADS, DIM)
    angle = torch.rand(context, DIM // 2, device="cuda")
    position = torch.full((batch,), context - 1, device="cuda")  # completes a window and fills a block
    tail = torch.zeros(batch, HEADS, dtype=torch.int32, device="cuda")
    turn = angle.cos(), angle.sin()
    append = partial(kernels.rope_append, q, *kvf, *turn, position, tail, layer, RULE)
    n_bytes = 2 * batch * DIM * (2 * SHAPE.n_heads + HEADS * (7 + RULE.window))
    rows.append(
        bench.row(
            "rope_append", f"decode_b{batch}", "triton", bench.time_graph([append] * 16), n_bytes=n_bytes
        )
    )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time the selection kernels on this GPU.")
    parser.add_argument("--context", type=int, default=131072, help="tokens")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--quick", action="store_true", help="decode only, batch 4; nothing is stored")
    wanted = parser.parse_args(arguments)
    bench.need_cuda()
    torch.manual_seed(0)
    if wanted.quick:
        return bench.show(decode_case(4, wanted.context))
    rows = [row for batch in wanted.batches for row in decode_case(batch, wanted.context)]
    rows += [token_case(batch, wanted.context) for batch in wanted.batches]
    rows += small_cases(4, wanted.context)
    prefill, peaks = prefill_case(wanted.context)
    rows += prefill
    about = bench.describe_run() | {"peak_extra_mib": {k: math.ceil(v / 2**20) for k, v in peaks.items()}}
    path = bench.save(rows, topic="selection", about=about)
    bench.show(rows)
    for name, size in about["peak_extra_mib"].items():
        print(f"peak extra memory, {name}: {size} MiB")
    print(f"written to {path.relative_to(path.parents[3])}")
    return None


if __name__ == "__main__":
    main()
