"""The worker copies what it is rung for, in order, and always leaves."""

from __future__ import annotations

import time

import pytest
import torch

from sparda.kernels import gather_misses
from sparda.kernels.doorbell import ring_kernel, wait_kernel
from sparda.kernels.resident_worker import ResidentWorker, worker_kernel
from sparda.measure.transfer_cases import random_case, same_bits

WORKER = {"table": "*i64", **dict.fromkeys(("queue", "head", "done", "control"), "*i32"), "limit_ns": "i64"}


SMALL = {"RUN": 512, "SEGMENT": 256, "STAGES": 2, "QUEUE": 4, "CLOCK": False}


def state_of(jobs, n_ctas=2, queue=4):
    """Table, queue, head, done, tickets and control page in ordinary memory."""
    table = torch.tensor([[t.data_ptr() for t in job] for job in jobs])
    sizes = (queue, 1, n_ctas, len(jobs), 4)
    return table, *(torch.zeros(n, dtype=torch.int32) for n in sizes)


def test_interpreted_worker_answers_every_bell_and_leaves_when_stopped(interpreter):
    jobs = [random_case(interpreter, heads=1, n_blocks=4, n_slots=2, seed=s) for s in range(2)]
    want = [job.expected() for job in jobs]
    table, queue, head, done, tickets, control = state_of(jobs)
    for job in (1, 0):
        ring_kernel[(1,)](queue, head, tickets, job, QUEUE=4)
    assert head.item() == 2
    assert tickets.tolist() == [2, 1]
    control[1] = 1
    worker_kernel[(2,)](
        table, queue, head, done, control, 10**9, RUN=512, SEGMENT=256, STAGES=2, QUEUE=4, CLOCK=False
    )
    wait_kernel[(1,)](done, tickets, control, 0, 2, 10, LANES=4, CLOCK=False)
    assert done.tolist() == [2, 2]
    assert control[0] == 0
    for job, slots in zip(jobs, want, strict=True):
        assert same_bits(job.slots, slots)


def test_interpreted_worker_leaves_by_itself_when_no_bell_rings(interpreter):
    jobs = [random_case(interpreter, heads=1, n_blocks=4, n_slots=2)]
    table, queue, head, done, _, control = state_of(jobs)
    worker_kernel[(1,)](
        table, queue, head, done, control, 100, RUN=512, SEGMENT=256, STAGES=2, QUEUE=4, CLOCK=False
    )
    assert torch.isnan(jobs[0].slots).all()


def test_interpreted_wait_gives_up_and_says_which_job_was_late(interpreter):
    jobs = [random_case(interpreter, heads=1, n_blocks=4, n_slots=2)] * 3
    _, queue, head, done, tickets, control = state_of(jobs)
    ring_kernel[(1,)](queue, head, tickets, 2, QUEUE=4)
    wait_kernel[(1,)](done, tickets, control, 2, 2, 10, LANES=4, CLOCK=False)
    assert control[0] == 3


def test_interpreted_tickets_survive_wrapping_around(interpreter):
    jobs = [random_case(interpreter, heads=1, n_blocks=4, n_slots=2)]
    want = jobs[0].expected()
    table, queue, head, done, tickets, control = state_of(jobs, n_ctas=1)
    head.fill_(2**31 - 1)
    done.fill_(2**31 - 1)
    control[1] = 1
    ring_kernel[(1,)](queue, head, tickets, 0, QUEUE=4)
    assert head.item() == -(2**31)
    worker_kernel[(1,)](
        table, queue, head, done, control, 100, RUN=512, SEGMENT=256, STAGES=2, QUEUE=4, CLOCK=False
    )
    wait_kernel[(1,)](done, tickets, control, 0, 1, 10, LANES=4, CLOCK=False)
    assert control[0] == 0
    assert same_bits(jobs[0].slots, want)


def test_on_the_cpu_a_ring_copies_at_once(reference_only):
    job = random_case(torch.device("cpu"))
    want = job.expected()
    with ResidentWorker([job]) as worker:
        worker.ring(0)
        worker.wait(0)
    assert same_bits(job.slots, want)
    assert not worker.alive


def test_jobs_of_different_runs_are_refused(reference_only):
    jobs = [random_case(torch.device("cpu"), block_size=size) for size in (16, 32)]
    with pytest.raises(ValueError, match="different sizes"):
        ResidentWorker(jobs)


@pytest.mark.parametrize("kernel", ["worker_kernel", "ring_kernel", "wait_kernel"])
def test_the_kernels_compile_for_sm_90_and_order_their_stores(compiled, kernel):
    signatures = {
        "worker_kernel": (WORKER, {"RUN": 8192, "SEGMENT": 1024, "STAGES": 8, "QUEUE": 64, "CLOCK": True}),
        "ring_kernel": (
            {**dict.fromkeys(("queue", "head", "tickets"), "*i32"), "job": "i32"},
            {"QUEUE": 64},
        ),
        "wait_kernel": (
            {**dict.fromkeys(("done", "tickets", "control"), "*i32"), "job": "i32", "n_ctas": "i32"}
            | {"limit_ns": "i64"},
            {"LANES": 32, "CLOCK": True},
        ),
    }
    signature, constexprs = signatures[kernel]
    module = "resident_worker" if kernel == "worker_kernel" else "doorbell"
    built = compiled(f"sparda.kernels.{module}", kernel, signature=signature, constexprs=constexprs)
    ptx = built["ptx"]
    if kernel != "ring_kernel":
        assert "acquire" in ptx
    if kernel != "wait_kernel":
        release = ptx.index("release")
        assert "bar.sync" in ptx[max(0, release - 600) : release]
    if kernel == "worker_kernel":
        assert "cp.async.cg.shared.global" in ptx


@pytest.mark.gpu
def test_worker_and_launches_give_identical_bytes(cuda):
    jobs = [random_case(cuda, n_blocks=50, n_slots=32, block_size=64, head_dim=128, seed=s) for s in range(4)]
    want = []
    for job in jobs:
        want.append(gather_misses(*job).clone())
        job.slots.fill_(float("nan"))
    with ResidentWorker(jobs) as worker:
        for index in range(4):
            worker.ring(index)
        for index in range(4):
            worker.wait(index)
        got = [job.slots.clone() for job in jobs]
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.gpu
def test_an_exception_on_the_host_ends_the_worker(cuda):
    worker = ResidentWorker([random_case(cuda)], idle_s=60)

    def generate():
        with worker:
            assert worker.alive
            raise KeyError("the host fails here")

    with pytest.raises(KeyError):
        generate()
    assert not worker.alive


@pytest.mark.gpu
def test_a_forgotten_worker_ends_by_itself_and_late_waits_are_reported(cuda):
    worker = ResidentWorker([random_case(cuda)], idle_s=0.2).start()
    time.sleep(0.6)
    assert not worker.alive
    worker.ring(0)
    worker.wait(0)
    torch.cuda.synchronize()
    with pytest.raises(TimeoutError, match="job 0"):
        worker.check()


@pytest.mark.gpu
def test_a_graph_rings_and_waits(cuda):
    job = random_case(cuda, n_blocks=50, n_slots=32, block_size=64, head_dim=128)
    want = job.expected()
    worker = ResidentWorker([job])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        worker.ring(0)
        worker.wait(0)
    with worker:
        for _ in range(3):
            job.slots.fill_(float("nan"))
            graph.replay()
            torch.cuda.current_stream().synchronize()
            assert same_bits(job.slots, want)


@pytest.mark.gpu
@pytest.mark.parametrize("rounds", [100_000])
def test_no_round_of_a_random_stress_ever_shows_a_wrong_byte(cuda, rounds):
    """Fresh lists, poisoned slots, a bell, a wait, then every byte compared: all on the GPU."""
    case = random_case(cuda, heads=1, n_blocks=256, n_slots=32, misses=32, block_size=16, head_dim=64)
    worker = ResidentWorker([case], n_ctas=4, segment_bytes=1024)
    store = case.host.to(cuda).view(256, -1).view(torch.int32)
    slots = case.slots.view(32, -1).view(torch.int32)
    wrong = torch.zeros(1, dtype=torch.int64, device=cuda)
    position = torch.arange(32, device=cuda)

    def one_round():
        case.src.random_(0, 256)
        case.dst.copy_(torch.rand(32, device=cuda).argsort())
        case.count.random_(0, 33)
        slots.fill_(-7)
        worker.ring(0)
        worker.wait(0)
        listed = (position < case.count)[:, None]
        want = torch.where(listed, store[case.src], -7)
        wrong.add_((slots[case.dst] != want).any().long())

    per_graph = 500
    one_round()  # loads every kernel; the worker is not there yet, so this wait is late
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(per_graph):
            one_round()
    worker.reset()
    wrong.zero_()
    with worker:
        for _ in range(rounds // per_graph):
            graph.replay()
        torch.cuda.current_stream().synchronize()
    assert wrong.item() == 0
