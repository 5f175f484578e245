"""sparse_decode against exact attention over the selected blocks, in float32."""

from dataclasses import dataclass

import pytest
import torch

from sparda.attention import block_attention
from sparda.kernels import sparse_decode
from sparda.kernels.sparse_decode import DecodeTiles

NAN = float("nan")


@dataclass
class Step:
    """A decode step whose keys and values are known both by position and by slot."""

    q: torch.Tensor
    slots: torch.Tensor
    slot_ids: torch.Tensor
    block_ids: torch.Tensor
    lengths: torch.Tensor
    want: torch.Tensor  # float32

    def run(self, **options):
        arguments = (self.q, self.slots, self.slot_ids, self.block_ids, self.lengths)
        return sparse_decode(*arguments, **options)


def make_step(device, dtype, lengths, *, n_kv=2, group=3, dim=64, size=16, budget=4, n_slots=6) -> Step:
    """Random blocks in random slots; whatever no token wrote is NaN."""
    batch, n_blocks = len(lengths), -(-max(lengths) // size)
    q = torch.randn(batch, n_kv * group, dim).to(dtype)
    k, v = (torch.randn(batch, n_kv, n_blocks * size, dim).to(dtype) for _ in range(2))
    block_ids = torch.full((batch, n_kv, budget), -1, dtype=torch.int32)
    slot_ids = torch.full_like(block_ids, -1)
    slots = torch.full((batch, n_kv, n_slots, 2, size, dim), NAN, dtype=dtype)
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = NAN, NAN
        own, n = (length - 1) // size, min(budget, -(-length // size))
        for h in range(n_kv):
            chosen = torch.cat([torch.randperm(own)[: n - 1].sort().values, torch.tensor([own])])
            place = torch.randperm(n_slots)[:n]
            block_ids[b, h, :n], slot_ids[b, h, :n] = chosen.int(), place.int()
            slots[b, h, place, 0] = k[b, h].unflatten(0, (-1, size))[chosen]
            slots[b, h, place, 1] = v[b, h].unflatten(0, (-1, size))[chosen]
    lengths = torch.tensor(lengths, dtype=torch.int32)
    want = block_attention(
        q.float()[:, :, None], k.float().nan_to_num(), v.float().nan_to_num(), block_ids.long()[:, :, None],
        lengths[:, None].long() - 1, block_size=size,
    )[:, :, 0]  # fmt: skip
    return Step(*(t.to(device) for t in (q, slots, slot_ids, block_ids, lengths, want)))


CASES = {
    "group of three, two splits": ({"lengths": [75, 20], "group": 3}, DecodeTiles(n_splits=2)),
    "one head each": ({"lengths": [16], "group": 1, "size": 32}, DecodeTiles()),
    "wide heads, more splits than blocks": (
        {"lengths": [5, 40], "dim": 128, "n_kv": 1},
        DecodeTiles(n_splits=4),
    ),
    "the largest blocks": ({"lengths": [200], "size": 128, "n_kv": 1}, DecodeTiles()),
    "group of 16, large blocks": ({"lengths": [300], "group": 16, "size": 64, "n_kv": 1}, DecodeTiles()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_every_slot_is_read_once_and_masked_by_the_real_length(device, case, dtype, poisoned, error):
    options, tiles = CASES[case]
    step = make_step(device, dtype, **options)
    out = poisoned(step.q.shape, dtype, device)
    assert step.run(out=out, tiles=tiles) is out
    assert error(out, step.want) < (1e-5 if dtype is torch.float32 else 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("group", [1, 7, 16, 32])
@pytest.mark.parametrize("dim", [64, 128])
def test_bfloat16_stays_within_a_hundredth_of_float32(cuda, size, group, dim, poisoned):
    step = make_step(
        cuda, torch.bfloat16, [40 * size - 3, 5, size, 17 * size + 1], group=group, dim=dim, size=size,
        budget=9, n_slots=12,
    )  # fmt: skip
    out = step.run(out=poisoned(step.q.shape, torch.bfloat16, cuda))
    assert (out.float() - step.want).norm() / step.want.norm() < 1e-2  # rounding of the result included


@pytest.mark.gpu
def test_slots_beyond_four_gib_are_addressed(cuda):
    step = make_step(cuda, torch.bfloat16, [640, 640], n_kv=1, group=16, dim=128, size=64, n_slots=10)
    moved = torch.full((2, 1, 70_000, 2, 64, 128), NAN, dtype=torch.bfloat16, device=cuda)
    moved[:, :, -10:] = step.slots
    step.slots, step.slot_ids = moved, step.slot_ids + (70_000 - 10)
    assert (step.run().float() - step.want).norm() / step.want.norm() < 1e-2


@pytest.mark.gpu
def test_a_cuda_graph_replays_it_on_new_inputs(cuda, error):
    step, other = (make_step(cuda, torch.float16, [200, 77], n_slots=9, budget=5) for _ in range(2))
    step.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step.run()
    for name in ("q", "slots", "slot_ids", "block_ids"):
        getattr(step, name).copy_(getattr(other, name))
    graph.replay()
    assert error(out, other.want) < 1e-2


def test_a_slot_of_minus_one_is_skipped(device, error):
    step = make_step(device, torch.float32, [60], n_kv=1, budget=4)
    full = step.run()
    step.slot_ids[0, 0, 1] = -1
    without = step.block_ids.clone()
    without[0, 0, 1] = -1
    other = Step(step.q, step.slots, step.slot_ids, without, step.lengths, step.want)
    assert error(step.run(), other.run()) < 1e-6
    assert error(step.run(), full) > 1e-3


def test_a_sequence_that_has_ended_gets_zeros(device):
    step = make_step(device, torch.float32, [20, 33])
    step.lengths[0], step.block_ids[0], step.slot_ids[0] = 0, -1, -1
    out = step.run()
    assert (out[0] == 0).all()
    assert not out[1].isnan().any()


def test_the_torch_backend_follows_the_rule(reference_only, error):
    step = make_step("cpu", torch.float32, [75, 20])
    assert error(step.run(), step.want) < 1e-6


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"slot_ids": torch.full((1, 2, 4), 6, dtype=torch.int32)}, ValueError, "6 are out of range"),
        (
            {"block_ids": torch.full((1, 2, 4), 2, dtype=torch.int32)},
            ValueError,
            "starts after its 20 tokens",
        ),
        ({"block_ids": torch.zeros(1, 2, 4, dtype=torch.int64)}, TypeError, "block_ids must be int32"),
        ({"slots": torch.zeros(1, 2, 6, 16, 64)}, ValueError, "slots must be"),
        ({"q": torch.zeros(1, 6, 64, dtype=torch.int64)}, TypeError, "q must be"),
        ({"q": torch.zeros(1, 5, 64)}, ValueError, "cannot be grouped"),
    ],
)
def test_bad_arguments_are_refused_at_the_door(change, kind, message):
    step = make_step("cpu", torch.float32, [20])
    for name, value in change.items():
        setattr(step, name, value)
    with pytest.raises(kind, match=message):
        step.run()


def test_bfloat16_is_refused_under_the_interpreter(interpreter):
    with pytest.raises(TypeError, match="bfloat16"):
        make_step(interpreter, torch.bfloat16, [20]).run()


SPLIT = {
    "q": "*bf16", "slots": "*bf16", "slot_ids": "*i32", "block_ids": "*i32", "lengths": "*i32",
    "partial": "*fp32", "lse": "*fp32", "scale": "fp32", "n_slots": "i32", "budget": "i32",
    "share": "i32", "n_kv": "i32",
}  # fmt: skip


def test_both_kernels_compile_for_hopper_without_spills(compiled):
    split = compiled(
        "sparda.kernels.sparse_decode", "_split_kernel", signature=SPLIT,
        constexprs={"G": 16, "ROWS": 16, "S": 64, "D": 128, "PRECISION": "tf32", "CHAINED": True},
        num_warps=DecodeTiles().num_warps, num_stages=4,
    )  # fmt: skip
    assert "cp.async" in split["ptx"]
    assert "mma.sync" in split["ptx"]
    assert "griddepcontrol.wait" in split["ptx"]
    assert split["usage"]["local"] == split["usage"]["stack"] == 0
    compiled(
        "sparda.kernels.sparse_decode", "_merge_kernel",
        signature={"partial": "*fp32", "lse": "*fp32", "out": "*bf16", "n_splits": "i32"},
        constexprs={"G": 16, "D": 128, "SPLITS": 16, "CHAINED": True}, num_warps=1,
    )  # fmt: skip
