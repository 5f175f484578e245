"""The public-domain texts in ``data/text``: names, paths, contents. Their sources stand in NOTICE.md there.

>>> sorted(texts())
['jargon_file', 'king_james']
>>> sentences("king_james")[1]
'In the beginning God created the heaven and the earth.'
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path


def data_dir() -> Path:
    """Return the data folder: ``SPARDA_DATA`` if set, else ``data/`` of the checkout.

    FileNotFoundError: there is no such folder (the package was installed without a checkout).
    """
    folder = Path(os.environ.get("SPARDA_DATA") or Path(__file__).resolve().parents[1] / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no data folder at {folder}; work in a checkout of the repository, "
            "or set SPARDA_DATA to its data folder"
        )
    return folder


def texts() -> dict[str, Path]:
    """Return name -> path of every text, by name; the name is the file's without ``.txt``."""
    return {path.stem: path for path in sorted((data_dir() / "text").glob("*.txt"))}


def read_text(name: str) -> str:
    """Return one text whole; KeyError lists the known names."""
    known = texts()
    if name not in known:
        raise KeyError(f"unknown text {name!r}; choose one of {', '.join(known) or '(none found)'}")
    return known[name].read_text(encoding="utf-8")


def sentences(name: str) -> tuple[str, ...]:
    """Return the sentences of one text in order, line breaks inside them turned into spaces."""
    return _split(read_text(name))


@cache
def _split(text: str) -> tuple[str, ...]:
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return tuple(s for part in paragraphs if part for s in re.split(r"(?<=[.!?])\s+", part))
