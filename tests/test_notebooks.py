"""Hygiene of the chapters: what keeps them small, diffable, and runnable by every profile."""

from __future__ import annotations

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from sparda.figures import catalogue

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EVERY = CHAPTERS + sorted((ROOT / "notebooks" / "solutions").glob("*.ipynb"))
TAGS = {"parameters", "keep_output", "nbval-check-output", "exercise", "raises-exception", "hide-input"}
ABSOLUTE = re.compile(r"""["'`( ](/(?:home|root|tmp|work|usr|mnt|Users|opt)/|[A-Z]:\\\\)""")
LITERALS = {"bool", "int", "float", "str", "list", "tuple", "dict"}


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def faults(path: Path) -> list[str]:
    """All that is wrong with one notebook, each fault in a sentence."""
    book, found = read(path), []
    kernel = book["metadata"].get("kernelspec", {})
    if (kernel.get("name"), kernel.get("display_name")) != ("python3", "Python 3"):
        found.append("kernelspec must be python3, displayed as Python 3")
    if path.stat().st_size > 200_000:
        found.append(f"{path.stat().st_size} bytes; at most 200,000: strip its outputs")
    if "widgets" in book["metadata"]:
        found.append("widget state is saved; strip it with nbstripout")
    parameter_cells = [cell for cell in book["cells"] if "parameters" in tags(cell)]
    if len(parameter_cells) != 1:
        found.append(f"{len(parameter_cells)} cells are tagged parameters; exactly one is needed")
    for cell in parameter_cells:
        found += parameter_faults(source(cell))
    for number, cell in enumerate(book["cells"]):
        found += [f"cell {number}: {fault}" for fault in cell_faults(cell)]
    return found


def parameter_faults(text: str) -> list[str]:
    """Annotated literals only: papermill reads type and help from exactly this form."""
    found, names = [], set()
    for node in ast.parse(text).body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value):
            found.append(f"parameters: write `name: type = literal`, not `{ast.unparse(node)}`")
            continue
        names.add(node.target.id)
        kind = ast.unparse(node.annotation).split("[")[0]
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            found.append(f"parameters: {node.target.id} is derived; an override would not reach it")
            continue
        if kind not in LITERALS or type(value).__name__ != kind:
            found.append(f"parameters: {node.target.id} is declared {kind}, but its default is {value!r}")
        if isinstance(value, str) and "=" in value:
            found.append(f"parameters: papermill loses the = inside {node.target.id}")
    if "profile" not in names:
        found.append('parameters: profile: str = "smoke" is missing')
    return found


def cell_faults(cell: dict) -> list[str]:
    found = []
    unknown = set(tags(cell)) - TAGS
    if unknown:
        found.append(f"unknown tags {sorted(unknown)}")
    if ABSOLUTE.search(source(cell)):
        found.append("absolute path")
    if cell["cell_type"] != "code":
        return found
    if len(source(cell).splitlines()) > 20:
        found.append("more than 20 lines")
    if cell["outputs"] and "keep_output" not in tags(cell):
        found.append("has outputs; run nbstripout, or tag it keep_output")
    if cell["outputs"] and cell.get("execution_count") is None:
        found.append("has outputs but no execution count, which nbval asks for; strip with --keep-count")
    if "nbval-check-output" in tags(cell) and not cell["outputs"]:
        found.append("is checked by nbval but has no saved output")
    return found


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_a_chapter_is_clean(path):
    assert faults(path) == []


def test_figures_yml_and_the_folder_name_the_same_chapters():
    assert [chapter.notebook for chapter in catalogue.read(ROOT).values()] == [path.name for path in CHAPTERS]


def test_a_chapter_publishes_the_figures_that_are_declared_for_it():
    for chapter in catalogue.read(ROOT).values():
        text = "\n".join(source(cell) for cell in read(ROOT / "notebooks" / chapter.notebook)["cells"])
        named = set(re.findall(r"publish\(\s*[\"'](\w+)", text))
        assert named == {figure.name for figure in chapter.figures}, chapter.notebook


HEADS = (
    "Parameters",
    "Predict",
    "By hand",
    "The library says the same",
    "Where it breaks",
    "Exercises",
    "Summary",
)
TEMPLATE = ("**Promise.**", "**Time**", *(f"## {head}" for head in HEADS), "Next: ")


def off_template(book: dict) -> list[str]:
    """The parts of the template that a chapter lacks, or another order; Play may stand anywhere."""
    prose = "\n".join(source(cell) for cell in book["cells"] if cell["cell_type"] == "markdown")
    places = [prose.find(part) for part in TEMPLATE]
    lacking = [part for part in (*TEMPLATE, "## Play") if part not in prose]
    return lacking or ([] if places == sorted(places) else ["another order"])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_follows_the_template(path):
    assert off_template(read(path)) == []


def test_a_part_that_is_missing_or_out_of_place_is_found():
    cells = [{"cell_type": "markdown", "source": [part]} for part in (*TEMPLATE, "## Play")]
    assert off_template({"cells": cells}) == []
    assert off_template({"cells": cells[1:]}) == ["**Promise.**"]
    assert off_template({"cells": cells[::-1]}) == ["another order"]


@pytest.mark.parametrize(("path", "after"), list(pairwise(CHAPTERS)))
def test_a_chapter_names_the_next_one(path, after):
    assert f"Next: `{after.stem}`" in source(read(path)["cells"][-1])


def test_chapters_name_only_chapters_that_exist():
    known = {path.stem for path in CHAPTERS}
    for path in CHAPTERS:
        prose = "\n".join(source(cell) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
        assert set(re.findall(r"`(\d\d_\w+)`", prose)) <= known
        assert {n[:2] for n in re.findall(r"chapters? (\d\d)\b", prose)} <= {stem[:2] for stem in known}


def course_map() -> dict[str, tuple[str, str]]:
    """Chapter -> time in minutes and what comes before, as the README's course section has them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.compile(
        r"^\| \[\d\d [^\]]+\]\(notebooks/(\w+)\.ipynb\) \| (\d+) min \| ([^|]+) \|", re.MULTILINE
    )
    return {name: (minutes, before) for name, minutes, before in row.findall(text)}


def test_the_course_map_has_every_chapter_and_six_hours():
    found = course_map()
    assert list(found) == [path.stem for path in CHAPTERS]
    assert 330 <= sum(int(minutes) for minutes, _ in found.values()) <= 390


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_and_the_course_map_agree(path):
    minutes, before = course_map()[path.stem]
    assert f"**Time** {minutes} minutes. **Before** {before}." in source(read(path)["cells"][0])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_solutions_and_does_not_give_them_away(path):
    beside = sorted((ROOT / "notebooks" / "solutions").glob(f"{path.stem}.*"))
    assert beside, f"write notebooks/solutions/{path.stem}.py"
    answers = beside[0].read_text(encoding="utf-8")
    if beside[0].suffix == ".ipynb":
        answers = "\n".join(source(cell) for cell in read(beside[0])["cells"] if cell["cell_type"] == "code")
    given = bodies("\n".join(plain(cell) for cell in read(path)["cells"] if cell["cell_type"] == "code"))
    for name, body in bodies(answers).items():
        assert given.get(name) != body, f"{path.name} contains the answer of {name}"


def plain(cell: dict) -> str:
    """A code cell without IPython's own lines."""
    return "\n".join(line for line in source(cell).splitlines() if line[:1] not in ("%", "!"))


def bodies(code: str) -> dict[str, str]:
    """Function name -> its body without the docstring, for the exercises (names with ex in them)."""
    found = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef) and re.match(r"(ch\d+_)?ex", node.name):
            rest = [
                n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
            ]
            found[node.name] = "\n".join(map(ast.unparse, rest)) or "..."
    return {
        name: body for name, body in found.items() if body not in ("...", "pass", "return None", "return ...")
    }


GOOD = {
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "cells": [
        {
            "cell_type": "code",
            "source": ['profile: str = "smoke"'],
            "outputs": [],
            "metadata": {"tags": ["parameters"]},
        },
        {"cell_type": "code", "source": ["x = 1"], "outputs": [], "metadata": {}},
    ],
}


def with_cell(**changes) -> dict:
    return {**GOOD, "cells": [GOOD["cells"][0], {**GOOD["cells"][1], **changes}]}


def with_parameters(text: str) -> dict:
    return {**GOOD, "cells": [{**GOOD["cells"][0], "source": [text]}]}


@pytest.mark.parametrize(
    ("book", "fault"),
    [
        ({**GOOD, "metadata": {}}, "kernelspec"),
        ({**GOOD, "metadata": {**GOOD["metadata"], "widgets": {}}}, "widget state"),
        ({**GOOD, "cells": []}, "0 cells are tagged parameters"),
        (with_cell(source=["x\n"] * 21), "more than 20 lines"),
        (with_cell(outputs=[{}]), "has outputs; run nbstripout"),
        (with_cell(outputs=[{}], metadata={"tags": ["keep_output"]}), "no execution count"),
        (with_cell(source=["open('/home/me/x')"]), "absolute path"),
        (with_cell(metadata={"tags": ["secret"]}), "unknown tags"),
        (with_cell(metadata={"tags": ["nbval-check-output"]}), "no saved output"),
        (with_parameters("n = 3\nprofile: str = 'smoke'"), "name: type = literal"),
        (with_parameters("n: int = 3 * 4\nprofile: str = 'smoke'"), "derived"),
        (with_parameters("n: int = 3.0\nprofile: str = 'smoke'"), "declared int"),
        (with_parameters("s: str = 'a=b'\nprofile: str = 'smoke'"), "loses the ="),
        (with_parameters("n: int = 3"), "profile: str"),
    ],
)
def test_each_fault_is_found(tmp_path, book, fault):
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps(GOOD))
    assert faults(path) == []
    path.write_text(json.dumps(book))
    assert fault in "; ".join(faults(path))
