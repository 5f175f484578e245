"""Who does the jobs of an evaluation: this process, or several that share a device.

A prompt of a small model does not fill a GPU, so that several processes get through more of them together.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from signal import SIG_IGN, SIGINT, signal
from time import perf_counter
from typing import Any

import torch

from sparda.errors import sentence
from sparda.evaluation.accuracy import Job, Prompts, Result
from sparda.evaluation.subject import Subject
from sparda.tasks import Sample


def replies(engine: Any, tokenizer: Any, samples: Sequence[Sample], at_once: int) -> list[str]:
    """Greedy replies, in batches of equal size, so that one session serves them all.

    They end where the model says; a model that names no end token ends where its tokenizer does.
    """
    end = tokenizer.eos_token_id
    stop = None if engine.ends or end is None else [end]
    batch = ceil(len(samples) / ceil(len(samples) / at_once))
    said: list[str] = []
    for first in range(0, len(samples), batch):
        group = list(samples[first : first + batch])
        full = group + group[:1] * (batch - len(group))
        prompts, most = [s.input_ids for s in full], group[0].max_new_tokens
        made = engine.generate(prompts, max_new_tokens=most, stop=stop)
        said += [tokenizer.decode(t, skip_special_tokens=True) for t in made.tokens[: len(group)]]
    return said


@dataclass
class Here:
    """One job after the other, in this process."""

    subject: Subject
    prompts: Prompts
    at_once: int

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Result]:
        for job in jobs:
            self.prompts.prepare(job.names, job.context)
            yield from self.do(job)

    def do(self, job: Job) -> Iterator[Result]:
        """Answer every task of a job through one engine."""
        from sparda.engine import Engine

        who, k = self.subject, job.sparsity.budget_blocks
        engine = Engine(
            who.model, selector=who.selector(job.method), sparsity=job.sparsity, cache="full",
            max_tokens=job.context,
        )  # fmt: skip
        try:
            for name in job.names:
                samples, start = self.prompts.of(name, job.context), perf_counter()
                said = replies(engine, who.tokenizer, samples, self.at_once)
                right = [s.right(reply) for s, reply in zip(samples, said, strict=True)]
                took = perf_counter() - start
                yield Result(job.method, name, job.context, k, right, len(samples[0].answers), said, took)
        finally:
            engine.close()


@dataclass(frozen=True)
class Processes:
    """Jobs in ``count`` processes, each with a model of its own; results come task by task, in any order.

    options, device : of ``sparda eval accuracy``, from which every process makes its subject
    """

    options: Namespace
    device: torch.device
    count: int

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Result]:
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from multiprocessing import active_children, get_context

        each = [replace(job, names=(name,)) for job in jobs for name in job.names]
        count, enter = min(self.count, len(each)), (self.options, self.device)
        if count == 0:
            return
        with ProcessPoolExecutor(count, get_context("spawn"), _enter, enter) as pool:
            try:
                for future in as_completed([pool.submit(_do, job) for job in each]):
                    if isinstance(found := future.result(), Exception):
                        raise found
                    yield from found
            except BaseException:  # Ctrl-C, or one that failed: the others would go on for minutes
                pool.shutdown(wait=False, cancel_futures=True)
                for child in active_children():
                    child.terminate()
                raise


_HERE: list[Here] = []  # of a process that ``Processes`` has started


def _enter(options: Namespace, device: torch.device) -> None:
    signal(SIGINT, SIG_IGN)  # Ctrl-C is the parent's
    _HERE.append(here(options, device))


def _do(job: Job) -> list[Result] | Exception:
    """The results, or an error that is to be told in one sentence; a bug's comes with its traceback."""
    try:
        return list(_HERE[0]([job]))
    except Exception as error:
        if sentence(error) is None:
            raise
        return error


def here(options: Namespace, device: torch.device) -> Here:
    """What the options of ``sparda eval accuracy`` ask for, in this process."""
    from sparda.evaluation.runs import subject

    who = subject(options, device)
    return Here(who, Prompts(who.tokenizer, options.n, options.seed), options.batch)
