"""Student and instructor versions: nothing is given away, and what is filled in is right."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

from sparda import cli, course
from sparda.figures.catalogue import BuildError

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
HANDED_OUT = {"broken_step"}  # what an exercise gives its reader, from a module of checkers


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Both versions of the course, as the command writes them."""
    folders = {version: tmp_path_factory.mktemp("course") / version for version in course.VERSIONS}
    arguments = [word for version, folder in folders.items() for word in (f"--{version}", str(folder))]
    assert cli.main(["course", *arguments]) == 0
    return folders


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def parsed(code: str) -> ast.Module:
    """A code cell without IPython's own lines."""
    return ast.parse("\n".join(line for line in code.splitlines() if line[:1] not in ("%", "!")))


def leaks(book: dict, solutions: course.Solutions) -> list[str]:
    """What a notebook gives away: outputs, answers and parts of them, remarks, answers of the checkers."""
    cells = [course.source(cell) for cell in book["cells"] if cell["cell_type"] == "code"]
    code = [ast.unparse(parsed(text)) for text in cells]
    words = " ".join(" ".join(course.source(cell).split()) for cell in book["cells"])
    found = [f"output of {cell['id']}" for cell in book["cells"] if cell.get("outputs")]
    for name, text in solutions.answers.items():
        found += [f"{name}: {part}" for part in parts(text) if any(part in cell for cell in code)]
    for name, remark in solutions.remarks.items():
        told = re.split(r"(?<=[.:;])\s+", re.sub(r"^\*\*\d+\.\*\* ", "", remark))
        found += [f"{name}: {part}" for part in told if len(part) > 24 and " ".join(part.split()) in words]
    for node in (node for text in cells for node in ast.walk(parsed(text))):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.match(r"ch\d\d\.", name) and not re.fullmatch(r"ch\d\d\.ch\d\d_ex\d", name):
                found.append(f"the checker's {name}")
        if isinstance(node, ast.ImportFrom) and re.fullmatch(r"sparda\.checks\.ch\d\d", node.module or ""):
            found += [f"the checker's {a.name}" for a in node.names if a.name not in HANDED_OUT]
    return found + (["a path of solutions"] if "notebooks/solutions" in words else [])


def parts(answer: str) -> set[str]:
    """Of an answer, as ast prints it: its body, what it returns, and all long expressions."""
    function = next(n for n in parsed(answer).body if isinstance(n, ast.FunctionDef))
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
    expressions = [n for n in ast.walk(function) if isinstance(n, ast.expr) and len(ast.unparse(n)) > 35]
    body = "\n".join(map(ast.unparse, function.body))
    return {body} | {text for n in (*returned, *expressions) if len(text := ast.unparse(n)) > 12}


def solutions_of(path: Path) -> course.Solutions:
    return course.Solutions.read(ROOT / "notebooks" / "solutions" / f"{path.stem}.py")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_student_version_gives_nothing_away(written, path):
    assert leaks(read(written["student"] / path.name), solutions_of(path)) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_source_gives_away_no_answer_either(path):
    book = course.student(read(path))
    assert leaks(book, solutions_of(path)) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_instructor_version_holds_every_answer_and_its_checkers_say_ok(written, path):
    book = read(written["instructor"] / path.name)
    said, stubs = course.verdicts(book), course.verdicts(read(written["student"] / path.name))
    assert {name: repr(verdict) for name, verdict in said.items()} == dict.fromkeys(stubs, "ok")
    assert {verdict.status for verdict in stubs.values()} == {"todo"}
    text = "\n".join(map(course.source, book["cells"]))
    assert all(answer in text for answer in solutions_of(path).answers.values())
    assert text.count("**Solution ") == len(said)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_checker_of_a_chapter_is_asked_in_it(path):
    module = importlib.import_module(f"sparda.checks.ch{path.stem[:2]}")
    checkers = {name for name in vars(module) if re.fullmatch(r"ch\d\d_ex\d", name)}
    assert set(course.verdicts(course.student(read(path)))) == checkers


def test_both_versions_are_notebooks_that_run_as_they_are(written):
    nbformat = pytest.importorskip("nbformat")
    for folder in written.values():
        assert (folder / "glossary.md").is_file()
        for path in folder.glob("*.ipynb"):
            nbformat.validate(nbformat.read(path, as_version=4))


def test_every_link_of_a_handout_leads_to_a_file_beside_it(written, broken_links):
    assert {version: broken_links(folder) for version, folder in written.items()} == {
        "student": [],
        "instructor": [],
    }


SOLVED = """# %% [markdown]
# **1.** Count the keys twice, then halve them.
# %%
def ex1_keys(n):
    return sum(n for _ in range(2)) / 2
"""


@pytest.mark.parametrize(
    ("kind", "text", "leak"),
    [
        ("code", "keys = sum(n for _ in range(2)) / 2", "ex1_keys: sum("),
        ("markdown", "Count the keys twice, then\nhalve them.", "ex1_keys: Count"),
        ("code", "from sparda.checks import ch07\nch07.samples_needed(0.5, 0.1)", "samples_needed"),
        ("code", "from sparda.checks.ch05 import crossing", "crossing"),
        ("markdown", "see `notebooks/solutions/00_start.py`", "a path of solutions"),
    ],
)
def test_each_kind_of_leak_is_found(tmp_path, kind, text, leak):
    (tmp_path / "solved.py").write_text(SOLVED, encoding="utf-8")
    solutions = course.Solutions.read(tmp_path / "solved.py")
    book = {"cells": [{"cell_type": kind, "id": "a", "metadata": {}, "source": [text]}]}
    assert any(leak in found for found in leaks(book, solutions))


def test_a_wrong_solution_stops_the_instructor_version(tmp_path):
    notebooks = tmp_path / "notebooks"
    (notebooks / "solutions").mkdir(parents=True)
    (notebooks / CHAPTERS[0].name).write_text(CHAPTERS[0].read_text(encoding="utf-8"), encoding="utf-8")
    solved = (ROOT / "notebooks" / "solutions" / f"{CHAPTERS[0].stem}.py").read_text(encoding="utf-8")
    place = notebooks / "solutions" / f"{CHAPTERS[0].stem}.py"
    place.write_text(solved.replace("-(-n_tokens // block_size)", "n_tokens // block_size"), encoding="utf-8")
    with pytest.raises(BuildError, match="ch00_ex1 says not yet"):
        course.versions(tmp_path, "instructor")
    place.write_text(solved.replace("ex1_share_read", "ex1_share"), encoding="utf-8")
    with pytest.raises(BuildError, match="disagree about ex1_share, ex1_share_read"):
        course.versions(tmp_path, "student")


def test_a_folder_with_work_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.ipynb").write_text("{}")
    assert cli.main(["course", "--student", str(tmp_path)]) == 2
    assert "not empty; name a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.ipynb"]
    assert cli.main(["course"]) == 2
    assert "--student DIR" in capsys.readouterr().err
    with pytest.raises(BuildError, match="runs in a checkout"):
        course.versions(tmp_path, "student")


def test_an_instructor_chapter_runs_to_its_end_and_says_ok(written):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    path = written["instructor"] / "01_kv_math.ipynb"  # arithmetic only: no weights, some seconds
    book = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3", resources=where).execute()
    said = [cell.outputs[0]["data"]["text/plain"] for cell in book.cells if course.is_exercise(cell)]
    assert said == ["ok"] * len(said) != []
