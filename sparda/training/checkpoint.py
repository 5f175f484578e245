"""A run's state in one file: float32 master weights, optimiser moments, and the round that comes next.

Everything else of a round (sequences, positions, their order) follows from its number, so that a resumed run
gives bitwise the weights of one that was never stopped. What decides a round's result stands in the header:
the plan, the seeds, and the ``Origin`` of the run. Another run's checkpoint is refused, even a finished one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparda.files import write_tensors
from sparda.models.fingerprint import fingerprint
from sparda.training.plan import Plan

if TYPE_CHECKING:
    from sparda.training.data import Sequences
    from sparda.training.loop import Learner
    from sparda.training.validate import Validation

NAME = "checkpoint.safetensors"
_NO_MATTER = {  # of a model's configuration: these change nothing of what it computes
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """What a run is made of, beside its plan.

    model, text, held_out, start : a name to print, and a hash; start: of an --init folder's weights
    fingerprint, dtype, config   : of the model; config: what may change its results
    """

    model: tuple[str, str]
    text: tuple[str, str]
    held_out: tuple[str, str]
    start: tuple[str, str]
    fingerprint: str
    dtype: str
    config: dict[str, Any]

    @classmethod
    def of(cls, model: Any, train: Sequences, validation: Validation, start: tuple[str, str]) -> Origin:
        """Hash everything, a large model's weights and a large file by a sample."""
        where = model.name_or_path
        name = Path(where).name if Path(where).is_dir() else where
        config = {k: v for k, v in model.config.to_dict().items() if k not in _NO_MATTER}
        config = {k: v for k, v in config.items() if not k.endswith("_token_id")}
        return cls(
            (name or type(model).__name__, fingerprint(model, exact=True)),
            (f"{len(train)} sequences of {train.source}", train.digest()),
            (f"{len(validation.tokens)} sequences of {validation.source}", validation.digest()),
            start,
            fingerprint(model),
            str(model.dtype).removeprefix("torch."),
            json.loads(json.dumps(config, default=str)),
        )

    def differences(self, before: dict[str, Any]) -> list[str]:
        """What was otherwise in the run ``before``, in words; a setting that it did not know is left out."""
        found = [] if before["dtype"] == self.dtype else [f"dtype was {before['dtype']}"]
        same = bool(found) and before["fingerprint"] == self.fingerprint  # the same weights in another dtype
        words = {"model": "model", "text": "text", "held_out": "held-out text", "start": "--init folder"}
        for part, word in words.items():
            (was, hash_before), (name, hash_now) = before[part], getattr(self, part)
            if hash_before != hash_now and not (part == "model" and same):
                found.append(f"{word} was {was}" + (f", another {word} of that name" if was == name else ""))
        config = before["config"]
        return found + [f"{k} was {config[k]}" for k, v in self.config.items() if config.get(k, v) != v]


def save(folder: Path, plan: Plan, learners: Sequence[Learner], round_: int, origin: Origin) -> None:
    """Replace the checkpoint once the new one is whole: a full disk leaves the old one."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in _state(learners).items()}
    about = {"plan": json.dumps(plan.as_dict(), sort_keys=True), "round": str(round_)}
    about["origin"] = json.dumps(asdict(origin), sort_keys=True)
    about["seeds"] = json.dumps([learner.seed for learner in learners])
    about["steps"] = json.dumps([learner.steps for learner in learners])
    write_tensors(folder / NAME, tensors, about)


def load(folder: Path, plan: Plan, learners: Sequence[Learner], origin: Origin) -> int:
    """Fill the learners from a checkpoint; the round that comes next, 0 where there is none.

    ValueError: it belongs to another run, or does not say what run it belongs to.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / NAME
    if not path.is_file():
        return 0
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            _same_run(path, about, plan, learners, origin)
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


def _same_run(
    path: Path, about: dict[str, str], plan: Plan, learners: Sequence[Learner], origin: Origin
) -> None:
    if "origin" not in about:
        raise ValueError(
            f"{path} does not say which model and text it was trained on, so that nothing can go on from it; "
            "give another --out"
        )
    before, now = json.loads(about["plan"]), json.loads(json.dumps(plan.as_dict()))
    usual = Plan().as_dict()  # an option that there was not yet had no other value
    was = {name: before.get(name, usual[name]) for name in now}
    differ = [f"{name} was {was[name]}" for name in sorted(now) if was[name] != now[name]]
    if json.loads(about["seeds"]) != [learner.seed for learner in learners]:
        differ.append(f"seeds was {about['seeds']}")
    differ += origin.differences(json.loads(about["origin"]))
    if differ:
        raise ValueError(
            f"{path} is of another run ({', '.join(differ)}); give the same options to resume it, or another "
            "--out"
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
