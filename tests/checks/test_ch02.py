"""Wrong answers of chapter 02 and what their hints say; test_exercises.py asks the checkers."""

from __future__ import annotations

import runpy
from pathlib import Path

SOLVED = runpy.run_path(str(Path(__file__).parents[2] / "notebooks" / "solutions" / "02_gqa_selection.py"))
select = SOLVED["ex4_select"]


def higher_of_equals(scores, own, budget):
    forced = {0, max(0, own - 1), own}
    others = [block for block in range(own, -1, -1) if block not in forced]
    return sorted([*forced, *sorted(others, key=lambda b: -scores[b])[: budget - len(forced)]])


WRONG = [
    ("ch02_ex1", lambda position: position // 16 + 1, "once it has ended"),
    ("ch02_ex1", lambda position: (position - 31) // 16 + 1, "position 0 gave -1, too small"),
    ("ch02_ex1", lambda position: max(0, (position - 32) // 16 + 1), "position 31 gave 0, too small"),
    ("ch02_ex2", lambda logits: logits.sum(0), "loudest head"),
    ("ch02_ex2", lambda logits: logits.sum(0).softmax(0), "each head by itself"),
    ("ch02_ex2", lambda logits: logits.softmax(0).sum(0), "over the windows"),
    ("ch02_ex2", lambda logits: logits.softmax(-1), "shape [2, 3], not [3]"),
    ("ch02_ex2", lambda logits: logits.softmax(-1).mean(0), "place 0 is 0.4181, too small"),
    ("ch02_ex3", lambda scores, n: [max(scores[4 * b : 4 * b + 4].tolist()) for b in range(n)], "counts too"),
    ("ch02_ex3", lambda scores, n: scores, "shape [11], not [3]"),
    ("ch02_ex3", lambda scores, n: [scores[4 * b - 1] for b in range(n)], "place 0 is 2, too small"),
    ("ch02_ex4", lambda scores, own, budget: select(scores, len(scores) - 1, budget), "after the query's"),
    ("ch02_ex4", lambda scores, own, budget: list(range(budget)), "forced block 5 is missing"),
    ("ch02_ex4", lambda scores, own, budget: select(scores, own, budget + 1), "contains the forced"),
    ("ch02_ex4", lambda scores, own, budget: select(scores, own, budget)[::-1], "ascending"),
    (
        "ch02_ex4",
        lambda scores, own, budget: select([-s for s in scores], own, budget),
        "gave [0, 1, 2, 4, 5]",
    ),
    ("ch02_ex4", higher_of_equals, "gave [0, 3, 4, 5]: block 3 scores less than one left out, or as much"),
    ("ch02_ex4", lambda scores, own, budget: [0, own - 1, own], "there is room for another block"),
    ("ch02_ex5", lambda mass, ids: float("nan"), "gave nan, which is no number"),
    ("ch02_ex5", lambda mass, ids: mass[ids].sum(), "padding"),
    ("ch02_ex5", lambda mass, ids: mass[ids[ids >= 0]].mean(), "ids [0, 2, 3] gave 0.291667, too small"),
    ("ch02_ex5", lambda mass, ids: len(ids) / len(mass), "ids [0, 2, 3] gave 0.6, too small"),
]
