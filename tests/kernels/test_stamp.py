"""Stamps come in stream order, replay with a graph, and say how coarse they are."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from sparda.kernels.stamp import stamp, tick_ns


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def clocked(request) -> torch.device:
    """The CPU's clock, and a GPU's where there is one."""
    return request.getfixturevalue("cuda") if request.param == "cuda" else torch.device("cpu")


def test_stamps_of_one_stream_never_run_backwards(clocked):
    buffer = torch.zeros(40, dtype=torch.int64, device=clocked)
    for slot in range(40):
        stamp(buffer, slot)
    assert (buffer > 0).all()
    assert (buffer.diff() >= 0).all()


def test_a_stamp_touches_its_own_slot_only(clocked, poisoned):
    buffer = poisoned((35,), torch.int64, clocked)
    for slot in (0, 1, 16, 34):
        stamp(buffer, slot)
    assert (buffer != -77).nonzero().flatten().tolist() == [0, 1, 16, 34]


def test_the_clock_ticks_at_least_every_tenth_of_a_millisecond(clocked):
    assert 0 < tick_ns(clocked) < 1e5


def test_a_slot_outside_the_buffer_or_another_dtype_is_refused():
    with pytest.raises(ValueError, match=r"slot must lie in 0\.\.2"):
        stamp(torch.zeros(3, dtype=torch.int64), 3)
    with pytest.raises(TypeError, match="int64"):
        stamp(torch.zeros(3), 0)


@pytest.mark.gpu
def test_every_replay_of_a_graph_stamps_anew_and_spans_the_work_between(cuda):
    buffer = torch.zeros(3, dtype=torch.int64, device=cuda)
    a = torch.randn(4096, 4096, device=cuda)
    for slot in range(3):  # load before capturing
        stamp(buffer, slot)
    torch.mm(a, a)
    torch.cuda.synchronize()
    graph, seen = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        stamp(buffer, 0)
        torch.mm(a, a)
        stamp(buffer, 1)
        stamp(buffer, 2)
    for _ in range(3):
        graph.replay()
        seen.append(buffer.tolist())
    assert all(first < then for first, then in pairwise(seen))
    for start, end, after in seen[1:]:
        assert end - start > 10 * (after - end)  # 137 GFLOP in float32 against an empty kernel


@pytest.mark.parametrize("kernel", ["stamp_kernel", "ticks_kernel"])
def test_the_kernels_read_the_global_timer(kernel, compiled):
    slot = {"slot": "i32"} if kernel == "stamp_kernel" else {}
    made = compiled(
        "sparda.kernels.stamp", kernel, signature={"buffer": "*i64"} | slot,
        constexprs={} if slot else {"N": 32}, num_warps=1,
    )  # fmt: skip
    assert "%globaltimer" in made["ptx"]
    assert made["usage"]["local"] == 0
