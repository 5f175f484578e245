"""The loop: observe the frozen model, take steps, validate, keep what was reached."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparda.forecast import Forecast, Shape
from sparda.training import checkpoint
from sparda.training.backbone import Backbone, Seen
from sparda.training.data import Sequences
from sparda.training.plan import Plan, weights_file
from sparda.training.student import Student
from sparda.training.validate import Validation


class NotANumber(RuntimeError):
    """A loss that is not finite; names layer and step."""


@dataclass
class Learner:
    """One seed: a student, its optimiser, and how many steps it has taken."""

    seed: int
    student: Student
    plan: Plan
    steps: int = 0
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self):
        self.optimizer = torch.optim.AdamW(
            self.student.parameters(), lr=self.plan.lr, betas=(0.9, 0.95), weight_decay=self.plan.weight_decay
        )

    def learn(self, seen: Seen, round_: int, accelerator: Any, tick: Callable[[], Any]) -> Tensor:
        """All steps of a round; losses [steps, L]. ``tick`` is called after each."""
        losses = []
        size = self.plan.step_sequences // accelerator.num_processes
        for group, where in self.plan.steps(round_, self.seed):
            part = seen.at(where, slice(group * size, group * size + size))
            lost = self.student(part, self.plan.sparsity, self.plan.recipe)
            lost.mean().backward()
            self._step(accelerator)
            losses.append(lost.detach())
            tick()
        return accelerator.reduce(torch.stack(losses), "mean")

    def _step(self, accelerator: Any) -> None:
        parameters = list(self.student.parameters())
        if accelerator.num_processes > 1:
            for p in parameters:
                p.grad = accelerator.reduce(p.grad, "mean")
        if self.plan.clip:
            torch.nn.utils.clip_grad_norm_(parameters, self.plan.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(self.steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


@dataclass
class Run:
    """A training run in ``folder``: resumes from its last checkpoint if there is one."""

    model: Any
    plan: Plan
    train: Sequences
    validation: Validation
    folder: Path
    seeds: Sequence[int] = (0,)
    batch: int = 4  # sequences in one forward pass
    keep_every: int = 1  # rounds between checkpoints and validations
    most_seconds: float | None = None  # stop (and keep a checkpoint) after so long
    accelerator: Any = None
    round: int = 0

    def __post_init__(self):
        if self.accelerator is None:
            from accelerate import Accelerator

            self.accelerator = Accelerator()
        if self.plan.step_sequences % self.accelerator.num_processes:
            raise ValueError(
                f"the {self.plan.step_sequences} sequences of a step cannot be shared by "
                f"{self.accelerator.num_processes} processes; use a multiple"
            )
        self.backbone = Backbone(self.model, self.plan.sparsity, self.plan.recipe)
        self.learners = [Learner(seed, self._beginner(seed), self.plan) for seed in self.seeds]
        self.round = checkpoint.load(self.folder, self.plan, self.learners)
        if self.accelerator.is_main_process:
            _forget_after(self.folder / "log.csv", self.round if self.learners[0].steps else -1)
        self.bar = self._new_bar()

    def _beginner(self, seed: int) -> Student:
        """A seed's student: new, or as another run left it."""
        plan = self.plan
        if plan.init in ("query", "random"):
            return Student.of(self.model, plan.init, plan.heads, seed, plan.noise)
        path = Path(plan.init) / weights_file(seed, self.seeds)
        if not path.exists():
            raise FileNotFoundError(
                f"--init is query, random or a folder that `sparda train` has written; there is no {path}"
            )
        return Student.resume(Forecast.load(path, Shape.of(self.model)), self.model)

    def observe(self, round_: int) -> Seen:
        """This process's sequences of a round."""
        mine = self.plan.draw(round_, len(self.train))
        mine = mine[self.accelerator.process_index :: self.accelerator.num_processes]
        device, parts = self.accelerator.device, []
        for start in range(0, len(mine), self.batch):
            self.bar.set_description(f"round {round_}, {start} of {len(mine)} sequences seen")
            tokens = torch.from_numpy(self.train.take(mine[start : start + self.batch].tolist())).to(device)
            parts.append(self.backbone.observe(tokens, self.plan.sample(round_)))
        return Seen.join(parts)

    def go(self) -> list[Student]:
        """Train to the end; the students."""
        began = time.perf_counter()
        if self.round == 0:
            self._report([], began)  # validates before anything is spent
        with self.bar:  # closed by Ctrl-C too, so that what is said then stays the last line
            while self.round < self.plan.rounds:
                losses = self._one_round()
                self.round += 1
                self.bar.set_postfix_str(f"loss {losses[0].mean():.4f} {self.validation.last}")
                out_of_time = self._out_of_time(began)
                if self.round % self.keep_every == 0 or self.round == self.plan.rounds or out_of_time:
                    self._report(losses, began)
                    self._keep()
                if out_of_time:
                    break
        return [learner.student for learner in self.learners]

    def _one_round(self) -> list[Tensor]:
        seen = self.observe(self.round)
        self.bar.set_description(f"round {self.round}")
        losses = [
            learner.learn(seen, self.round, self.accelerator, self.bar.update) for learner in self.learners
        ]
        for learner, lost in zip(self.learners, losses, strict=True):
            self._check(lost, learner)
        return losses

    def _out_of_time(self, began: float) -> bool:
        """Whether any process says so: all must stop after the same round."""
        if self.most_seconds is None:
            return False
        late = torch.tensor(float(time.perf_counter() - began > self.most_seconds))
        return bool(self.accelerator.reduce(late.to(self.accelerator.device), "sum") > 0)

    def _check(self, losses: Tensor, learner: Learner) -> None:
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            step, layer = (int(i) for i in bad[0])
            step += learner.steps - len(losses)
            raise NotANumber(
                f"the loss of layer {layer} is not a number at step {step}; {self._kept()}: lower --lr, or "
                "clip with --clip 0.5"
            )

    def _kept(self) -> str:
        there = (self.folder / checkpoint.NAME).is_file()
        return f"the checkpoint before it is kept in {self.folder}" if there else "nothing was kept yet"

    def _validate(self, learner: Learner) -> dict[str, Any]:
        """Recall of one seed; NotANumber: its last steps left weights that score nothing."""
        try:
            return self.validation.row(learner.student)
        except ValueError as error:
            layer = int(learner.student.weight.abs().nan_to_num(torch.inf).amax((1, 2)).argmax())
            raise NotANumber(
                f"after step {learner.steps} the weights of layer {layer} give scores that are no numbers "
                f"({str(error).split(';')[0]}); {self._kept()}: lower --lr, or clip with --clip 0.5"
            ) from None

    def _report(self, losses: Sequence[Tensor], began: float) -> None:
        """Validate every seed, and append a row each to log.csv."""
        for n, learner in enumerate(self.learners):
            row = {
                "round": self.round, "step": learner.steps, "seed": learner.seed,
                "seconds": f"{time.perf_counter() - began:.1f}",
                "loss": f"{losses[n].mean():.5f}" if losses else "",
                **self._validate(learner),
            }  # fmt: skip
            if self.accelerator.is_main_process:
                _append(self.folder / "log.csv", row)

    def _keep(self) -> None:
        if self.accelerator.is_main_process:
            checkpoint.save(self.folder, self.plan, self.learners, self.round)
        self.accelerator.wait_for_everyone()

    def _new_bar(self):
        from tqdm import tqdm

        steps = self.plan.steps_per_round * len(self.learners)
        return tqdm(
            total=self.plan.rounds * steps, initial=self.round * steps, unit="step", mininterval=1.0,
            disable=not self.accelerator.is_main_process,
        )  # fmt: skip


def _append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def _forget_after(path: Path, round_: int) -> None:
    """Drop rows of rounds that no checkpoint holds: they are about to come again."""
    if not path.exists():
        return
    head, *rows = path.read_text().splitlines(keepends=True)
    path.write_text(head + "".join(row for row in rows if int(row.split(",")[0]) <= round_))
