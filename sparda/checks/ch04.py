"""Checks of chapter 04: write the gather, mend the schedule, choose the CTAs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from sparda.checks import Random, Verdict, checker
from sparda.kernels import gather_misses
from sparda.kernels.gather_misses import gather_misses_reference
from sparda.linkmodel import LinkModel
from sparda.simulate import LayerCosts, Task, decode_step, makespan, races, run

LINK = LinkModel(
    peak=45.0,
    per_cta=7.0,
    idle_peak=51.0,
    idle_per_cta=16.0,
    sharpness=4.0,
    base=0.05,
    per_cta_slowdown=0.005,
)
COSTS = LayerCosts(prep=20, attention=25, rest=140, copy=200, start=3)
LAYERS = 5


def _misses(draw: Random, count: int) -> tuple[Tensor, ...]:
    """A host store [1, 2, 9, 2, 4, 3], slots [1, 2, 8, 2, 4, 3], and padded lists of ``count`` misses."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    host = torch.randn(1, 2, 9, 2, 4, 3, generator=generator)  # [B, H, N, 2, S, d]
    padding = [-1] * (14 - count)
    src, dst = (
        torch.tensor(draw.sample(range(n), count) + padding) for n in (18, 15)
    )  # the last slot is on no list
    return host, torch.full((1, 2, 8, 2, 4, 3), float("nan")), src, dst, torch.tensor([count])


def _wrong_slot(student, host: Tensor, slots: Tensor, src: Tensor, dst: Tensor, count: Tensor) -> str:
    """The first slot that the student's gather leaves wrong, in words; empty if all are right."""
    want = gather_misses_reference(host, slots.clone(), src, dst, count).flatten(0, 2)
    returned = student(host, slots, src.int(), dst.int(), count.int())
    if isinstance(returned, Tensor) and returned.data_ptr() != slots.data_ptr():
        return "write into the slots that you were given and return them, not a copy"
    for slot, (got, right) in enumerate(zip(slots.flatten(0, 2), want, strict=True)):
        if torch.equal(got.nan_to_num(99.0), right.nan_to_num(99.0)):
            continue
        if slot not in dst[: int(count)].tolist():
            return f"slot {slot} is on no list, but it changed; {int(count)} entries are valid"
        part = "keys" if not torch.equal(got[0], right[0]) else "values"
        return f"the {part} of slot {slot} are not those of run {src[dst == slot].item()}"
    return ""


def _python_steps(call: Callable) -> int:
    """Lines of Python that a call runs, in itself and in all that it calls: a loop runs some each time."""
    steps = 0

    def count(frame, event, _):
        nonlocal steps
        steps += event in ("call", "line")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


@checker(without=[gather_misses, gather_misses_reference])
def ch04_ex1(student) -> Verdict:
    """student(host, slots, src, dst, count) fills slots in place, as gather_misses does, without a loop."""
    draw = Random()
    few, many = (_misses(draw, count) for count in (3, 12))
    for given in (few, many):
        if hint := _wrong_slot(student, *given):
            return Verdict("not yet", hint)
    short, long = (_python_steps(lambda given=given: student(*given)) for given in (few, many))
    if long > short:
        return Verdict(
            "not yet", "right, but a loop: it runs more lines for 12 misses than for 3; index once"
        )
    return Verdict("ok")


def broken_step(costs: LayerCosts = COSTS, n_layers: int = LAYERS) -> list[Task]:
    """A step with lookahead whose layers share one miss list: every prep writes it, every copy reads it."""
    return [
        replace(
            task,
            reads=tuple("list" if name.startswith("list") else name for name in task.reads),
            writes=tuple("list" if name.startswith("list") else name for name in task.writes),
        )
        for task in decode_step(costs, n_layers)
    ]


def _list_of(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.startswith("list")]


def _wrong_step(student, costs: LayerCosts, n_layers: int) -> str:
    """What is wrong with a mended step, in words; empty if nothing is."""
    tasks = broken_step(costs, n_layers)
    mended = list(student(list(tasks)))
    if [(t.name, t.stream, t.us) for t in mended] != [(t.name, t.stream, t.us) for t in tasks]:
        return "keep the tasks, their streams and their times; change buffers or waits"
    if any(
        len(a.reads) != len(b.reads) or len(a.writes) != len(b.writes)
        for a, b in zip(tasks, mended, strict=True)
    ):
        return "a task still reads and writes as many buffers; rename them, or add waits"
    by_name = {task.name: task for task in mended}
    for layer in range(1, n_layers):
        if _list_of(by_name[f"prep {layer}"].writes) != _list_of(by_name[f"copy {layer}"].reads):
            return f"copy {layer} does not read the list that prep {layer} wrote"
    if found := races(mended):
        return f"{len(found)} races are left, the first: {found[0]}"
    took, best = makespan(run(mended)), makespan(run(decode_step(costs, n_layers)))
    late = took > 1.01 * best
    return f"no race, but {took:.0f} us instead of {best:.0f}: a second list costs no time" if late else ""


@checker(without=[decode_step])
def ch04_ex2(student) -> Verdict:
    """student(tasks) returns the tasks without a race, and nearly as fast as before."""
    draw = Random()
    fresh = LayerCosts(
        prep=draw.uniform(10, 30), attention=draw.uniform(20, 40), rest=draw.uniform(100, 160),
        copy=draw.uniform(150, 250), start=draw.uniform(1, 5),
    )  # fmt: skip
    hint = _wrong_step(student, COSTS, LAYERS) or _wrong_step(student, fresh, draw.randrange(4, 9))
    return Verdict("not yet", hint) if hint else Verdict("ok")


@checker(without=[LinkModel.best_ctas])
def ch04_ex3(student) -> Verdict:
    """student(link, n_bytes, compute_us) returns a CTA count whose layer is within 1 % of the best."""
    draw = Random()
    slow, quick = (replace(LINK, per_cta=draw.uniform(*rate)) for rate in ((2, 2.5), (14, 20)))
    for link, n_bytes, compute_us in (
        (LINK, 7e5, 170.0),
        (LINK, 6e6, 190.0),
        (LINK, 5e7, 300.0),
        *((link, draw.uniform(1.8e7, 2.2e7), draw.uniform(560, 640)) for link in (slow, quick)),
    ):
        count = student(link, n_bytes, compute_us)
        if not isinstance(count, int) or not 1 <= count <= 132:
            return Verdict("not yet", f"return a whole number of CTAs from 1 to 132, got {count!r}")
        times = {c: link.layer(n_ctas=c, n_bytes=n_bytes, compute_us=compute_us).total for c in range(1, 133)}
        best = min(times, key=times.__getitem__)
        if times[count] > 1.01 * times[best]:
            return Verdict(
                "not yet",
                f"{n_bytes / 1e6:g} MB beside {compute_us:g} us, {link.per_cta:.3g} GB/s a CTA: {count} CTAs "
                f"take {times[count]:.0f} us; {'fewer' if best < count else 'more'} take {times[best]:.0f}",
            )
    return Verdict("ok")
