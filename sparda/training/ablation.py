"""What each choice of the recipe is worth, in the shape of the paper's Table 6: one short run each.

    python -m sparda.training.ablation --text build/corpus/train.npy --held-out build/corpus/held_out.npy

Every variant sees the same sequences and positions, takes as many steps, and is judged by the same measure,
attention mass inside the chosen blocks of the same held-out text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparda.distill import PAPER, Recipe, budgets
from sparda.errors import sentence
from sparda.measure.tables import Table, keep
from sparda.training.command import USUAL, add_options, plan_of
from sparda.training.plan import Plan

TABLE = Table(
    "forecast_ablation",
    ("model", "variant", "context", "budget_blocks", "local_blocks", "sequences", "steps", "seed",
     "mass_recall", "gap_closed", "commit", "date"),
    ("model", "variant", "context", "budget_blocks", "seed"),
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One change to the plan that is compared."""

    about: str
    recipe: Recipe = USUAL.recipe
    init: str = "query"
    heads: int = 1
    lr: float = 1.0  # times the plan's


VARIANTS = {
    "ours": Variant("exact mass of blocks"),
    "unweighted": Variant("every query counts alike", Recipe(weighted=False)),
    "random_init": Variant("from random weights", init="random"),
    "three_heads": Variant("three heads a KV head: three times the cost", heads=3),
    "lower_rate": Variant("a fifth of the learning rate", lr=0.2),
    "paper": Variant("fine keys, the teacher's windows and a rest bucket", PAPER),
    "paper_released_pooling": Variant(
        "as released: kernel 17, padding 1", replace(PAPER, pooling="released")
    ),
    "paper_no_rest": Variant("without the rest bucket", replace(PAPER, rest=False)),
    "paper_one_entry": Variant("one entry a block", replace(PAPER, entries=1)),
    "coarse": Variant("compressed keys teach", replace(PAPER, teacher="coarse")),
}


def changed(plan: Plan, variant: Variant) -> Plan:
    """The plan with a variant's change."""
    return replace(
        plan, recipe=variant.recipe, init=variant.init, heads=variant.heads, lr=plan.lr * variant.lr
    )


def compare(
    model: Any, plan: Plan, train: Any, validation: Any, names: Sequence[str], seed: int
) -> list[dict]:
    """Train every variant; rows without model, commit and date."""
    from sparda.training.loop import Run

    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            one = changed(plan, VARIANTS[name])
            work = Run(model, one, train, validation, Path(folder), [seed], keep_every=plan.rounds)
            (student,) = work.go()
        found = validation.row(student)
        for rule in validation.budgets:
            k = rule.budget_blocks
            rows.append({
                "variant": name, "context": plan.length, "budget_blocks": k,
                "local_blocks": rule.local_blocks, "sequences": plan.rounds * plan.sequences,
                "steps": plan.rounds * plan.steps_per_round,
                "seed": seed, "mass_recall": float(found[f"recall_k{k}"]),
                "gap_closed": float(found[f"gap_closed_k{k}"] or "nan"),
            })  # fmt: skip
            closed = found[f"gap_closed_k{k}"] or "-"
            print(f"{name:24s} k {k:3d} recall {found[f'recall_k{k}']} gap closed {closed}", flush=True)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Read the options of ``sparda train``, compare, and keep the table."""
    from sparda.measure.bench import describe_machine
    from sparda.training import setting

    parser = argparse.ArgumentParser(prog="python -m sparda.training.ablation", description=__doc__)
    add_options(parser)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args(arguments)
    try:
        plan = plan_of(options)
        place = setting.prepare(options, plan, budgets(plan.sparsity))
    except Exception as error:
        if (said := sentence(error)) is None:
            raise
        sys.exit("\n".join(f"sparda.training.ablation: {line}" for line in said.splitlines()))
    rows = compare(place.model, plan, place.train, place.validation, options.variants, options.seeds[0])
    about = describe_machine()
    stamp = {"model": options.model, "commit": about["commit"], "date": about["date"]}
    print(keep(TABLE, [TABLE.row(**row, **stamp) for row in rows], options.out, about))


if __name__ == "__main__":
    main()
