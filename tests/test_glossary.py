"""The glossary and the chapters: every term is used where it says, and nothing goes by two names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
CHAPTERS = sorted(NOTEBOOKS.glob("*.ipynb"))
ROW = re.compile(
    r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| \[\d\d\]\((?P<chapter>[^)]+)\) \|(?P<not>[^|]*)\|$"
)


def rows() -> list[dict[str, str]]:
    """The glossary's table."""
    lines = (NOTEBOOKS / "glossary.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ")][1:]
    found = [ROW.match(line) for line in table]
    bad = [line for line, match in zip(table, found, strict=True) if match is None]
    assert not bad, f"write `| term | meaning | [NN](chapter) | not |`: {bad}"
    return [{name: text.strip() for name, text in match.groupdict().items()} for match in found if match]


def prose(path: Path) -> str:
    """What a reader reads: markdown, and comments and texts of the code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return " ".join(" ".join("".join(cell["source"]).split()) for cell in cells)


def says(text: str, term: str) -> bool:
    """Whether a text has the term or its plural; case counts only for terms that have a capital."""
    flags = 0 if term != term.lower() else re.IGNORECASE
    return bool(re.search(rf"(?<![\w-]){re.escape(term)}(?:s|es)?(?![\w-])", text, flags))


ROWS = rows()
TEXTS = {path.name: prose(path) for path in CHAPTERS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["term"])
def test_a_term_is_used_in_the_chapter_that_explains_it(row):
    assert says(TEXTS[row["chapter"]], row["term"])


def test_no_chapter_uses_another_word_for_a_term():
    found = [
        f"{name}: {word!r}, say {row['term']!r}"
        for row in ROWS
        for word in filter(None, map(str.strip, row["not"].split(",")))
        for name, text in TEXTS.items()
        if says(text, word)
    ]
    assert not found


def test_terms_are_in_order_and_each_is_there_once():
    terms = [row["term"].lower() for row in ROWS]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_chapter_links_to_the_glossary_at_its_beginning(path):
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    assert "[glossary](glossary.md)" in "".join(first["source"])


def test_a_forbidden_word_is_found_and_a_longer_one_is_not():
    assert says("Two Chunks of it", "chunk")
    assert not says("chunky", "chunk")
    assert not says("a forecast", "Forecast")
