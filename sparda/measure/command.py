"""``sparda bench``: the engine's benchmarks by name, with their options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparda.measure.systems import SYSTEMS
from sparda.progress import say
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
            found = [of(part.strip()) for part in text.split(",") if part.strip()]
        except (ValueError, argparse.ArgumentTypeError) as error:
            kind = {int: "whole numbers", float: "numbers"}.get(of)
            why = f"expected {kind}, separated by commas, got {text!r}" if kind else str(error)
            raise argparse.ArgumentTypeError(why) from None
        if not found:
            raise argparse.ArgumentTypeError("give at least one value")
        return found

    return parse


def count(text: str) -> int:
    """A number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


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


def defaults(name: str, on_gpu: bool) -> dict[str, str]:
    """What is measured if nothing else is asked for; on a processor a few small cases that show it works."""
    if not on_gpu:
        small = {"model": "smollm2-135m", "context": "512", "batches": "1", "hit_rates": "1.0", "steps": "8"}
        return small | {"systems": "sparda,sparse_offload,sparse"}
    some = {"model": "minicpm4.1-8b", "context": "32768,65536,131072", "batches": "1", "hit_rates": "0.89"}
    some |= {"systems": "sparda,sparse_offload,dense", "steps": str(STEPS)}
    of = {
        "decode": {
            "context": "131072", "batches": "1,4,8,16,32,64", "hit_rates": "0.5,0.8,0.89,0.95,1.0",
            "systems": "sparda,sparda_no_prefetch,sparse_offload,infinigen_uva,sparda_resident,sparse,dense",
        },
        "breakdown": {"batches": "1,16"},
        "latency": {"context": "131072"},
        "trace": {"context": "131072", "batches": "16", "systems": "sparda"},
    }  # fmt: skip
    return some | of.get(name, {})


PARSERS = {
    "model": _model, "context": listed(count), "batches": listed(count), "hit_rates": listed(_rate),
    "systems": listed(_system), "steps": count,
}  # fmt: skip


def _options(one: argparse.ArgumentParser, name: str) -> None:
    comma, usual = "separated by commas", defaults(name, on_gpu=True)
    helps = {
        "model": "a preset, with random weights; smollm2-135m with its own",
        "context": f"tokens, {comma}",
        "batches": comma,
        "hit_rates": f"{comma}; real: choices recorded of a model",
        "systems": f"{comma}, of {', '.join(SYSTEMS)}",
        "steps": f"timed steps, at least {STEPS} on a GPU",
    }
    for option, about in helps.items():
        flag = "--" + option.replace("_", "-")
        one.add_argument(flag, type=PARSERS[option], help=f"{about} [{usual[option]}]")
    one.add_argument("--slots", type=listed(_slots), default="k", help=f"k or numbers of slots, {comma} [k]")
    one.add_argument(
        "--repeats", type=count, default=3, help="timed prompts of prefill [3], the median counts"
    )
    one.add_argument("--gpu-memory", type=size, help="stand in for a smaller card, such as 80GiB")
    one.add_argument("--host-memory", type=size, help="most host memory to pin, such as 120GiB")
    one.add_argument("--share-host", type=count, default=1, help="layers that share host pages (speed only)")
    one.add_argument("--device", choices=("cuda", "cpu"), help="cpu only checks that all works, on little")
    one.add_argument("--out", type=Path, metavar="DIR", help="default: data/measured/<device>/")


def run(options: argparse.Namespace) -> int:
    """Measure, print and keep; 1 if nothing could be measured, 2 for wrong input."""
    import torch

    from sparda.measure import runs

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    for option, text in defaults(options.what, device.type == "cuda").items():
        if getattr(options, option) is None:
            setattr(options, option, PARSERS[option](text))
    problem = runs.problem(options, device)
    if problem:
        print(f"sparda: {problem}", file=sys.stderr)
        return 2
    rows = runs.RUNS[options.what](options, device)
    return 0 if any(row["status"] == "ok" for row in rows) else 1


def show_head(columns: Sequence[str]) -> None:
    """Print the names of the columns."""
    say(" ".join(f"{column:>{_width(column)}}" for column in columns))


def _width(column: str) -> int:
    return 18 if column in ("system", "attention", "part") else max(10, len(column))


def show_one(row: dict[str, str], columns: Sequence[str], wall_s: float | None = None) -> None:
    """Print some columns of a row, the status in full, and how long it took to get it."""
    cells = [f"{row.get(column, ''):>{_width(column)}}" for column in columns if column != "status"]
    took = "" if wall_s is None else f"({wall_s:.0f} s)"
    say(" ".join(cells), row["status"], took)
