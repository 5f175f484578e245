"""``sparda train``: a Forecast for a model, from text, on one process or many.

sparda train --text corpus/train.npy --held-out corpus/held_out.npy --out build/forecast
accelerate launch --num_processes 8 -m sparda train ...                 # the same, on 8 GPUs or more nodes
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sparda.distill import Recipe, budgets
from sparda.measure.command import count
from sparda.spec import Sparsity
from sparda.training.plan import Plan, weights_file

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


def add_to(commands: Any) -> None:
    """Add the command ``train`` to the parser of ``sparda``."""
    one = commands.add_parser("train", help=HELP, description=HELP)
    add_options(one)
    one.set_defaults(run=run)


def add_options(one: argparse.ArgumentParser) -> None:
    """All options of a run."""
    one.add_argument("--text", nargs="+", required=True, metavar="SOURCE",
                     help="text, folders, packed .npy, or hf:owner/name[:split[:column]]")  # fmt: skip
    one.add_argument("--held-out", nargs="+", required=True, metavar="SOURCE", help="text to validate on")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="continues what it holds")
    one.add_argument("--model", default="smollm2-135m", help="as for sparda.load [smollm2-135m]")
    for default, options in ((USUAL, PLAN), (USUAL.recipe, RECIPE)):
        for name, about in options.items():
            value = getattr(default, name)
            one.add_argument("--" + name.replace("_", "-"), type=type(value), default=value,
                             help=f"{about} [{value}]")  # fmt: skip
    one.add_argument("--no-rest", action="store_true", help="of fine and coarse: no entry for all the rest")
    one.add_argument("--unweighted", action="store_true", help="of mass: all queries count alike")
    one.add_argument(
        "--budget", type=int, default=16, help="k: blocks a query reads, forced ones included [16]"
    )
    one.add_argument("--local", type=int, default=4, help="local blocks, forced [4]")
    one.add_argument(
        "--seeds", type=_seeds, default=[0], help="trained side by side, separated by commas [0]"
    )
    one.add_argument("--batch", type=count, default=4, help="sequences in one forward pass [4]")
    one.add_argument("--keep-every", type=count, default=1, help="rounds between checkpoints [1]")
    one.add_argument("--validate-on", type=count, default=16, metavar="N", help="held-out sequences [16]")
    one.add_argument("--minutes", type=float, help="stop then, with a checkpoint to continue from")


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"seeds are numbers separated by commas, got {text!r}") from None
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"seeds must differ, got {text!r}")
    return seeds


def plan_of(options: argparse.Namespace) -> Plan:
    """The options as a plan; ValueError for what does not fit together."""
    recipe = Recipe(
        **{name: getattr(options, name) for name in RECIPE},
        rest=not options.no_rest, weighted=not options.unweighted,
    )  # fmt: skip
    rule = Sparsity(options.budget, local_blocks=options.local)
    return Plan(rule, recipe, **{name: getattr(options, name) for name in PLAN})


def run(options: argparse.Namespace) -> int:
    """Train; 0 done, 1 stopped by a loss that is no number, 2 wrong input, 130 Ctrl-C."""
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
    except (ValueError, TypeError, KeyError, FileNotFoundError, ImportError) as error:
        said = error if isinstance(error, OSError) or not error.args else error.args[0]
        print(f"sparda: {said}", file=sys.stderr)
        return 2


def _train(options: argparse.Namespace) -> int:
    from sparda.training import card, setting
    from sparda.training.loop import Run

    plan = plan_of(options)
    place = setting.prepare(options, plan, budgets(plan.sparsity))
    work = Run(
        place.model, plan, place.train, place.validation, options.out, options.seeds, options.batch,
        options.keep_every, options.minutes and 60 * options.minutes, place.accelerator,
    )  # fmt: skip
    students = work.go()
    if place.accelerator.is_main_process:
        about = {"train": place.train.source, "train_sequences": len(place.train)}
        about |= {"held_out": place.held_out.source, "model": options.model}
        for seed, student in zip(options.seeds, students, strict=True):
            print(student.export().save(options.out / weights_file(seed, options.seeds), model=options.model))
        card.write(
            options.out, plan, options.seeds, about, rounds_done=work.round,
            processes=place.accelerator.num_processes, recall=place.validation.by_layer(students),
        )  # fmt: skip
    return 0
