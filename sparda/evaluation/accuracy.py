"""Answers of tasks, method by method on the same prompts, through the engine.

A cell is (method, task, context, k). Its prompts are drawn by seed alone, so that every method gets the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from sparda import tasks
from sparda.evaluation.methods import place, rule
from sparda.evaluation.statistics import paired_interval, sign_test, wilson
from sparda.measure.tables import Table
from sparda.spec import Sparsity
from sparda.tasks import Sample

_CELL = ("model", "method", "task", "context", "budget_blocks", "seed")
_INTERVAL = ("ci_low", "ci_high")
_RUN = ("date", "commit")
ACCURACY = Table("accuracy", (*_CELL[:-1], "n", "correct", "accuracy", *_INTERVAL, "seed", *_RUN), _CELL)
SAMPLES = Table("samples", (*_CELL, "of", "right", *_RUN), _CELL)
_PAIR = ("model", "method", "baseline", *_CELL[2:])
_COUNTED = ("better", "worse", "p_value")
PAIRS = Table("pairs", (*_PAIR[:-1], "n", "difference", *_INTERVAL, *_COUNTED, "seed", *_RUN), _PAIR)
COUNTS = 0.2  # a task counts where dense scores more
AVERAGE = "average"
_SEEDS = 1_000_000  # between the samples of two seeds


@dataclass
class Prompts:
    """Samples of a task and context, drawn once and shared by all methods."""

    tokenizer: Any
    n: int
    seed: int = 0
    _drawn: dict[tuple[str, int], list[Future[Sample]]] = field(default_factory=dict, repr=False)
    _pool: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor, repr=False)

    def prepare(self, names: Sequence[str], context: int) -> None:
        """Draw in the background: tokenizers work outside Python's lock."""
        first = self.seed * _SEEDS
        for task in names:
            if (task, context) not in self._drawn:
                self._drawn[task, context] = [
                    self._pool.submit(tasks.make, task, self.tokenizer, context, seed=first + i)
                    for i in range(self.n)
                ]

    def of(self, task: str, context: int) -> list[Sample]:
        self.prepare([task], context)
        return [sample.result() for sample in self._drawn[task, context]]


@dataclass(frozen=True)
class Result:
    """One cell: how many of each sample's answers were right, of how many; and what was said."""

    method: str
    task: str
    context: int
    budget_blocks: int
    right: list[int]
    of: int
    replies: list[str]
    seconds: float

    @property
    def shares(self) -> list[float]:
        return [right / self.of for right in self.right]

    def rows(self, model: str, seed: int, run: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """The cell's row of accuracy.csv and of samples.csv."""
        cell = {"model": model, "method": self.method, "task": self.task, "context": self.context}
        cell |= {"budget_blocks": self.budget_blocks, "seed": seed, **run}
        n, correct = len(self.right), sum(self.shares)
        low, high = wilson(min(correct, n), n)
        row = ACCURACY.row(**cell, n=n, correct=correct, accuracy=correct / n, ci_low=low, ci_high=high)
        return row, SAMPLES.row(**cell, of=self.of, right=" ".join(map(str, self.right)))


@dataclass(frozen=True)
class Job:
    """Cells of one method, context and k: the tasks ``names``, through one engine."""

    method: str
    sparsity: Sparsity
    context: int
    names: tuple[str, ...]


def measure(
    work: Callable[[Sequence[Job]], Iterator[Result]], *, methods: Sequence[str], names: Sequence[str],
    contexts: Sequence[int], shares: Sequence[float], all_tasks: bool = False,
    done: Callable[[Result], None],
) -> None:  # fmt: skip
    """Evaluate; ``work`` does the jobs (``sparda.evaluation.jobs``), ``done`` gets each result as it comes.

    Dense, where it is asked for, comes first; tasks where it scores no more than ``COUNTS`` are then left
    out, unless ``all_tasks``. KeyError: an unknown task.
    """
    check_tasks(names)
    jobs = [
        Job(method, sparsity, context, tuple(names))
        for context in contexts
        for method, sparsity in plan(methods, context, shares)
    ]
    solved = {(context, name) for context in contexts for name in names}
    for result in work([job for job in jobs if job.method == "dense"]):
        done(result)
        if not all_tasks and sum(result.shares) <= COUNTS * len(result.right):
            solved.discard((result.context, result.task))
    others = [
        replace(job, names=tuple(name for name in names if (job.context, name) in solved))
        for job in jobs
        if job.method != "dense"
    ]
    for result in work([job for job in others if job.names]):
        done(result)


def check_tasks(names: Iterable[str]) -> None:
    """KeyError: a task that there is not."""
    if unknown := sorted(set(names) - set(tasks.TASKS)):
        raise KeyError(f"unknown task {unknown[0]!r}; choose from {', '.join(tasks.TASKS)}")


def plan(methods: Iterable[str], context: int, shares: Sequence[float]) -> list[tuple[str, Sparsity]]:
    """Which methods run with which rule: dense once, with k = all blocks, then the others at every k.

    Shares whose k is too small for the context are left out; ValueError if none fits.
    """
    rules, problem = [], None
    for share in shares:
        try:
            rules.append(rule(context, share))
        except ValueError as error:
            problem = error
    if not rules and problem:
        raise problem
    ordered = sorted(methods, key=place)
    every = Sparsity(ceil(context / 64), init_blocks=0, local_blocks=0)
    dense = [("dense", every)] if "dense" in ordered else []
    return dense + [(m, r) for r in rules for m in ordered if m != "dense"]


def pairs(samples: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Rows of pairs.csv from rows of samples.csv: every method against those before it (``methods.place``).

    Dense has one k and is compared at all of them. Of cells of unequal size the first samples are compared,
    which are the same. The average is over the tasks where dense counts, or all where there is no dense.
    """
    cells = {tuple(row[c] for c in _CELL): row for row in samples}
    found: dict[tuple, dict[str, list[float]]] = {}
    dense = {(m, t, c, s): row for (m, method, t, c, _, s), row in cells.items() if method == "dense"}
    order = sorted({cell[1] for cell in cells}, key=place)
    for (model, method, task, context, k, seed), row in cells.items():
        for baseline in order[: order.index(method)]:
            other = cells.get((model, baseline, task, context, k, seed))
            if baseline == "dense":
                other = dense.get((model, task, context, seed))
            if other is None:
                continue
            group = found.setdefault((model, method, baseline, context, k, seed), {})
            group[task] = [a - b for a, b in zip(_shares(row), _shares(other), strict=False)]
    return [row for key, group in found.items() for row in _pair_rows(key, group, cells, dense)]


def _shares(row: Mapping[str, str]) -> list[float]:
    return [int(right) / int(row["of"]) for right in row["right"].split()]


def _pair_rows(key: tuple, group: dict[str, list[float]], cells: Mapping, dense: Mapping) -> Iterator[dict]:
    model, method, baseline, context, k, seed = key
    cell = {"model": model, "method": method, "baseline": baseline, "context": context}
    cell |= {"budget_blocks": k, "seed": seed}
    counted = [t for t in group if _counts(dense.get((model, t, context, seed)))]
    parts = {task: [group[task]] for task in group} | (
        {AVERAGE: [group[t] for t in counted]} if counted else {}
    )
    for task, differences in parts.items():
        flat = [d for part in differences for d in part]
        mean, low, high = paired_interval(differences)
        some = task if task != AVERAGE else counted[0]
        row = cells[model, method, some, context, k, seed]
        yield PAIRS.row(
            **cell, task=task, n=len(flat), difference=mean, ci_low=low, ci_high=high,
            better=sum(d > 0 for d in flat), worse=sum(d < 0 for d in flat), p_value=sign_test(flat),
            date=row["date"], commit=row["commit"],
        )  # fmt: skip


def _counts(dense: Mapping[str, str] | None) -> bool:
    return dense is None or sum(shares := _shares(dense)) > COUNTS * len(shares)
