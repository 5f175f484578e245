"""Each checker of chapter 00: the stub, the solution, and three wrong answers."""

import runpy
from pathlib import Path

import pytest

from sparda.checks import ch00

ROOT = Path(__file__).resolve().parents[2]
SOLVED = runpy.run_path(str(ROOT / "notebooks" / "solutions" / "00_start.py"))
CASES = {
    ch00.ch00_ex1: (
        "ex1_share_read",
        [
            lambda n, size, k: k / (n // size),  # forgets the part-filled block
            lambda n, size, k: k / -(-n // size),  # more than all blocks
            lambda n, size, k: k * size / n,
        ],
    ),
    ch00.ch00_ex2: (
        "ex2_free_choices",
        [
            lambda position, size, k, local: k,
            lambda position, size, k, local: k - 1 - local,  # forgets the query's own block
            lambda position, size, k, local: k - 2 - local,  # right only far from the beginning
        ],
    ),
    ch00.ch00_ex3: (
        "ex3_hit_rate",
        [
            lambda before, now: len(set(before) & set(now)) / len(now),  # counts padding
            lambda before, now: len(set(before) & set(now) - {-1}) / len(set(before) - {-1}),
            lambda before, now: 1 - len(set(before) & set(now) - {-1}) / len(set(now) - {-1}),
        ],
    ),
    ch00.ch00_ex4: (
        "ex4_safe_budget",
        [
            lambda right, asked: min((k for k in right if right[k] == asked), default=0),  # luck counts
            lambda right, asked: max(right),
            lambda right, asked: min(right),
        ],
    ),
}


@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_a_stub_is_todo_and_the_solution_is_ok(check):
    assert check(lambda *args: ...).status == "todo"
    assert check(SOLVED[CASES[check][0]]).status == "ok"


@pytest.mark.parametrize(
    ("check", "wrong"), [(check, wrong) for check, (_, wrongs) in CASES.items() for wrong in wrongs]
)
def test_a_wrong_answer_is_named_and_nothing_raises(check, wrong):
    verdict = check(wrong)
    assert verdict.status == "not yet"
    assert "expected" in verdict.hint
