"""Each checker of chapter 04 against its stub, its solution and wrong answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparda.checks.ch04 import ch04_ex1, ch04_ex2, ch04_ex3
from sparda.simulate import COMPUTE


def stub(*_args):
    return ...


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


CASES = [
    (ch04_ex1, gather, [gather_all_entries, gather_keys_only, gather_into_a_copy]),
    (ch04_ex2, two_lists, [wait_everywhere, forget_the_reads, one_stream, lambda tasks: tasks]),
    (ch04_ex3, best_count, [lambda *_: 1, lambda *_: 132, lambda *_: 0, lambda *_: 8.0]),
]


@pytest.mark.parametrize(("check", "solution", "wrong"), CASES)
def test_a_stub_is_to_do_the_solution_is_ok_and_wrong_answers_get_a_hint(
    check, solution, wrong, answers_back
):
    answers_back(check, stub, solution, wrong)
