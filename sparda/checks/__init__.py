"""Exercise checkers: they answer in one line and never raise, so an untouched notebook runs to its end.

>>> @checker
... def double(student):
...     if student(3) != 6:
...         return Verdict("not yet", f"3 gave {student(3)}, expected 6")
...     return Verdict("ok")
>>> double(lambda x: x + x), double(lambda x: x + 1), double(lambda x: ...)
(ok, not yet: 3 gave 4, expected 6, todo: write the answer, then run this cell again)
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass

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


def _watched(student):
    """The student's function, unchanged but for its empty answers, which stop the checker."""

    @functools.wraps(student)
    def call(*args, **kwargs):
        answer = student(*args, **kwargs)
        if answer is None or answer is ...:
            raise _Unfinished
        return answer

    return call


def checker(check):
    """Make ``check(student) -> Verdict`` safe: no answer is "todo", an exception is "not yet"."""

    @functools.wraps(check)
    def safe(student=None) -> Verdict:
        if student is None or student is ...:
            return TODO
        try:
            verdict = check(_watched(student) if inspect.isroutine(student) else student)
        except (_Unfinished, NotImplementedError):
            return TODO
        except Exception as error:
            return Verdict("not yet", f"it stopped with {type(error).__name__}: {error}")
        return verdict if isinstance(verdict, Verdict) else TODO

    return safe
