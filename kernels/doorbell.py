"""Doorbells: how kernels of one stream wake CTAs that already run, and wait for their answer.

    ring    queue[ticket] = job, then head := ticket + 1   with release
    wait    until every CTA's ``done``, read with acquire, has reached the job's ticket

Tickets count bells from 0 and are compared by their difference, so wrapping around at 2**31 does no harm.
Every wait is bounded; one that gives up leaves job + 1 in word LATE of the control page, which is host memory
that both sides see, and all later waits give up at their first look at it.

CLOCK False is for the interpreter, which knows no clock: there a poll counts as a nanosecond.
"""

from __future__ import annotations

from sparda.kernels.backend import tl, triton

LATE, STOP = 0, 1  # words of the control page


@triton.jit
def now_ns():
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def nap(CLOCK: tl.constexpr):
    if CLOCK:  # leave the issue slots to compute between two polls
        tl.inline_asm_elementwise(
            "nanosleep.u32 64; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def elapsed(since, polls, CLOCK: tl.constexpr):
    """Nanoseconds since the last bell; without a clock (the interpreter) a poll counts as one."""
    if CLOCK:
        return now_ns() - since
    return polls.to(tl.int64)


@triton.jit
def ring_kernel(queue, head, tickets, job, QUEUE: tl.constexpr):
    """Put a job into the queue and publish it; one producer, in stream order."""
    ticket = tl.load(head)
    tl.store(queue + (ticket & (QUEUE - 1)), job)
    tl.store(tickets + job, ticket + 1)
    tl.debug_barrier()
    tl.atomic_xchg(head, ticket + 1, sem="release", scope="gpu")


@triton.jit
def wait_kernel(done, tickets, control, job, n_ctas, limit_ns, LANES: tl.constexpr, CLOCK: tl.constexpr):
    """Return when every CTA has answered the job's last bell, or mark it late after limit_ns."""
    want = tl.load(tickets + job)
    cta = tl.arange(0, LANES)  # all answers in one look
    since = now_ns() if CLOCK else want.to(tl.int64)
    polls = want * 0
    open_ = polls == 0
    while open_:
        got = tl.atomic_add(done + cta, 0, mask=cta < n_ctas, sem="acquire", scope="gpu")
        if tl.min(tl.where(cta < n_ctas, got - want, 0)) >= 0:
            open_ = polls < 0
        else:
            polls += 1
            nap(CLOCK)
            expired = elapsed(since, polls, CLOCK) > limit_ns
            if polls % 64 == 0:  # the control page is across the link: look rarely
                expired = expired | (tl.load(control, volatile=True) != 0)
            if expired:
                tl.store(control, job + 1)
                open_ = polls < 0
