"""The exercises of all chapters: stub, solution, wrong answers, and ways around the task."""

from __future__ import annotations

import pytest
import torch

TIMES = 5  # cases are drawn anew at each check


def test_the_stub_is_to_do_and_the_solution_is_ok_whatever_is_drawn(exercise):
    assert exercise.check(exercise.stub).status == exercise.check(...).status == "todo"
    assert {repr(exercise.check(exercise.solution)) for _ in range(TIMES)} == {"ok"}


def test_at_least_three_wrong_answers_are_known(exercise):
    assert len(exercise.wrong) >= 3


def test_a_wrong_answer_is_told_what_is_wrong(wrong_answer):
    check, answer, part = wrong_answer
    for _ in range(TIMES):
        verdict = check(answer)
        assert verdict.status == "not yet"
        assert part in verdict.hint
        assert "stopped with" not in verdict.hint


def changed(answer, change):
    """The answer with every number in it changed."""
    if isinstance(answer, dict):
        return {name: changed(value, change) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return type(answer)(changed(value, change) for value in answer)
    if isinstance(answer, torch.Tensor):
        return torch.tensor([change(value) for value in answer.flatten().tolist()]).view(answer.shape)
    return change(answer)


@pytest.mark.parametrize(
    "change",
    [
        lambda number: number * float("nan"),
        lambda number: number * 1.05 + (number == 0),
        lambda number: number * 0.95 - (number == 0),
        lambda number: number + 1 if abs(number) < 100 else 1.05 * number,
        lambda number: number - 1 if abs(number) < 100 else 0.95 * number,
    ],
    ids=["nan", "5 % more", "5 % less", "one more", "one less"],
)
def test_an_answer_that_is_a_little_off_is_not_ok(exercise_in_numbers, change):
    exercise = exercise_in_numbers
    verdict = exercise.check(lambda *a, **k: changed(exercise.solution(*a, **k), change))
    assert verdict.status == "not yet"
    assert "stopped with" not in verdict.hint


def key(arguments, keywords):
    return repr((arguments, sorted(keywords.items())))


def recorded(exercise):
    """What the solution answered in one check: arguments -> answer."""
    table = {}

    def answer(*arguments, **keywords):
        asked = key(arguments, keywords)
        table[asked] = exercise.solution(*arguments, **keywords)
        return table[asked]

    exercise.check(answer)
    assert table
    return table


def test_a_table_of_one_checks_answers_does_not_pass_the_next(exercise):
    table = recorded(exercise)
    first = next(iter(table.values()))

    def look_up(*arguments, **keywords):
        found = table.get(key(arguments, keywords), first)
        if exercise.name == "ch04_ex1":
            arguments[1].copy_(found)
            return arguments[1]
        return found

    verdict = exercise.check(look_up)
    assert verdict.status == "not yet"
    assert "stopped with" not in verdict.hint


def test_one_and_the_same_answer_to_all_cases_is_not_ok(exercise):
    for constant in recorded(exercise).values():
        assert exercise.check(lambda *a, constant=constant, **k: constant).status == "not yet"


def test_no_count_of_ctas_serves_every_link_and_transfer():
    from sparda.checks.ch04 import ch04_ex3

    assert {ch04_ex3(lambda *a, count=count: count).status for count in range(1, 133)} == {"not yet"}
