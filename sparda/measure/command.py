"""``sparda bench``: the engine's benchmarks by name, with their options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparda.measure.systems import SYSTEMS
from sparda.spec import MODELS
from sparda.units import parse_bytes

WHAT = {
    "decode": "tokens/s of decode against batch, hit rate and system",
    "prefill": "tokens/s of prompts, sparse and dense",
    "breakdown": "where a layer's time goes, in prefill and decode",
    "latency": "time to the first token and per token",
    "trace": "when everything ran in one step, as a Chrome/Perfetto trace",
}
STEPS = 64


def listed(of: Callable[[str], Any]) -> Callable[[str], list]:
    """A parser of comma-separated values."""

    def parse(text: str) -> list:
        try:
            return [of(part) for part in text.split(",") if part.strip()]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def size(text: str) -> int:
    """A number of bytes such as 80GiB."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _system(text: str) -> str:
    if text not in SYSTEMS:
        raise ValueError(f"unknown system {text!r}; choose from {', '.join(SYSTEMS)}")
    return text


def _slots(text: str) -> int | str:
    return text if text == "k" else int(text)


def _model(text: str) -> str:
    if text not in MODELS:
        raise argparse.ArgumentTypeError(f"unknown model {text!r}; choose from {', '.join(MODELS)}")
    return text


def _rate(text: str) -> float | None:
    if text == "real":
        return None
    if not 0 <= float(text) <= 1:
        raise ValueError(f"a hit rate is a share between 0 and 1, got {text}")
    return float(text)


def add_to(commands: Any) -> None:
    """Add the command ``bench`` to the parser of ``sparda``."""
    bench = commands.add_parser("bench", help="measure the engine on this machine's GPU")
    kinds = bench.add_subparsers(required=True, metavar="WHAT", dest="what")
    for name, about in WHAT.items():
        one = kinds.add_parser(name, help=about, description=about)
        _options(one, name)
        one.set_defaults(run=run)


def _options(one: argparse.ArgumentParser, name: str) -> None:
    contexts = "131072" if name in ("decode", "latency", "trace") else "32768,65536,131072"
    batches = {"decode": "1,4,8,16,32,64", "breakdown": "1,16", "trace": "16"}.get(name, "1")
    rates = "0.5,0.8,0.89,0.95,1.0" if name == "decode" else "0.89"
    systems = {
        "decode": "sparda,sparda_no_prefetch,sparse_offload,sparda_resident,sparse,dense",
        "trace": "sparda",
    }.get(name, "sparda,sparse_offload,dense")
    comma = "separated by commas"
    one.add_argument(
        "--model", type=_model, default="minicpm4.1-8b", help="a preset's shapes; smollm2-135m: real weights"
    )
    one.add_argument("--context", type=listed(int), default=contexts, help=f"tokens, {comma} [{contexts}]")
    one.add_argument("--batches", type=listed(int), default=batches, help=f"{comma} [{batches}]")
    one.add_argument(
        "--hit-rates", type=listed(_rate), default=rates, help=f"{comma} [{rates}]; real: recorded choices"
    )
    one.add_argument("--systems", type=listed(_system), default=systems, help=f"{comma} [{systems}]")
    one.add_argument("--slots", type=listed(_slots), default="k", help=f"k or numbers of slots, {comma} [k]")
    one.add_argument("--steps", type=int, default=STEPS, help="timed steps, at least 64 [64]")
    one.add_argument("--repeats", type=int, default=3, help="timed prompts of prefill, the median counts [3]")
    one.add_argument("--gpu-memory", type=size, help="stand in for a smaller card, such as 80GiB")
    one.add_argument("--host-memory", type=size, help="most host memory to pin, such as 120GiB")
    one.add_argument("--share-host", type=int, default=1, help="layers that share host pages (speed only)")
    one.add_argument("--device", choices=("cuda", "cpu"), help="cpu only checks that all works")
    one.add_argument("--out", type=Path, metavar="DIR", help="default: data/measured/<device>/")


def run(options: argparse.Namespace) -> int:
    """Measure, print and keep; 1 if nothing could be measured, 2 for wrong input."""
    import torch

    from sparda.measure import runs

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    problem = runs.problem(options, device)
    if problem:
        print(f"sparda: {problem}", file=sys.stderr)
        return 2
    rows = runs.RUNS[options.what](options, device)
    return 0 if any(row["status"] == "ok" for row in rows) else 1


def show_head(columns: Sequence[str]) -> None:
    """Print the names of the columns."""
    print(" ".join(f"{column[:14]:>14}" for column in columns))


def show_one(row: dict[str, str], columns: Sequence[str], wall_s: float | None = None) -> None:
    """Print some columns of a row, the status in full, and how long it took to get it."""
    cells = [f"{row.get(column, '')[:14]:>14}" for column in columns if column != "status"]
    took = "" if wall_s is None else f"({wall_s:.0f} s)"
    print(" ".join(cells), row["status"], took, flush=True)
