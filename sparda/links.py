"""Relative links of notebooks and texts that leave the checkout: each leads to a file that goes along.

A link to a file that stays behind becomes its words, with the place where a checkout has the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import PurePosixPath

LINK = re.compile(r"!?\[(?P<words>[^\]]*)\]\((?P<target>[^)\s]+)\)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|/", re.IGNORECASE)  # a scheme, a place on the same page


def relative(text: str) -> list[str]:
    """Targets of a Markdown text's relative links, without the place on their page."""
    found = [match["target"] for match in LINK.finditer(text)]
    return [target.partition("#")[0] for target in found if not ELSEWHERE.match(target)]


def only(text: str, along: Collection[str], home: str = "notebooks") -> str:
    """A Markdown text whose relative links lead to the names in ``along`` alone.

    home : the folder of the checkout that the text comes from; other links name their file as seen from the
        checkout's root, such as `data/forecasts/README.md`
    """

    def keep(match: re.Match) -> str:
        words, target = match["words"], match["target"].partition("#")[0]
        if ELSEWHERE.match(match["target"]) or target in along:
            return match[0]
        place = PurePosixPath(os.path.normpath(PurePosixPath(home, target)).replace(os.sep, "/"))
        return f"{words}, `{place}` in the repository" if str(place) not in words else words

    return LINK.sub(keep, text)


def to_pages(text: str) -> str:
    """A Markdown text whose relative links lead to the HTML pages of notebooks and texts."""

    def turn(match: re.Match) -> str:
        if ELSEWHERE.match(match["target"]):
            return match[0]
        return match[0].replace(match["target"], re.sub(r"\.(ipynb|md)(?=#|$)", ".html", match["target"]))

    return LINK.sub(turn, text)


def only_in_notebook(book: dict, along: Collection[str]) -> None:
    """Hold the Markdown cells of a notebook, as JSON, to ``only``."""
    for cell in book["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = only("".join(cell["source"]), along).splitlines(keepends=True)
