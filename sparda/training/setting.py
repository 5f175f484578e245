"""A run's model, text and validation, made from the options of the command line, which are checked first."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparda.models import load
from sparda.models.layers import context_limit
from sparda.spec import Sparsity
from sparda.training import data
from sparda.training.data import Sequences
from sparda.training.plan import Plan, weights_file
from sparda.training.validate import Validation


@dataclass(frozen=True)
class Setting:
    """What a ``Run`` needs besides its plan."""

    model: Any
    train: Sequences
    held_out: Sequences
    validation: Validation
    accelerator: Any


def problems(options: argparse.Namespace) -> Iterator[str]:
    """What is wrong with options beside the plan, a sentence each, before anything is loaded."""
    try:
        limit = load.context_of(load.find(options.model))
        if limit is not None and options.length > limit:
            yield _too_long(options, limit)
    except (KeyError, FileNotFoundError, ValueError) as error:
        yield str(error.args[0])
    for sources in (options.text, options.held_out):
        yield from map(str, data.problems(sources, options.length))
    try:
        data.check_apart(options.text, options.held_out)
    except ValueError as error:
        yield str(error)
    if options.minutes is not None and not 0 <= options.minutes < math.inf:
        yield f"--minutes must be a number from 0 on, got {options.minutes}"
    yield from _start_problems(options)


def _start_problems(options: argparse.Namespace) -> Iterator[str]:
    folder = Plan.folder_of(options.init)
    if folder is None:
        return
    files = [folder / weights_file(seed, options.seeds) for seed in options.seeds]
    if folder.resolve() == options.out.resolve():
        yield f"--init and --out are one folder, {folder}, and would replace its weights; change --out"
    elif missing := [file for file in files if not file.is_file()]:
        yield f"--init is query, random or a folder that `sparda train` has written; there is no {missing[0]}"


def _too_long(options: argparse.Namespace, limit: int) -> str:
    return f"--length {options.length}: {options.model} reads {limit} tokens at most; lower --length"


def prepare(options: argparse.Namespace, plan: Plan, budgets: Sequence[Sparsity]) -> Setting:
    """Load everything; bf16 on a GPU, float32 elsewhere. ValueError: ``problems``, or what shows only now."""
    from accelerate import Accelerator

    if found := list(problems(options)):
        raise ValueError("\n".join(found))
    accelerator = Accelerator()
    on_gpu = accelerator.device.type == "cuda"
    model, tokenizer = load.load(
        options.model, device=accelerator.device, dtype=torch.bfloat16 if on_gpu else torch.float32
    )
    if (limit := context_limit(model.config)) is not None and plan.length > limit:
        raise ValueError(_too_long(options, limit))
    vocab = model.get_input_embeddings().num_embeddings
    train = data.read(options.text, tokenizer, vocab, plan.length, plan.rounds * plan.sequences)
    held_out = data.read(options.held_out, tokenizer, vocab, plan.length, options.validate_on)
    tokens = torch.from_numpy(held_out.take(range(min(options.validate_on, len(held_out)))))
    at = torch.linspace(plan.length // 4, plan.length - 1, min(256, plan.length // 2)).long()
    validation = Validation(model, tokens, at, budgets, source=held_out.source)
    return Setting(model, train, held_out, validation, accelerator)
