"""The exercises of all chapters: the stub that a notebook hands out, its solution, and wrong answers."""

from __future__ import annotations

import importlib.util
import json
import runpy
from pathlib import Path

import pytest

from sparda import course

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parents[1] / "notebooks"


def wrong_answers(number: str) -> dict[str, list]:
    """Checker -> the wrong answers that the tests of its chapter give it."""
    path = HERE / f"test_ch{number}.py"
    spec = importlib.util.spec_from_file_location(f"wrong_answers_{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, list] = {}
    for name, answer, _ in getattr(module, "WRONG", ()):  # a checker's name, an answer, a part of its hint
        found.setdefault(name, []).append(answer)
    cases = getattr(module, "CASES", ())
    if isinstance(cases, dict):
        cases = [(check, None, wrong) for check, (_, wrong) in cases.items()]
    return found | {check.__name__: wrong for check, _, wrong in cases}


def exercises() -> list:
    """One parameter for each exercise: its chapter's number and path, and its cell."""
    found = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if course.is_exercise(cell):
                check = course.CHECK.search(course.source(cell)).group("check")
                found.append(pytest.param(path, cell, check, id=check))
    return found


@pytest.mark.parametrize(("path", "cell", "check"), exercises())
def test_stub_solution_and_three_wrong_answers_are_told_apart(path, cell, check, answers_back):
    names: dict = {}
    exec(course.CHECK.sub("", course.source(cell)), names)
    task = course.stub(cell).name
    solved = runpy.run_path(str(NOTEBOOKS / "solutions" / f"{path.stem}.py"))[task]
    wrong = wrong_answers(path.stem[:2])[check]
    assert len(wrong) >= 3
    module = importlib.import_module(f"sparda.checks.{check.split('_')[0]}")
    answers_back(getattr(module, check), names[task], solved, wrong)
