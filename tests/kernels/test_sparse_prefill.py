"""sparse_prefill against exact attention over each query's blocks, in float32."""

from dataclasses import dataclass

import pytest
import torch

from sparda.attention import block_attention
from sparda.blocks import select_blocks
from sparda.kernels import sparse_prefill
from sparda.kernels.sparse_prefill import PrefillTiles
from sparda.kernels.union_lists import union_lists
from sparda.spec import Sparsity


@dataclass
class Prompt:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    block_ids: torch.Tensor
    positions: torch.Tensor
    size: int

    def run(self, **options):
        return sparse_prefill(
            self.q, self.k, self.v, self.block_ids, self.positions, block_size=self.size, **options
        )

    def want(self):
        q, k, v = (t.float() for t in (self.q, self.k, self.v))
        return block_attention(q, k, v, self.block_ids.long(), self.positions, block_size=self.size)


def make_prompt(
    device, dtype, *, batch=1, n_kv=1, group=3, dim=64, size=16, n_tokens=61, n_queries=None, budget=3
) -> Prompt:
    """The last n_queries of a prompt; each sequence of the batch ends 5 tokens before the one before it."""
    n_queries = n_queries or n_tokens
    rule = Sparsity(budget, block_size=size, local_blocks=1)
    positions = torch.arange(n_tokens - n_queries, n_tokens).repeat(batch, 1)
    positions = (positions - 5 * torch.arange(batch)[:, None]).clamp(min=0)
    scores = torch.randn(batch, n_kv, n_queries, -(-n_tokens // size))
    ids = select_blocks(scores, positions, rule).int()
    q = torch.randn(batch, n_kv * group, n_queries, dim).to(dtype)
    k, v = (torch.randn(batch, n_kv, n_tokens, dim).to(dtype) for _ in range(2))
    return Prompt(*(t.to(device) for t in (q, k, v, ids, positions)), size=size)


CASES = {
    "group of three over 16 tokens": ({"n_queries": 19}, PrefillTiles()),
    "no grouping, one token a tile": ({"group": 1, "n_queries": 3}, PrefillTiles(rows=1)),
    "two sequences, wide heads": (
        {"batch": 2, "n_kv": 2, "dim": 128, "n_queries": 5},
        PrefillTiles(rows=16),
    ),
    "group of 16, large blocks": ({"group": 16, "size": 32, "n_tokens": 150, "n_queries": 9}, PrefillTiles()),
    "the largest blocks": ({"size": 128, "n_tokens": 300, "n_queries": 3}, PrefillTiles()),
    "a prompt from its first token": ({"n_tokens": 20, "group": 4}, PrefillTiles()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_every_query_attends_to_its_own_blocks_only(device, case, dtype, poisoned, error):
    options, tiles = CASES[case]
    prompt = make_prompt(device, dtype, **options)
    out = poisoned(prompt.q.shape, dtype, device)
    assert prompt.run(out=out, tiles=tiles) is out
    assert error(out, prompt.want()) < (1e-5 if dtype is torch.float32 else 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("group", [1, 7, 16, 32])
@pytest.mark.parametrize("dim", [64, 128])
def test_bfloat16_stays_within_a_hundredth_of_float32(cuda, size, group, dim, poisoned):
    options = {"batch": 2, "n_kv": 2, "group": group, "dim": dim, "size": size, "budget": 6}
    prompt = make_prompt(cuda, torch.bfloat16, n_tokens=20 * size + 13, n_queries=9 * size + 5, **options)
    out = prompt.run(out=poisoned(prompt.q.shape, torch.bfloat16, cuda))
    want = prompt.want()
    assert (out.float() - want).norm() / want.norm() < 1e-2  # rounding of the result included


@pytest.mark.gpu
def test_sampled_queries_of_a_long_prompt_agree(cuda, poisoned):
    n_tokens, size, step = 131_072, 64, 8192
    q = torch.randn(1, 32, n_tokens, 128, device=cuda, dtype=torch.bfloat16)
    k, v = (torch.randn(1, 2, n_tokens, 128, device=cuda, dtype=torch.bfloat16) for _ in range(2))
    positions = torch.arange(n_tokens, device=cuda)[None]
    lists = [
        select_blocks(torch.randn(1, 2, step, n_tokens // size, device=cuda), part, Sparsity(96)).int()
        for part in positions.split(step, 1)
    ]
    prompt = Prompt(q, k, v, torch.cat(lists, 2), positions, size)
    out = prompt.run(out=poisoned(q.shape, torch.bfloat16, cuda))
    assert not out.isnan().any()
    for t in [0, 63, 6143, *torch.randint(0, n_tokens, (24,)).tolist(), n_tokens - 1]:
        one = slice(t, t + 1)
        want = Prompt(q[:, :, one], k, v, prompt.block_ids[:, :, one], positions[:, one], size).want()
        assert (out[:, :, one].float() - want).norm() / want.norm() < 1e-2, f"query {t}"


@pytest.mark.gpu
def test_a_cuda_graph_replays_it_on_new_inputs(cuda, error):
    prompt, other = (make_prompt(cuda, torch.float16, group=4, n_tokens=300, budget=6) for _ in range(2))
    prompt.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = prompt.run()
    for name in ("q", "k", "v", "block_ids"):
        getattr(prompt, name).copy_(getattr(other, name))
    graph.replay()
    assert error(out, other.want()) < 1e-2


def test_a_query_without_any_block_gets_zeros(device):
    prompt = make_prompt(device, torch.float32, n_queries=4)
    prompt.block_ids[:, :, 1] = -1
    out = prompt.run()
    assert (out[:, :, 1] == 0).all()
    assert not out.isnan().any()


def test_the_union_holds_each_block_once_with_the_bits_of_its_readers(device):
    prompt = make_prompt(device, torch.float32, n_queries=7, n_tokens=200, budget=5)
    entries, bounds = (t.tolist() for t in union_lists(prompt.block_ids, prompt.positions, 4, 13, 16))
    for tile, (row, (end, edge, other)) in enumerate(zip(entries, bounds, strict=True)):
        lists = prompt.block_ids[0, 0, 4 * tile : 4 * tile + 4].tolist()
        blocks = {block for ids in lists for block in ids if block >= 0}
        readers = {b: sum(1 << i for i, ids in enumerate(lists) if b in ids) for b in blocks}
        listed = row[:end] + row[edge:]
        assert {entry // 65536: entry % 65536 for entry in listed} == readers
        assert len(listed) == len(readers)
        first, everyone = int(prompt.positions[0, 4 * tile]), (1 << len(lists)) - 1
        inner = {b for b in readers if 16 * b + 15 <= first}
        assert {e // 65536 for e in row[:end]} == {b for b in inner if readers[b] == everyone}
        assert {e // 65536 for e in row[edge:other]} == readers.keys() - inner


def test_the_torch_backend_is_the_reference(reference_only):
    prompt = make_prompt("cpu", torch.float32)
    assert torch.equal(prompt.run(), prompt.want())


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"block_ids": torch.full((1, 1, 61, 3), 4, dtype=torch.int32)}, ValueError, "longer sequence"),
        ({"block_ids": torch.zeros(1, 1, 61, 3, dtype=torch.int64)}, TypeError, "block_ids must be int32"),
        ({"positions": torch.zeros(1, 60, dtype=torch.int64)}, ValueError, "positions must have shape"),
        ({"k": torch.zeros(61, 64)}, ValueError, "k must have shape"),
        ({"v": torch.zeros(1, 1, 60, 64)}, ValueError, "v must have shape"),
        ({"size": 0}, ValueError, "block_size"),
    ],
)
def test_bad_arguments_are_refused_at_the_door(change, kind, message):
    prompt = make_prompt("cpu", torch.float32)
    for name, value in change.items():
        setattr(prompt, name, value)
    with pytest.raises(kind, match=message):
        prompt.run()


ATTEND = {
    "q": "*bf16", "keys": "tensordesc<bf16[1, 64, 128]>", "values": "tensordesc<bf16[1, 64, 128]>",
    "positions": "*i64", "entries": "*i32", "bounds": "*i32", "out": "*bf16", "scale": "fp32",
    "n_queries": "i32", "n_tiles": "i32", "budget": "i32", "n_kv": "i32",
}  # fmt: skip
UNION = {
    "block_ids": "*i32", "positions": "*i64", "marks": "*i32", "entries": "*i32", "bounds": "*i32",
    "n_queries": "i32", "n_tiles": "i32", "n_all": "i32", "n_blocks": "i32", "budget": "i32", "n_kv": "i32",
}  # fmt: skip


def test_both_kernels_compile_for_hopper_without_spills(compiled):
    tiles = PrefillTiles()
    attend = compiled(
        "sparda.kernels.sparse_prefill", "_attend_kernel", signature=ATTEND, num_warps=tiles.num_warps,
        constexprs={"G": 16, "HEADS": 16, "TOKENS": 4, "S": 64, "D": 128, "PRECISION": "tf32"},
        num_stages=tiles.num_stages,
    )  # fmt: skip
    assert "wgmma.mma_async" in attend["ptx"]
    assert "cp.async.bulk.tensor" in attend["ptx"]
    assert attend["usage"]["local"] == attend["usage"]["stack"] == 0
    union = compiled(
        "sparda.kernels.union_lists", "_union_kernel", signature=UNION,
        constexprs={"TOKENS": 4, "LIST": 128, "S": 64, "STEP": 1024},
    )  # fmt: skip
    assert union["usage"]["local"] == union["usage"]["stack"] == 0
