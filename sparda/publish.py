"""Publish what was built: copy figures from the build's folder to figures/, which is committed.

A build writes into a folder that git ignores. What a maintainer has looked at there goes into the repository
by ``sparda reproduce --publish``, and by nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from sparda.figures import gallery
from sparda.figures.catalogue import Chapter

KINDS = ("json", "csv", "provenance.json", "png")


def publish(built: Path, folder: Path, chapters: Iterable[Chapter]) -> list[str]:
    """Copy the figures of the chapters and what is set beside the paper; return the names that were new.

    A picture is copied only if it was drawn from the figure that goes with it.
    """
    names = [figure.name for chapter in chapters for figure in chapter.figures]
    names += [f"published/{path.stem}" for path in sorted((built / "published").glob("*.json"))]
    drawn, kept = gallery.drawn(built), gallery.drawn(folder)
    new = []
    for name in names:
        if not (built / f"{name}.json").is_file():
            continue
        pictured = gallery.is_drawn(built, name, drawn)
        sources = [built / f"{name}.{kind}" for kind in KINDS if kind != "png" or pictured]
        pairs = [(path, folder / path.relative_to(built)) for path in sources if path.is_file()]
        if any(not to.is_file() or to.read_bytes() != path.read_bytes() for path, to in pairs):
            new.append(name)
        for path, to in pairs:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
        if pictured:
            kept[name] = drawn[name]
    gallery.note_drawn(folder, kept)
    return new
