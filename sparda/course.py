"""Student and instructor versions of the chapters, made from one source.

The source is ``notebooks/NN_name.ipynb``, whose cells tagged ``exercise`` hold stubs, and
``notebooks/solutions/NN_name.py``, whose functions of the same names are the answers, each below a remark.

- student: the stubs, no output of any cell, no word of the solutions;
- instructor: each stub replaced by its answer, the remark below it. The answers are held to the checkers
  before anything is written.

Both are folders of notebooks with the glossary beside them, to be handed out as they are.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from sparda import links
from sparda.checks import Verdict
from sparda.figures.catalogue import BuildError
from sparda.provenance import ROOT

VERSIONS = ("student", "instructor")
GLOSSARY = "glossary.md"
# no such file where they go
WHERE = re.compile(r"\s*Solutions are in\s+\[`notebooks/solutions/\w+\.py`\]\(solutions/\w+\.py\)\.")
CHECK = re.compile(r"^ch\d+\.(?P<check>ch\d+_ex\d+)\((?P<answer>\w+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Solutions:
    """One file of solutions: what they import, and for each function its text and the remark above it."""

    before: str
    answers: dict[str, str]
    remarks: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Solutions:
        """From a file in py:percent form: markdown and code in turn."""
        answers, remarks, before, remark = {}, {}, [], ""
        for part in re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, _, text = part.partition("\n")
            if "[markdown]" in head:
                remark = "\n".join(line.removeprefix("# ") for line in text.strip().splitlines())
                continue
            functions = [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
            if not functions:
                before.append(text.strip())
            for name in functions:
                answers[name], remarks[name] = text.strip(), remark
        return cls("\n".join(before), answers, remarks)


def source(cell: dict) -> str:
    """The text of a notebook's cell."""
    return "".join(cell["source"])


def is_exercise(cell: dict) -> bool:
    """Whether the cell holds a stub and the call of its checker."""
    return "exercise" in cell["metadata"].get("tags", [])


def stub(cell: dict) -> ast.FunctionDef:
    """The function that the reader is to write."""
    return next(n for n in ast.parse(source(cell)).body if isinstance(n, ast.FunctionDef))


def student(book: dict) -> dict:
    """A copy of a chapter without outputs and without a word of its solutions."""
    book = copy.deepcopy(book)
    for cell in book["cells"]:
        cell["source"] = WHERE.sub("", source(cell)).splitlines(keepends=True)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return book


def instructor(book: dict, solutions: Solutions) -> dict:
    """A copy of a chapter with its answers in the exercise cells and a remark below each."""
    book, cells = student(book), []
    for cell in book["cells"]:
        if not is_exercise(cell):
            cells.append(cell)
            continue
        if solutions.before and not any(map(is_exercise, cells)):
            cells.append(_cell("code", f"{cell['id']}-before", solutions.before))
        task = stub(cell)
        lines = source(cell).splitlines()
        lines[task.lineno - 1 : task.end_lineno] = solutions.answers[task.name].splitlines()
        cells.append({**cell, "source": "\n".join(lines).splitlines(keepends=True)})
        remark = re.sub(r"^\*\*(\d+)\.\*\*", r"**Solution \1.**", solutions.remarks[task.name])
        cells.append(_cell("markdown", f"{cell['id']}-solved", remark))
    return {**book, "cells": cells}


def _cell(kind: str, name: str, text: str) -> dict:
    cell = {"cell_type": kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}
    return cell | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def verdicts(book: dict) -> dict[str, Verdict]:
    """Run the exercise cells of a version alone, and what the solutions import; what each checker says."""
    chapter = None
    said, names = {}, {}
    for cell in book["cells"]:
        text = source(cell)
        if str(cell.get("id", "")).endswith("-before"):
            exec(text, names)
        if not is_exercise(cell):
            continue
        check, answer = CHECK.search(text).group("check", "answer")  # type: ignore[union-attr]
        chapter = chapter or importlib.import_module(f"sparda.checks.{check.split('_')[0]}")
        exec(CHECK.sub("", text), names)
        said[check] = getattr(chapter, check)(names[answer])
    return said


def versions(root: Path, version: str) -> dict[str, dict]:
    """File name -> notebook of every chapter in one version.

    Raises BuildError if there are no chapters, if one has an exercise without a solution, or if its checkers
    do not say "todo" of every stub (student) or "ok" of every answer (instructor).
    """
    made, wanted = {}, {"student": "todo", "instructor": "ok"}[version]
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    if not paths:
        raise BuildError(f"no chapters in {root / 'notebooks'}; `sparda course` runs in a checkout")
    for path in paths:
        book = json.loads(path.read_text(encoding="utf-8"))
        solutions = Solutions.read(root / "notebooks" / "solutions" / f"{path.stem}.py")
        tasks = {stub(cell).name for cell in book["cells"] if is_exercise(cell)}
        if tasks != set(solutions.answers):
            odd = ", ".join(sorted(tasks ^ set(solutions.answers)))
            raise BuildError(f"{path.name} and its solutions disagree about {odd}; make them agree")
        made[path.name] = student(book) if version == "student" else instructor(book, solutions)
        for check, verdict in verdicts(made[path.name]).items():
            if verdict.status != wanted:
                raise BuildError(f"{path.name}: {check} says {verdict!r}, not {wanted}; mend the solution")
    return made


def write(version: str, folder: Path, *, root: Path = ROOT) -> list[Path]:
    """Write one version into a new or empty folder; return its notebooks.

    Raises BuildError for a folder that holds something: a student's work is never written over.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BuildError(f"{folder} is there and not empty; name a new folder, so that no work is lost")
    made = versions(root, version)
    along = {*made, GLOSSARY}
    folder.mkdir(parents=True, exist_ok=True)
    for name, book in made.items():
        links.only_in_notebook(book, along)
        text = json.dumps(book, indent=1, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    glossary = (root / "notebooks" / GLOSSARY).read_text(encoding="utf-8")
    (folder / GLOSSARY).write_text(links.only(glossary, along), encoding="utf-8")
    return [folder / name for name in made]


def _run(options) -> int:
    asked = {version: getattr(options, version) for version in VERSIONS if getattr(options, version)}
    if not asked:
        raise BuildError("say what to write: --student DIR, --instructor DIR, or both")
    for version, folder in asked.items():
        print(f"{folder}: {len(write(version, folder))} chapters, {version} version")
    return 0


def add_to(commands) -> None:
    """Add ``sparda course`` to the command line."""
    parser = commands.add_parser("course", help="write the chapters for students, or with solutions")
    parser.add_argument("--student", metavar="DIR", help="stubs, no outputs, no solutions")
    parser.add_argument("--instructor", metavar="DIR", help="solutions filled in, held to the checkers")
    parser.set_defaults(run=_run)
