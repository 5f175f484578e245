"""The gather copies exactly the listed misses, bit by bit, and refuses what it would copy wrongly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda.kernels import gather_misses
from sparda.kernels.host_memory import pinned_empty
from sparda.measure.transfer_cases import random_case, same_bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("segment_bytes", [512, 2048, 65536])
def test_listed_misses_arrive_bit_by_bit_and_nothing_else_moves(device, dtype, segment_bytes):
    case = random_case(device, dtype=dtype)
    want = case.expected()
    gather_misses(*case, n_ctas=3, segment_bytes=segment_bytes)
    assert same_bits(case.slots, want)


def test_an_empty_list_moves_nothing(device):
    case = random_case(device)
    case.count.zero_()
    gather_misses(*case, n_ctas=2)
    assert torch.isnan(case.slots).all()


@pytest.mark.parametrize(("size", "dim"), [(16, 64), (128, 128)])
def test_small_and_large_blocks_are_copied_whole(device, size, dim):
    case = random_case(device, heads=1, n_blocks=3, n_slots=2, block_size=size, head_dim=dim)
    want = case.expected()
    gather_misses(*case, n_ctas=2, num_warps=8)
    assert same_bits(case.slots, want)


@settings(max_examples=25, deadline=None)
@given(n_slots=st.integers(1, 6), batch=st.integers(1, 3), seed=st.integers(0, 99))
def test_the_reference_copies_any_list(n_slots, batch, seed):
    case = random_case(torch.device("cpu"), batch=batch, n_slots=n_slots, block_size=4, head_dim=8, seed=seed)
    want = case.expected()
    assert same_bits(gather_misses(*case), want)


@pytest.mark.parametrize(
    ("broken", "error", "says"),
    [
        (lambda c: [c[0].half(), *c[1:]], TypeError, "convert"),
        (lambda c: [c[0].transpose(3, 4).contiguous().transpose(3, 4), *c[1:]], ValueError, "contiguous"),
        (lambda c: [c[0][:, :1], *c[1:]], ValueError, "shape"),
        (lambda c: [*c[:2], c[2].long(), *c[3:]], TypeError, "src must be int32"),
        (lambda c: [*c[:2], c[2] + 1000, *c[3:]], ValueError, "src holds run indices"),
        (lambda c: [*c[:3], c[3] - 5, c[4]], ValueError, "dst holds run indices"),
        (lambda c: [*c[:4], c[4] + 100], ValueError, "count is"),
        (lambda c: [*c[:4], c[4][0]], ValueError, "count must have shape"),
    ],
)
def test_a_bad_call_says_what_to_change(broken, error, says):
    with pytest.raises(error, match=says):
        gather_misses(*broken(list(random_case(torch.device("cpu")))))


@pytest.mark.parametrize(("size", "dim"), [(16, 64), (64, 128), (128, 128)])
def test_the_kernel_compiles_for_sm_90_with_pipelined_16_byte_loads_and_no_spills(compiled, size, dim):
    built = compiled(
        "sparda.kernels.gather_misses", "gather_misses_kernel",
        signature=dict.fromkeys(("host", "slots", "src", "dst", "count"), "*i32"),
        constexprs={"RUN": size * dim, "SEGMENT": min(1024, size * dim), "STAGES": 8}, num_warps=4,
    )  # fmt: skip
    assert "cp.async.cg.shared.global" in built["ptx"]  # 16 bytes a lane, several segments in flight
    assert "st.global.v4.b32" in built["ptx"]
    assert built["usage"].get("stack", 0) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_reads_the_pinned_store_whatever_the_dtype(cuda, dtype):
    for seed in range(3):
        case = random_case(
            cuda, batch=2, n_blocks=300, n_slots=96, block_size=64, head_dim=128, dtype=dtype, seed=seed
        )
        want = case.expected()
        gather_misses(*case)
        assert same_bits(case.slots, want)


@pytest.mark.gpu
def test_stores_over_4_gib_are_addressed_right(cuda):
    host = pinned_empty((1, 1, 140_000, 2, 64, 128), torch.bfloat16)  # 4.3 GiB
    last = torch.randn(2, 64, 128).bfloat16()
    host[0, 0, -1] = last
    slots = torch.full((1, 1, 2, 2, 64, 128), float("nan"), dtype=torch.bfloat16, device=cuda)
    one = torch.ones(1, dtype=torch.int32, device=cuda)
    gather_misses(host, slots, one * 139_999, one, one)
    assert torch.equal(slots[0, 0, 1].cpu(), last)
    assert torch.isnan(slots[0, 0, 0]).all()


@pytest.mark.gpu
def test_a_graph_replays_the_gather_with_new_lists(cuda):
    case = random_case(cuda, n_blocks=50, n_slots=8, block_size=64, head_dim=128)
    gather_misses(*case)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather_misses(*case)
    fresh = random_case(cuda, n_blocks=50, n_slots=8, block_size=64, head_dim=128, seed=5)
    for old, new in zip(case[1:], fresh[1:], strict=True):
        old.copy_(new)
    want = case.expected()
    graph.replay()
    assert same_bits(case.slots, want)


@pytest.mark.gpu
def test_ordinary_host_memory_is_refused(cuda):
    case = list(random_case(cuda))
    case[0] = torch.empty(case[0].shape)
    with pytest.raises(ValueError, match="pinned_empty"):
        gather_misses(*case)


def test_two_misses_for_one_slot_are_refused(reference_only):
    case = random_case("cpu", misses=3)
    case.dst[1] = case.dst[0]
    with pytest.raises(ValueError, match="race for one slot"):
        gather_misses(*case)
