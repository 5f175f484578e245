"""Build what the gallery sets beside the paper: ``published_entries`` says what there is.

``build`` writes the figures to ``<folder>/published/``, where something has changed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparda.figures.published_entries import BESIDE, Entry
from sparda.figures.style import fit


def draw(entry: Entry) -> tuple[Any, Any] | None:
    """The entry's table (pandas) and figure; None for one that is text."""
    if entry.table is None or entry.draw is None:
        return None
    beside = entry.table()
    return beside.table, entry.draw(beside, note=entry.about)


def build(folder: Path) -> Iterator[tuple[Entry, Path | None]]:
    """Write ``<folder>/published/<name>.json`` and ``.csv`` where something has changed.

    Yields every entry with its figure's path, None for one that is text.
    """
    place = folder / "published"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=place) as stage:
        for entry in BESIDE:
            if drawn := draw(entry):
                _write(entry.name, *drawn, place, Path(stage))
        for path in sorted(Path(stage).iterdir()):
            os.replace(path, place / path.name)
    for entry in BESIDE:
        path = place / f"{entry.name}.json"
        yield entry, path if entry.draw is not None and path.is_file() else None


def _write(name: str, table: Any, figure: Any, place: Path, stage: Path) -> None:
    """Into the stage, unless the same figure stands in its place."""
    text, old = fit(figure).to_json() + "\n", place / f"{name}.json"
    if old.is_file() and old.read_text(encoding="utf-8") == text:
        return
    (stage / f"{name}.json").write_text(text, encoding="utf-8")
    table.to_csv(stage / f"{name}.csv", index=False, float_format="%.9g", lineterminator="\n")
