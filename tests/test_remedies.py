"""What an error message tells to do is done here, word by word, and then it works.

Each case: a call that fails, what it says, and the calls that its sentence leads to.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sparda import attention, kernels, spec
from sparda.cache import LayerCache, empty_maps
from sparda.forecast import Forecast, Shape
from sparda.kernels import host_memory
from sparda.kernels.dense import dense
from sparda.kernels.gather_misses import segment_words
from sparda.kernels.resident_worker import ResidentWorker
from sparda.kernels.stamp import stamp
from sparda.plan import HostPool, Plan
from sparda.spec import Sparsity, check_sparsity

RULE = Sparsity(4, local_blocks=1, block_size=16)


def ids(*values, shape):
    return torch.tensor(values, dtype=torch.int32).reshape(shape)


def at(position):
    return torch.tensor([position], dtype=torch.int32)


def plan(**changes):
    return Plan(**{"batch": 1, "max_tokens": 160, "n_layers": 2, "n_kv_heads": 1, "head_dim": 16} | changes)


def taken(pool_tokens, tokens, **changes):
    """A layer's store out of a pool that was made for another context."""
    pool = HostPool(plan(sparsity=RULE, max_tokens=pool_tokens))
    return pool.take(1, plan(sparsity=RULE, max_tokens=tokens, **changes))


LAYER = Forecast.untrained(n_layers=3, hidden=24, n_kv_heads=2, head_dim=8)
RULES = {
    "forced": (
        lambda: Sparsity(8, local_blocks=7),
        "raise budget_blocks to 9 or lower local_blocks",
        [lambda: Sparsity(9, local_blocks=7), lambda: Sparsity(8, local_blocks=6)],
    ),
    "stride": (
        lambda: Sparsity(8, block_size=40, local_blocks=1),
        "with stride 16 use a block size of 16, 32, 64 or 128",
        [lambda s=s: Sparsity(8, block_size=s, local_blocks=1, stride=16) for s in (16, 32, 64, 128)],
    ),
    "visibility": (
        lambda: Sparsity(8, local_blocks=1, visibility="middle"),  # type: ignore[arg-type]
        "visibility is 'end' or 'start'",
        [lambda v=v: Sparsity(8, local_blocks=1, visibility=v) for v in ("end", "start")],
    ),
    "no sparsity": (
        lambda: check_sparsity(8),
        r"such as Sparsity\(budget_blocks=8\)",
        [lambda: check_sparsity(Sparsity(budget_blocks=40))],
    ),
    "grouping": (
        lambda: replace(spec.model("smollm2-135m"), n_heads=10),
        "the first must be a multiple of the second",
        [lambda: replace(spec.model("smollm2-135m"), n_heads=12)],
    ),
    "preset": (
        lambda: spec.model("smollm3"),
        "choose one of llama-3-70b, minicpm4.1-8b, smollm2-135m",
        [lambda n=n: spec.model(n) for n in ("llama-3-70b", "minicpm4.1-8b", "smollm2-135m")],
    ),
    "slots": (
        lambda: plan(sparsity=RULE, slots=3),
        "use 'k' or more slots, or lower budget_blocks",
        [
            lambda: plan(sparsity=RULE, slots="k"),
            lambda: plan(sparsity=RULE, slots=4),
            lambda: plan(sparsity=replace(RULE, budget_blocks=3), slots=3),
        ],
    ),
    "cache": (
        lambda: plan(sparsity=RULE, slots="all"),
        "cache is 'full', 'k' or a number of slots",
        [lambda s=s: plan(sparsity=RULE, slots=s) for s in ("full", "k", 9)],
    ),
    "pool": (
        lambda: taken(160, 320),
        "make it for the largest batch and context",
        [lambda: taken(320, 320), lambda: taken(320, 160)],
    ),
    "memory": (
        lambda: HostPool(plan(sparsity=RULE, batch=2**20, max_tokens=2**20)),
        "ower the batch or the context",
        [
            lambda: HostPool(plan(sparsity=RULE, batch=2)),
            lambda: HostPool(plan(sparsity=RULE, max_tokens=320)),
        ],
    ),
    "forecast of another model": (
        lambda: LAYER.check(Shape(4, 24, 2, 8)),
        "take the file that was made for this model",
        [
            lambda: Forecast.untrained(n_layers=4, hidden=24, n_kv_heads=2, head_dim=8).check(
                Shape(4, 24, 2, 8)
            )
        ],
    ),
}


def scores(positions, n_blocks=4, kind=torch.float32):
    rows = torch.zeros(1, 1, 1, 16, dtype=kind)
    return kernels.score_blocks(rows, torch.zeros(1, 1, 9, 16), positions.long(), RULE, n_blocks)


def chosen(positions, n_blocks=4, fill=0.0):
    return kernels.select_topk(torch.full((1, 1, 1, n_blocks), fill), positions.long(), RULE)


def gathered(host=None, count=1, dst=(0, 1), **options):
    host = torch.zeros(1, 1, 4, 2, 16, 16) if host is None else host
    src, dst = ids(0, 1, shape=(2,)), ids(*dst, shape=(2,))
    return kernels.gather_misses(
        host, torch.zeros(1, 1, 2, 2, 16, 16), src, dst, ids(count, shape=(1,)), **options
    )


def job(dim=16):
    store = torch.zeros(1, 1, 2, 2, 16, dim)
    return store, store.clone(), ids(0, shape=(1,)), ids(0, shape=(1,)), ids(0, shape=(1,))


def appended(position=0, rows=64, host_blocks=4, n_windows=9, tail=0):
    cache = LayerCache(
        torch.zeros(1, 1, 3, 2, 16, 16), torch.zeros(1, 1, 32, 16), torch.zeros(1, 1, n_windows, 16),
        torch.zeros(1, 1, host_blocks, 2, 16, 16),
    )  # fmt: skip
    token, angles = torch.zeros(1, 1, 16), torch.ones(rows, 8)
    return kernels.rope_append(
        token, token, token, None, angles, angles, at(position), ids(tail, shape=(1, 1)), cache, RULE
    )


def placed(n_slots=4, rule=RULE, policy="recent", maps=None):
    maps = maps or empty_maps(1, 1, n_slots, 8)
    return kernels.topk_difference(torch.zeros(1, 1, 8), at(120), *maps, rule, policy=policy)


def decoded(length):
    q, slots = torch.zeros(1, 1, 16), torch.zeros(1, 1, 2, 2, 16, 16)
    return kernels.sparse_decode(q, slots, ids(0, 1, shape=(1, 1, 2)), ids(0, 1, shape=(1, 1, 2)), at(length))


def prefilled(n_tokens, size, block):
    q, k = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, n_tokens, 16)
    listed = ids(block, shape=(1, 1, 1, 1))
    return kernels.sparse_prefill(q, k, k, listed, torch.tensor([[n_tokens - 1]]), block_size=size)


def replayed(blocks, learned):
    rank = torch.arange(blocks, dtype=torch.int32)[None, None]
    return kernels.replay_scores(
        torch.zeros(1, 1, blocks), rank, at(0), misses=2, learned=learned, pool=blocks
    )


def prompt(n_queries, **options):
    x = torch.zeros(1, 1, 8, 16)
    return dense(x[:, :, -n_queries:], x, x, **{"through": "math"} | options)


def transferred(step):
    host, slots = torch.zeros(1, 1, 8, 2, 16, 16), torch.zeros(1, 1, 4, 2, 16, 16)
    assert int(step.count) == 3
    return kernels.gather_misses(host, slots, step.src, step.dst, step.count)


TURNED = torch.zeros(1, 1, 2, 2, 16, 16).transpose(-1, -2)
MIXED = empty_maps(1, 1, 4, 8)[0], torch.zeros(1, 1, 8, dtype=torch.int32)
KERNELS = {
    "positions": (
        lambda: scores(at(70)[None]),
        r"raise n_blocks \(now 4\) or correct the positions",
        [lambda: scores(at(70)[None], n_blocks=5), lambda: scores(at(60)[None])],
    ),
    "dtype": (
        lambda: kernels.select_topk(torch.zeros(1, 1, 1, 4).double(), at(60)[None].long(), RULE),
        "must be float32, got float64; convert it",
        [lambda: chosen(at(60)[None])],
    ),
    "scores of fewer blocks": (
        lambda: chosen(at(70)[None]),
        "pass scores of more blocks or correct the positions",
        [lambda: chosen(at(70)[None], n_blocks=5), lambda: chosen(at(60)[None])],
    ),
    "unpinned": (
        lambda: host_memory.pinned_empty((1, 1, 4, 2, 16, 16), torch.float32),
        "on a CPU use torch.empty: the kernels accept it",
        [lambda: gathered(torch.empty(1, 1, 4, 2, 16, 16))],
    ),
    "strides": (
        lambda: gathered(TURNED),
        r"must be contiguous .*; call .contiguous\(\) on it",
        [lambda: gathered(TURNED.contiguous())],
    ),
    "count": (lambda: gathered(count=3), "clear it before each step", [lambda: gathered(count=0)]),
    "segment": (
        lambda: segment_words(torch.zeros(1, 1, 2, 2, 16, 16), 256),
        "segment_bytes must be at least 512",
        [lambda: segment_words(torch.zeros(1, 1, 2, 2, 16, 16), 512)],
    ),
    "one slot twice": (
        lambda: gathered(count=2, dst=(1, 1)),
        "use topk_difference's list",
        [lambda: transferred(placed())],
    ),
    "sizes of runs": (
        lambda: ResidentWorker([job(16), job(32)]),
        "give each size its own worker",
        [lambda: ResidentWorker([job(16)]), lambda: ResidentWorker([job(32)])],
    ),
    "rotary table": (
        lambda: appended(position=40, rows=40),
        "the rotary table of 40 rows; make it longer",
        [lambda: appended(position=40, rows=41)],
    ),
    "host store": (
        lambda: appended(position=64, rows=65),
        "allocate the host store for the longest sequence",
        [lambda: appended(position=64, rows=65, host_blocks=5)],
    ),
    "compressed keys": (
        lambda: appended(position=47, n_windows=1),
        "allocate compressed for the longest sequence",
        [lambda: appended(position=47, n_windows=2)],
    ),
    "tail": (
        lambda: appended(tail=3),
        "tail_slot must lie in -1..2: use topk_difference's",
        [lambda: appended(tail=int(placed(n_slots=3, rule=replace(RULE, budget_blocks=3)).tail_slot))],
    ),
    "too few slots": (
        lambda: placed(n_slots=3),
        "use at least k slots or lower k",
        [lambda: placed(n_slots=4), lambda: placed(n_slots=3, rule=replace(RULE, budget_blocks=3))],
    ),
    "policy": (
        lambda: placed(n_slots=5, policy="random"),
        'policy must be "recent" or "score"',
        [lambda p=p: placed(n_slots=5, policy=p) for p in ("recent", "score")],
    ),
    "maps": (
        lambda: placed(maps=MIXED),
        "start both from cache.empty_maps",
        [lambda: placed(maps=empty_maps(1, 1, 4, 8))],
    ),
    "length": (
        lambda: decoded(16),
        "pass lengths that include the new token",
        [lambda: decoded(17)],
    ),
    "blocks": (
        lambda: prefilled(2**15 + 1, 1, 0),
        "raise the block size",
        [lambda: prefilled(2**15 + 1, 16, 0)],
    ),
    "list of a longer sequence": (
        lambda: prefilled(64, 16, 4),
        "made for a longer sequence or another block size",
        [lambda: prefilled(80, 16, 4), lambda: prefilled(64, 8, 4)],
    ),
    "candidates": (
        lambda: replayed(8, learned=7),
        "raise the context or lower the budget",
        [lambda: replayed(9, learned=7), lambda: replayed(8, learned=6)],
    ),
    "middle of a prompt": (
        lambda: prompt(3),
        "pass the whole prompt or its last token; sparda.attention.dense_attention takes queries at any",
        [
            lambda: prompt(8),
            lambda: prompt(1),
            lambda: attention.dense_attention(
                *[torch.zeros(1, 1, n, 16) for n in (3, 8, 8)], torch.arange(5, 8)[None]
            ),
        ],
    ),
    "through": (
        lambda: prompt(8, through="flash"),
        "use through='math' here",
        [lambda: prompt(8, through="math")],
    ),
    "stamps": (
        lambda: stamp(torch.zeros(2, dtype=torch.int64), 2),
        "make the buffer longer",
        [lambda: stamp(torch.zeros(3, dtype=torch.int64), 2)],
    ),
    "name": (
        lambda: kernels.score_block,
        "it offers .*score_blocks",
        [lambda: [getattr(kernels, name) for name in kernels.__all__]],
    ),
}


KINDS = (ValueError, TypeError, KeyError, RuntimeError, AttributeError, MemoryError)


@pytest.mark.parametrize(("wrong", "says", "remedies"), (RULES | KERNELS).values(), ids=RULES | KERNELS)
def test_what_the_message_says_helps(wrong, says, remedies):
    with pytest.raises(KINDS, match=says):
        wrong()
    for remedy in remedies:
        remedy()
