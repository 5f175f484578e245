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
from sparda.provenance import sha256
from sparda.training import checkpoint
from sparda.training.backbone import Backbone, Seen
from sparda.training.checkpoint import Origin
from sparda.training.data import Sequences
from sparda.training.plan import Plan, weights_file
from sparda.training.progress import Progress, Work
from sparda.training.student import Student
from sparda.training.validate import Validation

SENSIBLE = (1e-12, 1e12)  # the largest weight of a head lies between, or nothing was learned


class NotANumber(RuntimeError):
    """A loss that is not finite, or weights that choose nothing; names layer and step."""


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
        self.origin = Origin.of(self.model, self.train, self.validation, self._start())
        self.round = checkpoint.load(self.folder, self.plan, self.learners, self.origin)
        if self.accelerator.is_main_process:
            _forget_after(self.folder / "log.csv", self.round if self.learners[0].steps else -1)
        rounds, share = self.plan.rounds - self.round, self.plan.sequences // self.accelerator.num_processes
        steps = self.plan.steps_per_round * len(self.learners)
        self.progress = Progress(
            Work(rounds * share, rounds * steps), self.plan.rounds * steps, self.accelerator.is_main_process
        )

    @property
    def done(self) -> bool:
        """Whether all rounds were trained."""
        return self.round >= self.plan.rounds

    def estimate(self) -> float:
        """Seconds that the rest will take, validation included, by one sequence and one step.

        Nothing is learned from them.
        """
        if self.accelerator.device.type == "cuda":
            self._probe()  # the first time loads kernels
        looking, step = self._probe()
        return looking * len(self.validation.tokens) + self.progress.left.seconds(looking, step)

    def _probe(self) -> tuple[float, float]:
        """Seconds of looking at a sequence, and of a step of this process."""
        plan, student, device = self.plan, self.learners[0].student, self.accelerator.device
        tokens = self.train.take(plan.draw(self.round, len(self.train))[:1].tolist())
        began = _now(device)
        seen = self.backbone.observe(torch.from_numpy(tokens).to(device), plan.sample(self.round))
        looked = _now(device)
        part = seen.at(torch.arange(min(plan.step_positions, len(seen.positions))))
        student(part, plan.sparsity, plan.recipe).mean().backward()
        step = (_now(device) - looked) * plan.step_sequences / self.accelerator.num_processes
        student.zero_grad(set_to_none=True)
        return looked - began, step

    def _beginner(self, seed: int) -> Student:
        """A seed's student: new, or as another run left it."""
        plan = self.plan
        if (folder := plan.init_folder) is not None:
            path = folder / weights_file(seed, self.seeds)
            return Student.resume(Forecast.load(path, Shape.of(self.model)), self.model)
        try:
            return Student.of(self.model, plan.init, plan.heads, seed, plan.noise)
        except TypeError as error:
            if plan.init != "query":
                raise
            reason = str(error).split(";")[0]
            raise TypeError(
                f"this model has no start from its queries ({reason}); give --init random"
            ) from None

    def _start(self) -> tuple[str, str]:
        """Name of the start, and hash of the weights if it is a folder."""
        if (folder := self.plan.init_folder) is None:
            return self.plan.init, ""
        files = [folder / weights_file(seed, self.seeds) for seed in self.seeds]
        return self.plan.init, " ".join(sha256(file)[:32] for file in files)

    def observe(self, round_: int) -> Seen:
        """This process's sequences of a round."""
        mine = self.plan.draw(round_, len(self.train))
        mine = mine[self.accelerator.process_index :: self.accelerator.num_processes]
        device, parts = self.accelerator.device, []
        for start in range(0, len(mine), self.batch):
            self.progress.stage(f"round {round_ + 1}, {start} of {len(mine)} sequences seen")
            tokens = torch.from_numpy(self.train.take(mine[start : start + self.batch].tolist())).to(device)
            parts.append(self.backbone.observe(tokens, self.plan.sample(round_)))
            self.progress.looked(len(tokens))
        return Seen.join(parts)

    def go(self) -> list[Student]:
        """Train to the end; the students."""
        began = time.perf_counter()
        with self.progress:  # closed by Ctrl-C too, so that what is said then stays the last line
            if self.round == 0:
                self.progress.stage("reading the held-out text")
                self._report([], began)  # validates before anything is spent
            while not self.done:
                self.progress.resume()
                losses = self._one_round()
                self.round += 1
                out_of_time = self._out_of_time(began)
                if self.round % self.keep_every == 0 or self.done or out_of_time:
                    self._report(losses, began)
                    self._keep()
                    self.progress.say(
                        f"round {self.round}: loss {losses[0].mean():.4f}, recall {self.validation.last}"
                    )
                if out_of_time:
                    break
        return [learner.student for learner in self.learners]

    def _one_round(self) -> list[Tensor]:
        seen = self.observe(self.round)
        self.progress.stage(f"round {self.round + 1}")
        losses = [
            learner.learn(seen, self.round, self.accelerator, self.progress.stepped)
            for learner in self.learners
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
        heads = learner.student.folded().detach().unflatten(1, (-1, learner.student.head_dim))
        largest = heads.abs().amax((2, 3))  # [L, H * n]
        bad = (~((largest > SENSIBLE[0]) & (largest < SENSIBLE[1]))).nonzero()
        if len(bad):
            layer = int(bad[0, 0])
            value = float(largest[tuple(bad[0])])
            raise NotANumber(
                f"after step {learner.steps} the weights of layer {layer} choose nothing, their largest "
                f"value is {value:.1g}; {self._kept()}: lower --lr, or clip with --clip 0.5"
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
            checkpoint.save(self.folder, self.plan, self.learners, self.round, self.origin)
        self.accelerator.wait_for_everyone()


def _now(device: torch.device) -> float:
    """A clock that waits for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


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
