"""The checkers of chapter 02: a stub, the published solution, and three wrong answers each."""

import runpy
from pathlib import Path

import pytest

from sparda.checks import ch02

SOLVED = runpy.run_path(str(Path(__file__).parents[2] / "notebooks" / "solutions" / "02_gqa_selection.py"))
SOLUTIONS = {
    "ch02_ex1": SOLVED["ex1_visible_windows"],
    "ch02_ex2": SOLVED["ex2_group_scores"],
    "ch02_ex3": SOLVED["ex3_pool"],
    "ch02_ex4": SOLVED["ex4_select"],
    "ch02_ex5": SOLVED["ex5_mass_recall"],
}
select = SOLUTIONS["ch02_ex4"]

WRONG = [
    ("ch02_ex1", lambda position: position // 16 + 1, "once it has ended"),
    ("ch02_ex1", lambda position: (position - 31) // 16 + 1, "expected 0"),
    ("ch02_ex1", lambda position: max(0, (position - 32) // 16 + 1), "position 31 gave 0, expected 1"),
    ("ch02_ex2", lambda logits: logits.sum(0), "loudest head"),
    ("ch02_ex2", lambda logits: logits.sum(0).softmax(0), "each head by itself"),
    ("ch02_ex2", lambda logits: logits.softmax(0).sum(0), "over the windows"),
    ("ch02_ex2", lambda logits: logits.softmax(-1), "shape [2, 3], expected [3]"),
    ("ch02_ex2", lambda logits: logits.softmax(-1).mean(0), "expected"),
    ("ch02_ex3", lambda scores, n: [max(scores[4 * b : 4 * b + 4].tolist()) for b in range(n)], "counts too"),
    ("ch02_ex3", lambda scores, n: scores, "expected [3]"),
    ("ch02_ex3", lambda scores, n: [scores[4 * b - 1] for b in range(n)], "expected"),
    ("ch02_ex4", lambda scores, own, budget: select(scores, len(scores) - 1, budget), "after the query's"),
    ("ch02_ex4", lambda scores, own, budget: list(range(budget)), "forced block 5 is missing"),
    ("ch02_ex4", lambda scores, own, budget: select(scores, own, budget + 1), "contains the forced"),
    ("ch02_ex4", lambda scores, own, budget: select(scores, own, budget)[::-1], "ascending"),
    (
        "ch02_ex4",
        lambda scores, own, budget: select([-s for s in scores], own, budget),
        "gave [0, 1, 2, 4, 5]",
    ),
    ("ch02_ex5", lambda mass, ids: mass[ids].sum(), "padding"),
    ("ch02_ex5", lambda mass, ids: mass[ids[ids >= 0]].mean(), "expected"),
    ("ch02_ex5", lambda mass, ids: len(ids) / len(mass), "expected 0.875"),
]


@pytest.mark.parametrize("name", sorted(SOLUTIONS))
def test_a_stub_is_still_to_do(name):
    assert getattr(ch02, name)(lambda *args: ...).status == "todo"
    assert getattr(ch02, name)(...).status == "todo"


@pytest.mark.parametrize("name", sorted(SOLUTIONS))
def test_the_solution_is_accepted(name):
    assert repr(getattr(ch02, name)(SOLUTIONS[name])) == "ok"


@pytest.mark.parametrize(("name", "student", "says"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(name, student, says):
    verdict = getattr(ch02, name)(student)
    assert verdict.status == "not yet"
    assert says in verdict.hint


def test_a_tie_given_to_the_higher_id_is_not_accepted():
    def higher(scores, own, budget):
        forced = {0, max(0, own - 1), own}
        others = [block for block in range(own, -1, -1) if block not in forced]
        return sorted([*forced, *sorted(others, key=lambda b: -scores[b])[: budget - len(forced)]])

    assert "gave [0, 3, 4, 5], expected [0, 1, 4, 5]" in ch02.ch02_ex4(higher).hint
