"""Exercise checkers: they answer in one line and never raise, so an untouched notebook runs to its end.

Each asks for a few cases that tell mistakes apart, then for some drawn anew at every check. A hint names the
mistake, or the case and on which side the answer is wrong, and never the answer.

>>> @checker
... def double(student):
...     for x in (3, Random().randrange(100)):
...         if not close(student(x), 2 * x):
...             return Verdict("not yet", f"{x} gave {student(x)}, {off(student(x), 2 * x)}")
...     return Verdict("ok")
>>> double(lambda x: x + x), double(lambda x: x + 1), double(lambda x: ...)
(ok, not yet: 3 gave 4, too small, todo: write the answer, then run this cell again)
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random as Random  # seeded by the system: no two checks draw alike

STATUSES = ("ok", "todo", "not yet")


@dataclass(frozen=True)
class Verdict:
    """What a checker says: status "ok", "todo" or "not yet", and a hint that names the first thing wrong."""

    status: str
    hint: str = ""

    def __post_init__(self):
        if self.status not in STATUSES:
            raise ValueError(f"status is one of {', '.join(STATUSES)}, got {self.status!r}")

    def __repr__(self) -> str:
        hint = " ".join(self.hint.split())
        return f"{self.status}: {hint}" if hint else self.status


TODO = Verdict("todo", "write the answer, then run this cell again")


class _Unfinished(Exception):
    """The student's function returned None or ``...``."""


class _Borrowed(Exception):
    """The student's function called one that is the answer."""


def _watched(student: Callable, without: Iterable[Callable]) -> Callable:
    """The student's function, unchanged but for empty and borrowed answers, which stop the checker."""
    answers = {inspect.unwrap(known).__code__: known.__name__ for known in without}

    @functools.wraps(student)
    def call(*args, **kwargs):
        borrowed = []

        def note(frame, event, _):
            if event == "call" and frame.f_code in answers:
                borrowed.append(answers[frame.f_code])

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            answer = student(*args, **kwargs)
        finally:
            sys.setprofile(before)
        if borrowed:
            raise _Borrowed(borrowed[0])
        if answer is None or answer is ...:
            raise _Unfinished
        return answer

    return call


def checker(check: Callable | None = None, *, without: Iterable[Callable] = ()):
    """Make ``check(student) -> Verdict`` safe: no answer is "todo", an exception is "not yet".

    without : functions that are the answer, such as the one that ``check`` compares with; an answer that
        calls one is "not yet"
    """
    if check is None:
        return functools.partial(checker, without=without)

    @functools.wraps(check)
    def safe(student=None) -> Verdict:
        if student is None or student is ...:
            return TODO
        try:
            verdict = check(_watched(student, without) if callable(student) else student)
        except (_Unfinished, NotImplementedError):
            return TODO
        except _Borrowed as borrowed:
            return Verdict("not yet", f"it calls {borrowed}, which is the answer; write it yourself")
        except Exception as error:
            return Verdict("not yet", f"it stopped with {type(error).__name__}: {error}")
        return verdict if isinstance(verdict, Verdict) else TODO

    return safe


def close(got: float, want: float, rel_tol: float = 1e-6) -> bool:
    """Whether two numbers are equal but for rounding; NaN is equal to nothing."""
    return math.isclose(got, want, rel_tol=rel_tol)


def off(got: float, want: float) -> str:
    """On which side a wrong number lies, in words.

    >>> off(3, 2), off(float("nan"), 2)
    ('too large', 'which is no number')
    """
    return "too large" if got > want else "too small" if got < want else "which is no number"
