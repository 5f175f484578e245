"""``sparda train``: a Forecast for a model, from text, on one process or many.

sparda train --text corpus/train.npy --held-out corpus/held_out.npy --out build/forecast
accelerate launch --num_processes 8 -m sparda train ...                 # the same, on 8 GPUs or more nodes
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparda.distill import Recipe, budgets
from sparda.measure.command import count
from sparda.progress import duration
from sparda.spec import Sparsity
from sparda.training import summary
from sparda.training.plan import Plan, weights_file

if TYPE_CHECKING:
    from sparda.training.loop import Run

Made = TypeVar("Made")
HELP = "distil a Forecast from a frozen model; weights, log and run card go to one folder"
USUAL = Plan()
PLAN = {
    "length": "tokens of a sequence", "rounds": "observations in all",
    "sequences": "sequences of a round, of all processes together",
    "positions": "queries sampled of a sequence; 0 takes all",
    "tail": "last queries of a sequence, always sampled (at most half of --positions): there questions stand",
    "step_sequences": "of a round, how many sequences one optimiser step sees",
    "step_positions": "and how many sampled queries of each",
    "passes": "how often a round's queries are used", "lr": "AdamW's learning rate, with warm-up and cosine",
    "warmup": "steps", "weight_decay": "of AdamW", "clip": "gradient norm; 0 does not clip",
    "init": "query (the next layer's queries), random, or the folder of a run to go on from",
    "noise": "random share added to init query",
    "heads": "Forecast heads a KV head",
}  # fmt: skip
RECIPE = {
    "teacher": "mass (exact, of blocks), fine (the paper) or coarse", "pooling": "of fine: exact or released",
    "entries": "of fine and coarse: entries a block has, 4 or 1",
    "objective": "of mass: divergence, or recall, the mass that the choice misses",
    "softness": "of objective recall: width of the choice's edge, in units of the score",
}  # fmt: skip

REST = {
    "budget": "k: blocks a query reads, forced ones included", "local": "local blocks, forced",
    "batch": "sequences in one forward pass", "keep_every": "rounds between checkpoints",
    "validate_on": "held-out sequences",
}  # fmt: skip
DEFAULTS = {"budget": 16, "local": 4, "batch": 4, "keep_every": 1, "validate_on": 16}
PRESETS = {
    "tiny-cpu": {
        "length": 2048, "rounds": 2, "sequences": 8, "step_sequences": 4, "positions": 128, "tail": 16,
        "passes": 4, "warmup": 8, "budget": 8, "local": 2, "validate_on": 4,
    },
}  # fmt: skip


def add_to(commands: Any) -> None:
    """Add the command ``train`` to the parser of ``sparda``."""
    one = commands.add_parser("train", help=HELP, description=HELP)
    add_options(one)
    one.set_defaults(run=run)


def add_options(one: argparse.ArgumentParser) -> None:
    """All options of a run; what has no value yet gets it from ``complete``."""
    one.add_argument("--text", nargs="+", required=True, metavar="SOURCE",
                     help="text, folders, packed .npy, or hf:owner/name[:split[:column]]")  # fmt: skip
    one.add_argument("--held-out", nargs="+", required=True, metavar="SOURCE", help="text to validate on")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="continues what it holds")
    one.add_argument("--model", default="smollm2-135m", help="as for sparda.load [smollm2-135m]")
    one.add_argument("--preset", choices=PRESETS, help="other values for what is not given: "
                     + "; ".join(f"{name}: {_said(values)}" for name, values in PRESETS.items()))  # fmt: skip
    for default, options in ((USUAL, PLAN), (USUAL.recipe, RECIPE)):
        for name, about in options.items():
            value = getattr(default, name)
            one.add_argument("--" + name.replace("_", "-"), type=type(value), help=f"{about} [{value}]")
    one.add_argument("--no-rest", action="store_true", help="of fine and coarse: no entry for all the rest")
    one.add_argument("--unweighted", action="store_true", help="of mass: all queries count alike")
    for name, about in REST.items():
        kind = count if name in ("batch", "keep_every", "validate_on") else int
        one.add_argument("--" + name.replace("_", "-"), type=kind, help=f"{about} [{DEFAULTS[name]}]")
    one.add_argument(
        "--seeds", type=_seeds, default=[0], help="trained side by side, separated by commas [0]"
    )
    one.add_argument("--minutes", type=float, help="stop then, with a checkpoint to continue from")


def _said(values: dict[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())


def complete(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in what was not given: from the preset if there is one, else the usual value."""
    usual = {name: getattr(USUAL, name) for name in PLAN} | DEFAULTS
    usual |= {name: getattr(USUAL.recipe, name) for name in RECIPE}
    usual |= PRESETS.get(options.preset or "", {})
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"seeds are numbers separated by commas, got {text!r}") from None
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"seeds must differ, got {text!r}")
    return seeds


def plan_of(options: argparse.Namespace) -> Plan:
    """The options as a plan; ValueError with a line for each thing that does not fit together."""
    complete(options)
    found: list[str] = []
    recipe = _or_say(found, lambda: Recipe(
        **{name: getattr(options, name) for name in RECIPE},
        rest=not options.no_rest, weighted=not options.unweighted,
    ))  # fmt: skip
    rule = _or_say(found, lambda: Sparsity(options.budget, local_blocks=options.local))
    values = {name: getattr(options, name) for name in PLAN}
    plan = _or_say(found, lambda: Plan(rule or USUAL.sparsity, recipe or USUAL.recipe, **values))
    if plan is None or found:
        raise ValueError("\n".join(found))
    return plan


def _or_say(found: list[str], make: Callable[[], Made]) -> Made | None:
    """What ``make`` makes, or None, with why in ``found``."""
    try:
        return make()
    except ValueError as error:
        found.append(str(error))
        return None


def run(options: argparse.Namespace) -> int:
    """Train; 0 done, 1 stopped by a loss that is no number or by too little memory, 130 Ctrl-C.

    ValueError, TypeError, KeyError, OSError, ImportError: wrong input, a line for each thing that is wrong.
    """
    from torch import OutOfMemoryError

    from sparda.training.checkpoint import NAME
    from sparda.training.loop import NotANumber

    try:
        return _train(options)
    except KeyboardInterrupt:
        path = options.out / NAME
        kept = f"the same command goes on from {path}" if path.exists() else "nothing was kept yet"
        print(f"sparda: stopped by Ctrl-C; {kept}", file=sys.stderr)
        return 130
    except NotANumber as error:
        print(f"sparda: {error}", file=sys.stderr)
        return 1
    except OutOfMemoryError as error:
        print(
            f"sparda: the GPU has not enough memory ({str(error).splitlines()[0].rstrip('.')}); lower "
            "--batch, --step-sequences, --step-positions or --length",
            file=sys.stderr,
        )
        return 1


def _plan(options: argparse.Namespace) -> Plan:
    """The plan; ValueError with a line for everything that is wrong with the options, before any loading."""
    from sparda.training import setting

    found: list[str] = []
    plan = _or_say(found, lambda: plan_of(options))
    found += setting.problems(options)
    if plan is None or found:
        raise ValueError("\n".join(found))
    return plan


def _say_what_comes(work: Run) -> None:
    """Before the work begins: how much it is, or that there is none."""
    if work.done:
        print(f"nothing left to train: all {work.plan.rounds} rounds are done", flush=True)
        return
    left = work.progress.left
    again = f", going on after round {work.round}" if work.round else ""
    print(
        f"{left.sequences} sequences to look at and {left.steps} steps to take{again}: about "
        f"{duration(work.estimate())} on {work.accelerator.device.type}; Ctrl-C keeps the last checkpoint",
        flush=True,
    )


def _train(options: argparse.Namespace) -> int:
    from sparda.training import card, setting
    from sparda.training.loop import Run

    plan = _plan(options)
    place = setting.prepare(options, plan, budgets(plan.sparsity))
    work = Run(
        place.model, plan, place.train, place.validation, options.out, options.seeds, options.batch,
        options.keep_every, options.minutes and 60 * options.minutes, place.accelerator,
    )  # fmt: skip
    main, finished = place.accelerator.is_main_process, work.done
    if main:
        _say_what_comes(work)
    students = work.go()
    if not main:
        return 0
    about = {"train": place.train.source, "train_sequences": len(place.train)}
    about |= {"held_out": place.held_out.source, "model": options.model}
    header = {"model": options.model, "model_fingerprint": work.origin.fingerprint}
    for seed, student in zip(options.seeds, students, strict=True):
        print(student.export().save(options.out / weights_file(seed, options.seeds), **header))
    if not (finished and (options.out / "card.json").exists()):
        card.write(
            options.out, plan, options.seeds, about, rounds_done=work.round,
            processes=place.accelerator.num_processes, recall=place.validation.by_layer(students),
        )  # fmt: skip
    print("\n".join(summary.lines(options, plan, work.round)))
    return 0
