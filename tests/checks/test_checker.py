from __future__ import annotations

import pytest

from sparda.checks import Verdict, checker


@checker
def sum_of_two(student):
    got = student(2, 3)
    return Verdict("ok") if got == 5 else Verdict("not yet", f"2 and 3 gave {got}, expected 5")


@pytest.mark.parametrize("stub", [None, ..., lambda a, b: None, lambda a, b: ...])
def test_an_untouched_stub_is_todo(stub):
    assert sum_of_two(stub).status == "todo"


def test_a_stub_that_raises_not_implemented_is_todo():
    def stub(a, b):
        raise NotImplementedError

    assert sum_of_two(stub).status == "todo"


def test_the_first_thing_wrong_is_named():
    assert repr(sum_of_two(lambda a, b: a * b)) == "not yet: 2 and 3 gave 6, expected 5"


@pytest.mark.parametrize("broken", [lambda: 5, lambda a, b: 1 / 0, 7, "text"])
def test_nothing_that_a_student_hands_over_raises(broken):
    assert sum_of_two(broken).status == "not yet"


def test_a_right_answer_is_ok():
    assert sum_of_two(lambda a, b: a + b) == Verdict("ok")


def test_a_checker_may_judge_a_value():
    check = checker(lambda answer: Verdict("ok" if answer == 34 else "not yet", ""))
    assert (check(34).status, check(33).status, check().status) == ("ok", "not yet", "todo")


def test_a_verdict_prints_on_one_line():
    assert str(Verdict("not yet", "two\nlines")) == "not yet: two lines"


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="todo"):
        Verdict("fine")
