"""Checks of chapter 04: write the gather, mend the schedule, choose the CTAs."""

from __future__ import annotations

from dataclasses import replace

import torch

from sparda.checks import Verdict, checker
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


@checker
def ch04_ex1(student) -> Verdict:
    """student(host, slots, src, dst, count) fills slots in place, as gather_misses does."""
    generator = torch.Generator().manual_seed(4)
    host = torch.randn(1, 2, 6, 2, 4, 3, generator=generator)  # [B, H, N, 2, S, d]
    slots = torch.full((1, 2, 3, 2, 4, 3), float("nan"))
    src, dst = torch.tensor([9, 2, 7, -1, -1]), torch.tensor([5, 0, 3, -1, -1])
    want = slots.clone()
    want.view(6, 2, 4, 3)[dst[:3]] = host.view(12, 2, 4, 3)[src[:3]]
    returned = student(host, slots, src.int(), dst.int(), torch.tensor([3], dtype=torch.int32))
    if isinstance(returned, torch.Tensor) and returned.data_ptr() != slots.data_ptr():
        return Verdict("not yet", "write into the slots that you were given and return them, not a copy")
    for slot in range(6):
        got, right = slots.view(6, 2, 4, 3)[slot], want.view(6, 2, 4, 3)[slot]
        if torch.equal(got.nan_to_num(99.0), right.nan_to_num(99.0)):
            continue
        if slot not in dst[:3].tolist():
            return Verdict("not yet", f"slot {slot} is on no list, but it changed; 3 entries are valid")
        part = "keys" if not torch.equal(got[0], right[0]) else "values"
        return Verdict("not yet", f"the {part} of slot {slot} are not those of run {src[dst == slot].item()}")
    return Verdict("ok")


def broken_step() -> list[Task]:
    """A step with lookahead whose layers share one miss list: every prep writes it, every copy reads it."""
    return [
        replace(
            task,
            reads=tuple("list" if name.startswith("list") else name for name in task.reads),
            writes=tuple("list" if name.startswith("list") else name for name in task.writes),
        )
        for task in decode_step(COSTS, LAYERS)
    ]


def _list_of(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.startswith("list")]


@checker
def ch04_ex2(student) -> Verdict:
    """student(tasks) returns the tasks without a race, and nearly as fast as before."""
    tasks = broken_step()
    mended = list(student(list(tasks)))
    if [(t.name, t.stream, t.us) for t in mended] != [(t.name, t.stream, t.us) for t in tasks]:
        return Verdict("not yet", "keep the tasks, their streams and their times; change buffers or waits")
    if any(
        len(a.reads) != len(b.reads) or len(a.writes) != len(b.writes)
        for a, b in zip(tasks, mended, strict=True)
    ):
        return Verdict("not yet", "a task still reads and writes as many buffers; rename them, or add waits")
    by_name = {task.name: task for task in mended}
    for layer in range(1, LAYERS):
        if _list_of(by_name[f"prep {layer}"].writes) != _list_of(by_name[f"copy {layer}"].reads):
            return Verdict("not yet", f"copy {layer} does not read the list that prep {layer} wrote")
    found = races(mended)
    if found:
        return Verdict("not yet", f"{len(found)} races are left, the first: {found[0]}")
    took, best = makespan(run(mended)), makespan(run(decode_step(COSTS, LAYERS)))
    if took > 1.01 * best:
        return Verdict(
            "not yet", f"no race, but {took:.0f} us instead of {best:.0f}: a second list costs no time"
        )
    return Verdict("ok")


@checker
def ch04_ex3(student) -> Verdict:
    """student(link, n_bytes, compute_us) returns a CTA count whose layer is within 1 % of the best."""
    for n_bytes, compute_us in ((7e5, 170.0), (6e6, 190.0), (5e7, 300.0)):
        count = student(LINK, n_bytes, compute_us)
        if not isinstance(count, int) or not 1 <= count <= 132:
            return Verdict("not yet", f"return a whole number of CTAs from 1 to 132, got {count!r}")
        times = {c: LINK.layer(n_ctas=c, n_bytes=n_bytes, compute_us=compute_us).total for c in range(1, 133)}
        best = min(times, key=times.__getitem__)
        if times[count] > 1.01 * times[best]:
            return Verdict(
                "not yet",
                f"{n_bytes / 1e6:g} MB beside {compute_us:g} us: {count} CTAs take {times[count]:.0f} us, "
                f"{best} take {times[best]:.0f}",
            )
    return Verdict("ok")
