"""A tiny event simulator: streams of tasks with waits between them, when each runs, and where they race.

    tasks  -> run()    start, end and idle time of every task
    tasks  -> races()  pairs that touch one buffer, one of them writing, with no order between them

A stream runs its tasks in list order, one at a time; ``after`` names tasks of any stream that must end first
(an event, a doorbell). That is all that orders tasks on a GPU too, so a race found here is a race there, and
no GPU is needed to find it: the simulator looks at the order that is *promised*, not at one lucky run.

>>> tasks = [Task("copy", "link", 30, writes=("slots",)), Task("attend", "compute", 10, reads=("slots",))]
>>> [str(race) for race in races(tasks)]
['copy and attend both touch slots, in no order']
>>> from dataclasses import replace
>>> fixed = [tasks[0], replace(tasks[1], after=("copy",))]
>>> races(fixed), [span.waited for span in run(fixed)]
([], [0.0, 30.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

COMPUTE, LINK = "compute", "link"


@dataclass(frozen=True)
class Task:
    """Work on one stream. us: microseconds when nothing disturbs it."""

    name: str
    stream: str
    us: float
    after: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Span:
    """When a task ran, in us; ``waited``: how long its stream stood idle before it."""

    task: Task
    start: float
    end: float
    waited: float


@dataclass(frozen=True)
class Race:
    """Two tasks, in list order, that conflict over a buffer."""

    first: str
    second: str
    buffer: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second} both touch {self.buffer}, in no order"


def _check(tasks: Sequence[Task]) -> None:
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    unknown = sorted({wait for task in tasks for wait in task.after} - set(names))
    if twice:
        raise ValueError(f"two tasks are called {', '.join(twice)}; give each its own name")
    if unknown:
        raise ValueError(f"nothing is called {', '.join(unknown)}; a task can only wait for a listed one")


def _paces(active: Sequence[Task], slowdown: float, link_slowdown: float) -> dict[str, float]:
    """Time that each running task takes for a microsecond of its work: what runs beside it decides."""
    streams = {task.stream for task in active}
    beside = {
        COMPUTE: slowdown if LINK in streams else 1.0,
        LINK: link_slowdown if COMPUTE in streams else 1.0,
    }
    return {task.name: beside.get(task.stream, 1.0) for task in active}


def run(tasks: Sequence[Task], *, slowdown: float = 1.0, link_slowdown: float = 1.0) -> list[Span]:
    """Simulate; spans in the order of the tasks.

    slowdown      : while the link is busy, compute tasks take this many times as long (>= 1)
    link_slowdown : while compute runs, copies take this many times as long; while it stalls, they do not

    Raises ValueError for unknown or doubled names, and when tasks wait for each other in a circle.
    """
    _check(tasks)
    queues = {stream: [t for t in tasks if t.stream == stream] for stream in {t.stream: 0 for t in tasks}}
    idle_since = dict.fromkeys(queues, 0.0)
    left: dict[str, float] = {}  # work left of the tasks that run now
    started: dict[str, float] = {}
    spans: dict[str, Span] = {}
    now = 0.0
    while any(queues.values()):
        heads = [queue[0] for queue in queues.values() if queue]
        for task in heads:
            if task.name not in started and all(name in spans for name in task.after):
                started[task.name], left[task.name] = now, task.us
        active = [task for task in heads if task.name in started]
        if not active:
            raise ValueError(f"deadlock: {', '.join(t.name for t in heads)} wait for each other")
        pace = _paces(active, slowdown, link_slowdown)
        step = min(left[t.name] * pace[t.name] for t in active)
        now += step
        for task in active:
            left[task.name] -= step / pace[task.name]
            if left[task.name] <= 1e-9:
                waited = started[task.name] - idle_since[task.stream]
                spans[task.name] = Span(task, started[task.name], now, waited)
                idle_since[task.stream] = now
                queues[task.stream].pop(0)
    return [spans[task.name] for task in tasks]


def predecessors(tasks: Sequence[Task]) -> dict[str, set[str]]:
    """For each task, all tasks that are promised to end before it begins."""
    _check(tasks)
    before: dict[str, set[str]] = {task.name: set(task.after) for task in tasks}
    last: dict[str, str] = {}
    for task in tasks:
        if task.stream in last:
            before[task.name].add(last[task.stream])
        last[task.stream] = task.name
    grown = True
    while grown:  # a wait may name a task further down the list
        grown = False
        for names in before.values():
            more = set().union(*(before[name] for name in names)) - names if names else set()
            names |= more
            grown = grown or bool(more)
    return before


def races(tasks: Sequence[Task]) -> list[Race]:
    """Every unordered conflict: one buffer, two tasks, at least one of them writing."""
    before = predecessors(tasks)
    found = []
    for a, b in combinations(tasks, 2):
        if a.name in before[b.name] or b.name in before[a.name]:
            continue
        shared = set(a.writes) & set(b.reads + b.writes) | set(b.writes) & set(a.reads)
        found += [Race(a.name, b.name, buffer) for buffer in sorted(shared)]
    return found


def makespan(spans: Sequence[Span]) -> float:
    """Microseconds from the first start to the last end."""
    return max(span.end for span in spans)


def stall(spans: Sequence[Span]) -> float:
    """Microseconds that compute stood idle, waiting for blocks."""
    return sum(span.waited for span in spans if span.task.stream == COMPUTE)


@dataclass(frozen=True)
class LayerCosts:
    """Times of one layer of a decode step, in us, each alone on the GPU."""

    prep: float  # score, pool, top-k, difference
    attention: float
    rest: float  # projections and FFN
    copy: float  # the misses over the link
    start: float = 0.0  # a launch, a bell or a driver call before the first byte; it stretches with the copy


TRANSPORTS = ("none", "demand", "lookahead")


def decode_step(costs: LayerCosts, n_layers: int, transport: str = "lookahead") -> list[Task]:
    """The tasks of one decode step: spec of the order, with what each reads and writes.

    "lookahead": layer l chooses and fetches for layer l + 1 before its own attention (SparDA).
    "demand": each layer chooses for itself and waits. "none": all is resident. Layer 0 never copies.
    """
    if transport not in TRANSPORTS:
        raise ValueError(f"transport is one of {', '.join(TRANSPORTS)}, got {transport!r}")
    tasks: list[Task] = []

    def prepare(layer: int) -> None:
        tasks.append(Task(f"prep {layer}", COMPUTE, costs.prep, writes=(f"list {layer}",)))
        if transport != "none" and layer > 0:
            about = {"after": (f"prep {layer}",), "reads": (f"list {layer}",), "writes": (f"slots {layer}",)}
            tasks.append(Task(f"copy {layer}", LINK, costs.start + costs.copy, **about))

    for layer in range(n_layers):
        if transport != "lookahead" or layer == 0:
            prepare(layer)
        if transport == "lookahead" and layer + 1 < n_layers:
            prepare(layer + 1)
        wait = () if transport == "none" or layer == 0 else (f"copy {layer}",)
        tasks.append(Task(f"attention {layer}", COMPUTE, costs.attention, wait, reads=(f"slots {layer}",)))
        tasks.append(Task(f"rest {layer}", COMPUTE, costs.rest))
    return tasks
