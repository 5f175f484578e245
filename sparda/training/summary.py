"""What a run says when it ends: what was reached, where it is, and what to try next."""

from __future__ import annotations

import argparse
import csv
import shlex
from pathlib import Path

from sparda.blocks import count_blocks
from sparda.training.plan import Plan, weights_file


def lines(options: argparse.Namespace, plan: Plan, rounds: int) -> list[str]:
    """The closing lines, from the run's log: of every seed what was reached, the files, the next command."""
    said = [line for seed in options.seeds for line in _reached(options.out / "log.csv", seed)]
    here = [options.out / name for name in ("card.json", "log.csv", "checkpoint.safetensors")]
    said.append("card, log and checkpoint: " + ", ".join(str(path) for path in here if path.exists()))
    if rounds < plan.rounds:
        return [*said, f"stopped after round {rounds} of {plan.rounds}; the same command goes on"]
    return [*said, f"to judge it: {_next(options, plan)}"]


def _reached(log: Path, seed: int) -> list[str]:
    """Gap closed and recall at each k, and a warning where a run did harm."""
    if not log.is_file():
        return []
    with open(log, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == str(seed)]
    if not rows:
        return []
    first, last = rows[0], rows[-1]
    parts, harm = [], []
    for name in (name for name in last if name.startswith("recall_k")):
        k = name.removeprefix("recall_k")
        gap = last[f"gap_closed_k{k}"] or "no gap"
        parts.append(f"{gap} at k {k} (recall {first[name]} at round {first['round']}, {last[name]} now)")
        if float(last[name]) < float(first[name]):
            harm.append(k)
    said = [f"seed {seed}, gap from query selection to oracle closed: " + ", ".join(parts)]
    if harm:
        said.append(f"it chooses worse than at its start at k {', '.join(harm)}: lower --lr, or train longer")
    return said


def _next(options: argparse.Namespace, plan: Plan) -> str:
    """A command that judges the weights on other text."""
    share = plan.sparsity.budget_blocks / count_blocks(plan.length, plan.sparsity)
    words = ["sparda", "eval", "recall", "--model", options.model, "--methods", "sparse,sparda,oracle"]
    words += ["--forecast", str(options.out / weights_file(options.seeds[0], options.seeds))]
    words += ["--context", str(plan.length), "--shares", f"{share:g}", "--sequences", "2", "--queries", "128"]
    return shlex.join(words)
