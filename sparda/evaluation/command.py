"""``sparda eval``: accuracy on tasks and attention mass of the chosen blocks, kept as CSV files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from sparda.evaluation.methods import HEADLINE, METHODS, SHARES, place
from sparda.measure.command import count, listed
from sparda.progress import say
from sparda.tasks import TASKS
from sparda.waits import join, split

KINDS = {
    "accuracy": "answers of long-context tasks, every method on the same prompts",
    "recall": "attention mass of the chosen blocks, agreement and hit rate, layer by layer",
    "needle": "attention mass on a task's one fact, and what of it is in the chosen blocks, layer by layer",
    "exchange": "which layer's choice costs an answer: the query selection takes its place, layer by layer",
}

TEXTS = ("jargon_file", "king_james")  # of data/text
ONE_FACT = ("niah_single_", "niah_multikey_")
USUAL = {"accuracy": HEADLINE, "exchange": ["sparda"]}


def add_to(commands: Any) -> None:
    """Add the command ``eval`` to the parser of ``sparda``."""
    about = "how well each method chooses, at equal k, init and local blocks"
    kinds = commands.add_parser("eval", help=about, description=about).add_subparsers(
        required=True, metavar="WHAT", dest="what"
    )
    for name, text in KINDS.items():
        one = kinds.add_parser(name, help=text, description=text)
        usual = USUAL.get(name, [m for m in METHODS if m != "dense"])
        one.add_argument("--model", default="smollm2-135m", help="a name, directory or hub id [smollm2-135m]")
        one.add_argument(
            "--methods",
            type=listed(_method),
            default=list(usual),
            help=f"of {', '.join(METHODS)}; sparda@7: with layer 7 waiting for its query",
        )
        one.add_argument("--context", type=listed(int), default=[8192], help="tokens, by commas [8192]")
        one.add_argument("--shares", type=listed(float), default=list(SHARES), help="k / blocks [0.125,0.25]")
        one.add_argument("--forecast", type=Path, help="Forecast weights [the model's in data/forecasts/]")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one")
        one.add_argument("--out", type=Path, metavar="DIR", help="default on a GPU: data/measured/<device>/")
        one.set_defaults(run=run)
        _own_options(one, name)


def _own_options(one: argparse.ArgumentParser, name: str) -> None:
    if name == "accuracy":
        one.add_argument("--tasks", type=listed(str), help=f"of {', '.join(TASKS)} [all]")
        one.add_argument("--n", type=count, default=200, help="samples of each cell [200]")
        one.add_argument("--batch", type=count, default=50, help="prompts at once [50]")
        one.add_argument(
            "--jobs", type=count, default=1, help="processes that share the device [1]; 8 suit one H200"
        )
        one.add_argument(
            "--all-tasks", action="store_true", help="also those where dense scores 20 %% or less"
        )
        one.add_argument("--replies", type=Path, metavar="FILE", help="write what was said, as JSON lines")
    elif name in ("needle", "exchange"):
        usual = "niah_single, _multikey" if name == "needle" else "niah_single"
        known = ", ".join(name for name in TASKS if name.startswith(ONE_FACT))
        one.add_argument("--tasks", type=listed(str), help=f"with one fact, of {known} [{usual}]")
        one.add_argument("--n", type=count, default=50, help="samples of each cell [50]")
    else:
        one.add_argument("--texts", type=listed(str), default=list(TEXTS), metavar="TEXT,...",
                         help=f"{', '.join(TEXTS)}, or files and folders of your own [both]")  # fmt: skip
        one.add_argument("--sequences", type=count, default=8, help="of each text [8]")
        one.add_argument("--queries", type=count, default=512, help="of each sequence [512]")


def _method(name: str) -> str:
    place(name)
    return join(*split(name))  # sparda@07 is sparda@7


def run(options: argparse.Namespace) -> int:
    """Evaluate, print and keep; 1 if a process died. Wrong input is an error with one sentence."""
    import torch

    from sparda.evaluation import runs

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        runs.RUNS[options.what](options, device)
    except BrokenProcessPool:
        print("sparda: a process ended by itself; try fewer --jobs, or a smaller --batch", file=sys.stderr)
        return 1
    return 0


def show(row: Mapping[str, str], columns: Sequence[str], note: str = "") -> None:
    """Print some columns of a row."""
    wide = {"task": 23, "text": 23}
    say(" ".join(f"{row[c]:>{max(wide.get(c, 10), len(c))}}" for c in columns), note)
