"""A transfer engine of our own: a few CTAs that stay on the GPU for a whole generation and wait for a bell.

    main stream    ring(l) ...... attention, FFN ...... wait(l)  attention of l
                      |                                    ^
    worker          job l: gather the misses of layer l ---+       (one kernel, launched once)

A launch per layer pays for a fork, a launch and a join in every layer. Here a layer's job (which store, slots
and miss list) is written down once; ringing it is one release store, waiting is one acquire poll, and both
are ordinary kernels that a CUDA graph holds.

Memory order. ring: the miss list is finished (same stream), then the queue entry, then ``head`` + 1 with
release. Worker: acquire ``head``, read entry and list, copy, barrier, then its own ``done`` := ticket with
release. wait: acquire every ``done``; the next kernel of the stream sees the blocks.

The worker can never spin for ever: it ends when told to, and by itself after ``idle_s`` without a bell. Then
a wait ends too, ``check()`` raises, and nothing is silently wrong. While it lives, do not call
torch.cuda.synchronize() or allocate with cudaMalloc: both may wait until it ends. Load every kernel and
capture every graph before ``start()``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparda.kernels.backend import choose, next_power_of_two, tl, triton
from sparda.kernels.doorbell import LATE, STOP, elapsed, nap, now_ns, ring_kernel, wait_kernel
from sparda.kernels.gather_misses import (
    NUM_WARPS,
    SEGMENT_BYTES,
    STAGES,
    check_transfer,
    copy_runs,
    gather_misses,
    run_words,
    segment_words,
)

Job = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # host, slots, src, dst, count of a gather


@triton.jit
def _address(table, job, FIELD: tl.constexpr):
    """Field of a job as a pointer to int32; stores and slots are 16-byte aligned."""
    pointer = tl.load(table + job * 5 + FIELD).to(tl.pointer_type(tl.int32))
    return tl.multiple_of(pointer, 16)


@triton.jit
def worker_kernel(
    table, queue, head, done, control, limit_ns,
    RUN: tl.constexpr, SEGMENT: tl.constexpr, STAGES: tl.constexpr, QUEUE: tl.constexpr, CLOCK: tl.constexpr,
):  # fmt: skip
    """Answer bells until stopped or idle for limit_ns: one CTA of the pool."""
    cta, n_ctas = tl.program_id(0), tl.num_programs(0)
    ticket = tl.load(done + cta)
    since = now_ns() if CLOCK else ticket.to(tl.int64)
    polls = ticket * 0
    alive = polls == 0
    while alive:
        if tl.atomic_add(head, 0, sem="acquire", scope="gpu") != ticket:
            job = tl.load(queue + (ticket & (QUEUE - 1)), volatile=True).to(tl.int64)
            n_misses = tl.load(_address(table, job, 4), volatile=True)
            host, slots = _address(table, job, 0), _address(table, job, 1)
            src, dst = _address(table, job, 2), _address(table, job, 3)
            copy_runs(host, slots, src, dst, n_misses, cta, n_ctas, RUN, SEGMENT, STAGES)
            ticket += 1
            tl.debug_barrier()  # every thread's stores come before the release below
            tl.atomic_xchg(done + cta, ticket, sem="release", scope="gpu")
            since = now_ns() if CLOCK else since
            polls = ticket * 0
        else:
            polls += 1
            nap(CLOCK)
            if polls % 64 == 0:  # the control page is across the link: look rarely
                stopped = tl.load(control + 1, volatile=True) != 0
                alive = (stopped == 0) & (elapsed(since, polls, CLOCK) < limit_ns)


class ResidentWorker:
    """CTAs that gather on request. ::

        with ResidentWorker(jobs) as worker:     # jobs[l]: host, slots, src, dst, count of layer l
            worker.ring(l)                       # after the miss list of l is written, on this stream
            worker.wait(l)                       # before attention reads the slots of l

    jobs   : one per layer, as gather_misses takes them, all runs of one size; kept alive by the worker
    n_ctas : CTAs that stay on the GPU
    idle_s : seconds without a bell after which the worker ends by itself; start() begins it again

    Ring a job again only after waiting for it. On CPU tensors ring() copies at once through gather_misses.
    Raises ValueError or TypeError for jobs that gather_misses would refuse.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        n_ctas: int = 8,
        num_warps: int = NUM_WARPS,
        segment_bytes: int = SEGMENT_BYTES,
        stages: int = STAGES,
        idle_s: float = 2.0,
    ):
        if not jobs or n_ctas < 1 or idle_s <= 0:
            raise ValueError(f"need jobs, CTAs and a time limit; got {len(jobs)}, {n_ctas}, {idle_s} s")
        self.jobs, self.n_ctas, self.num_warps = list(jobs), n_ctas, num_warps
        self.limit_ns, self.stages = int(idle_s * 1e9), stages
        for job in self.jobs:
            check_transfer(*job)
        slots = self.jobs[0][1]
        if any(run_words(job[1]) != run_words(slots) for job in self.jobs):
            raise ValueError("the jobs have runs of different sizes; give each size its own worker")
        self.run, self.segment = run_words(slots), segment_words(slots, segment_bytes)
        self.on_gpu = choose(*(job[1] for job in self.jobs)) == "cuda"
        if self.on_gpu:
            self._allocate(slots.device)
            self._load_kernels()

    def _allocate(self, device: torch.device) -> None:
        from sparda.kernels.host_memory import pinned_empty

        n = len(self.jobs)
        self.queue_size = next_power_of_two(2 * n)
        pointers = [[t.data_ptr() for t in job] for job in self.jobs]
        self.table = torch.tensor(pointers, dtype=torch.int64, device=device)
        sizes = (self.queue_size, 32, self.n_ctas, n)  # the head has its own 128-byte line
        state = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self.queue, self.head, self.done, self.tickets = state.split(sizes)
        self.control = pinned_empty((32,), torch.int32)  # the host reads and writes it without any stream
        self.stream = torch.cuda.Stream(device, priority=-1)

    def _load_kernels(self) -> None:
        """Make every launch once: loading a kernel later would wait for the CTAs to leave.

        Triton compiles another variant for an argument that is 1 or a multiple of 16, so all jobs are rung.
        """
        self.control[STOP] = self.control[LATE] = 1  # all leave and give up at their first look
        self._launch()
        self.stream.synchronize()  # the CTAs must not hear these bells
        for job in range(len(self.jobs)):
            self.ring(job)
            self.wait(job)
        self.reset()

    def reset(self) -> None:
        """Forget all bells and late jobs; only while the CTAs are away."""
        torch.cuda.synchronize()
        for part in (self.head, self.done, self.tickets):
            part.zero_()
        self.control.zero_()
        torch.cuda.synchronize()

    def _launch(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            worker_kernel[(self.n_ctas,)](
                self.table, self.queue, self.head, self.done, self.control, self.limit_ns,
                RUN=self.run, SEGMENT=self.segment, STAGES=self.stages, QUEUE=self.queue_size, CLOCK=True,
                num_warps=self.num_warps,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether the CTAs are on the GPU now."""
        return self.on_gpu and not self.stream.query()

    def start(self) -> ResidentWorker:
        """Put the CTAs on the GPU, if they are not there. Cheap: call it before each graph replay."""
        if self.on_gpu and self.stream.query():
            self.control[STOP] = 0
            self._launch()
        return self

    def ring(self, job: int) -> None:
        """Ask for a job on the current stream, once its miss list is complete there."""
        if not self.on_gpu:
            gather_misses(*self.jobs[job])
            return
        ring_kernel[(1,)](self.queue, self.head, self.tickets, job, QUEUE=self.queue_size, num_warps=1)

    def wait(self, job: int) -> None:
        """Hold the current stream until the job's last bell has been answered."""
        if self.on_gpu:
            state = (self.done, self.tickets, self.control, job, self.n_ctas, self.limit_ns)
            wait_kernel[(1,)](*state, LANES=max(32, next_power_of_two(self.n_ctas)), CLOCK=True, num_warps=1)

    def check(self) -> None:
        """Raise TimeoutError if a wait gave up; costs a read of host memory, no synchronisation."""
        if self.on_gpu and int(self.control[LATE]):
            job = int(self.control[LATE]) - 1
            raise TimeoutError(
                f"job {job} was not answered within {self.limit_ns / 1e9:g} s, so its slots hold old blocks; "
                "call start() before ringing, raise idle_s, and discard this step"
            )

    def stop(self) -> None:
        """Let the CTAs leave after the jobs that were rung; wait until they have."""
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()  # bells that are enqueued ring first; waits are bounded
            self.control[STOP] = 1
            self.stream.synchronize()

    def __enter__(self) -> ResidentWorker:
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()
        if exception[0] is None:
            self.check()
