"""A run's state in one file: float32 master weights, optimiser moments, and the round that comes next.

Everything else of a round (sequences, positions, their order) follows from its number, so that a resumed run
gives bitwise the weights of one that was never stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparda.files import write_tensors
from sparda.training.plan import Plan

if TYPE_CHECKING:
    from sparda.training.loop import Learner

NAME = "checkpoint.safetensors"


def save(folder: Path, plan: Plan, learners: Sequence[Learner], round_: int) -> None:
    """Replace the checkpoint once the new one is whole: a full disk leaves the old one."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in _state(learners).items()}
    about = {"plan": json.dumps(plan.as_dict(), sort_keys=True), "round": str(round_)}
    about["seeds"] = json.dumps([learner.seed for learner in learners])
    about["steps"] = json.dumps([learner.steps for learner in learners])
    write_tensors(folder / NAME, tensors, about)


def load(folder: Path, plan: Plan, learners: Sequence[Learner]) -> int:
    """Fill the learners from a checkpoint; the round that comes next, 0 where there is none.

    ValueError: it belongs to another run.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / NAME
    if not path.is_file():
        return 0
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            _same_run(path, about, plan, learners)
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}); remove it to begin anew") from None
    for learner, steps in zip(learners, json.loads(about["steps"]), strict=True):
        learner.steps = steps
        _prime(learner.optimizer)
    state = _state(learners)
    wrong = sorted(n for n in state if n not in kept or kept[n].shape != state[n].shape)
    if wrong:
        raise ValueError(f"{path} belongs to another model ({wrong[0]} differs); remove it to begin anew")
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(kept[name])
    return int(about["round"])


def _same_run(path: Path, about: dict[str, str], plan: Plan, learners: Sequence[Learner]) -> None:
    before, now = json.loads(about["plan"]), json.loads(json.dumps(plan.as_dict()))
    usual = Plan().as_dict()  # an option that there was not yet had no other value
    differ = sorted(name for name in now if before.get(name, usual[name]) != now[name])
    if json.loads(about["seeds"]) != [learner.seed for learner in learners]:
        differ.append("seeds")
    if differ:
        was = ", ".join(f"{name} was {before.get(name, about.get(name))}" for name in differ)
        raise ValueError(
            f"{path} is of another run ({was}); give the same options to resume it, or another --out"
        )


def _prime(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimiser its state, to be overwritten: a step with gradients of zero makes it."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer.state[p] = {
                "step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)
            }  # fmt: skip


def _state(learners: Sequence[Learner]) -> dict[str, Tensor]:
    state = {}
    for learner in learners:
        named = dict(learner.student.named_parameters())
        state |= {f"{learner.seed}.{name}": p for name, p in named.items()}
        for name, p in named.items():
            for key, value in learner.optimizer.state.get(p, {}).items():
                state[f"{learner.seed}.{name}.{key}"] = value
    return state
