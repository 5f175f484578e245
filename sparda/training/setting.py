"""A run's model, text and validation, made from the options of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparda.models import load
from sparda.spec import Sparsity
from sparda.training import data
from sparda.training.data import Sequences
from sparda.training.plan import Plan
from sparda.training.validate import Validation


@dataclass(frozen=True)
class Setting:
    """What a ``Run`` needs besides its plan."""

    model: Any
    train: Sequences
    held_out: Sequences
    validation: Validation
    accelerator: Any


def prepare(options: argparse.Namespace, plan: Plan, budgets: Sequence[Sparsity]) -> Setting:
    """Load and check everything before anything is computed; bf16 on a GPU, float32 elsewhere."""
    from accelerate import Accelerator

    data.check_apart(options.text, options.held_out)
    accelerator = Accelerator()
    on_gpu = accelerator.device.type == "cuda"
    model, tokenizer = load.load(
        options.model, device=accelerator.device, dtype=torch.bfloat16 if on_gpu else torch.float32
    )
    vocab = model.get_input_embeddings().num_embeddings
    train = data.read(options.text, tokenizer, vocab, plan.length, plan.rounds * plan.sequences)
    held_out = data.read(options.held_out, tokenizer, vocab, plan.length, options.validate_on)
    tokens = torch.from_numpy(held_out.take(range(min(options.validate_on, len(held_out)))))
    at = torch.linspace(plan.length // 4, plan.length - 1, min(256, plan.length // 2)).long()
    return Setting(model, train, held_out, Validation(model, tokens, at, budgets), accelerator)
