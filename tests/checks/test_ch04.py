"""Wrong answers of chapter 04 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

from dataclasses import replace

from sparda.simulate import COMPUTE


def gather(host, slots, src, dst, count):
    run, n = host.shape[3:], int(count)
    slots.view(-1, *run)[dst[:n].long()] = host.view(-1, *run)[src[:n].long()]
    return slots


def gather_all_entries(host, slots, src, dst, count):
    slots.view(-1, *host.shape[3:])[dst.long()] = host.view(-1, *host.shape[3:])[src.long()]
    return slots


def gather_keys_only(host, slots, src, dst, count):
    n = int(count)
    slots.view(-1, *host.shape[3:])[dst[:n].long(), 0] = host.view(-1, *host.shape[3:])[src[:n].long(), 0]
    return slots


def gather_into_a_copy(host, slots, src, dst, count):
    return gather(host, slots.clone(), src, dst, count)


def two_lists(tasks):
    def rename(names, layer):
        return tuple(f"list {layer % 2}" if name == "list" else name for name in names)

    layers = [int(task.name.split()[1]) for task in tasks]
    return [
        replace(t, reads=rename(t.reads, layer), writes=rename(t.writes, layer))
        for t, layer in zip(tasks, layers, strict=True)
    ]


def wait_everywhere(tasks):
    copies = {task.name for task in tasks if task.name.startswith("copy")}

    def waits(task):
        before = f"copy {int(task.name.split()[1]) - 1}"
        return (*task.after, before) if task.name.startswith("prep") and before in copies else task.after

    return [replace(task, after=waits(task)) for task in tasks]


def forget_the_reads(tasks):
    return [replace(task, reads=()) for task in tasks]


def one_stream(tasks):
    return [replace(task, stream=COMPUTE) for task in tasks]


def best_count(link, n_bytes, compute_us):
    return link.best_ctas(n_bytes=n_bytes, compute_us=compute_us, counts=range(1, 133))


def over_all_entries(host, slots, src, dst, count):
    for i in range(len(src)):
        if i < int(count):
            slots.view(-1, *host.shape[3:])[int(dst[i])] = host.view(-1, *host.shape[3:])[int(src[i])]
    return slots


def by_comprehension(host, slots, src, dst, count):
    runs, there = host.view(-1, *host.shape[3:]), slots.view(-1, *host.shape[3:])
    [there[d].copy_(runs[s]) for s, d in zip(src[: int(count)], dst[: int(count)], strict=True)]
    return slots


def through_numpy(host, slots, src, dst, count):
    runs, there = host.numpy().reshape(18, 2, 4, 3), slots.numpy().reshape(16, 2, 4, 3)
    i = 0
    while i < int(count):
        there[dst[i]], i = runs[src[i]], i + 1
    return slots


def rename_without_copying(tasks):
    return [replace(task, reads=("list 0",)) if task.stream != COMPUTE else task for task in tasks]


WRONG = [
    ("ch04_ex1", gather_all_entries, "is on no list, but it changed"),
    ("ch04_ex1", gather_keys_only, "the values of slot"),
    ("ch04_ex1", gather_into_a_copy, "not a copy"),
    ("ch04_ex1", over_all_entries, "a loop"),
    ("ch04_ex1", by_comprehension, "a loop"),
    ("ch04_ex1", through_numpy, "a loop"),
    ("ch04_ex2", wait_everywhere, "a second list costs no time"),
    ("ch04_ex2", forget_the_reads, "still reads and writes as many buffers"),
    ("ch04_ex2", one_stream, "keep the tasks, their streams"),
    ("ch04_ex2", lambda tasks: tasks, "races are left, the first: "),
    ("ch04_ex2", rename_without_copying, "does not read the list that prep 1 wrote"),
    ("ch04_ex3", lambda *_: 1, ": 1 CTAs take"),
    ("ch04_ex3", lambda *_: 132, "132 CTAs take"),
    ("ch04_ex3", lambda *_: 0, "from 1 to 132, got 0"),
    ("ch04_ex3", lambda *_: 8.0, "from 1 to 132, got 8.0"),
    ("ch04_ex3", lambda *_: float("nan"), "got nan"),
]
