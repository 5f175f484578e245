"""The texts that methods are judged on: those of ``data/text`` by name, or one's own files and folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sparda import text
from sparda.training.data import documents, problems


def read(source: str) -> str:
    """A text whole: a name of ``sparda.text``, a file in UTF-8, or the text files of a folder in order.

    KeyError: neither a known name nor a path. ValueError: empty, or no text.
    """
    if source in text.texts():
        return text.read_text(source)
    if not Path(source).expanduser().exists():
        raise KeyError(
            f"unknown text {source!r}; choose from {', '.join(text.texts())}, or give a file or a folder"
        )
    if source.endswith(".npy"):
        raise ValueError(f"{source} holds packed tokens; give the text itself, as a file or a folder")
    where = str(Path(source).expanduser())
    if found := list(problems([where], 0)):
        raise found[0]
    return "\n\n".join(documents(where))


def label(source: str) -> str:
    """What rows call a text: its name, or that of the file or folder with a hash of what it holds."""
    if source in text.texts():
        return source
    hashed = hashlib.sha256(read(source).encode()).hexdigest()[:8]
    return f"{Path(source).expanduser().resolve().stem}-{hashed}"
