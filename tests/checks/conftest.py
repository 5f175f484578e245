"""What the tests of all checkers share."""

from __future__ import annotations

import importlib.util
import json
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparda import course

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parents[1] / "notebooks"


@dataclass(frozen=True)
class Exercise:
    """One exercise: its checker, the stub of its cell, its solution, wrong answers, a part of each hint."""

    name: str
    check: Any
    stub: Any
    solution: Any
    wrong: list[tuple[Any, str]]


def _wrong(number: str) -> list:
    path = HERE / f"test_ch{number}.py"
    spec = importlib.util.spec_from_file_location(f"wrong_answers_{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WRONG


def _exercises() -> list[Exercise]:
    found = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        solved = runpy.run_path(str(NOTEBOOKS / "solutions" / f"{path.stem}.py"))
        wrong = _wrong(path.stem[:2])
        module = importlib.import_module(f"sparda.checks.ch{path.stem[:2]}")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if not course.is_exercise(cell):
                continue
            name = course.CHECK.search(course.source(cell)).group("check")
            given: dict = {}
            exec(course.CHECK.sub("", course.source(cell)), given)
            task = course.stub(cell).name
            told = [(answer, part) for check, answer, part in wrong if check == name]
            found.append(Exercise(name, getattr(module, name), given[task], solved[task], told))
    return found


def pytest_generate_tests(metafunc):
    """For tests that take ``exercise``, ``exercise_in_numbers`` (numbers to be met) or ``wrong_answer``."""
    if "exercise" in metafunc.fixturenames:
        metafunc.parametrize("exercise", _exercises(), ids=lambda exercise: exercise.name)
    if "exercise_in_numbers" in metafunc.fixturenames:
        some = [
            e for e in _exercises() if e.name not in ("ch04_ex2", "ch04_ex3")
        ]  # tasks; near the best will do
        metafunc.parametrize("exercise_in_numbers", some, ids=lambda exercise: exercise.name)
    if "wrong_answer" in metafunc.fixturenames:
        told = [
            (e.check, answer, part, f"{e.name}-{i}")
            for e in _exercises()
            for i, (answer, part) in enumerate(e.wrong)
        ]
        metafunc.parametrize("wrong_answer", [one[:3] for one in told], ids=[one[3] for one in told])
