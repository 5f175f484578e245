"""Build what the gallery sets beside the paper: ``published_entries`` says what there is.

``build`` writes the figures to ``<folder>/published/``, where something has changed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparda.figures.published_entries import BESIDE, Entry


def draw(entry: Entry) -> tuple[Any, Any] | None:
    """The entry's table (pandas) and figure; None for one that is text."""
    if entry.table is None or entry.draw is None:
        return None
    beside = entry.table()
    return beside.table, entry.draw(beside, note=entry.about)


def build(folder: Path, *, pictures: bool = False) -> Iterator[tuple[Entry, Path | None]]:
    """Write ``<folder>/published/<name>.json`` and ``.csv``, if asked for PNGs, where something has changed.

    Yields every entry with its figure's path, None for one that is text.
    """
    from sparda.figures.gallery import draw_pngs

    place = folder / "published"
    place.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".new-", dir=place))
    try:
        for entry in BESIDE:
            if drawn := draw(entry):
                _write(entry.name, *drawn, place, stage, pictures)
        if pictures and any(stage.glob("*.json")):
            draw_pngs(stage)
        for path in sorted(stage.iterdir()):
            os.replace(path, place / path.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    for entry in BESIDE:
        path = place / f"{entry.name}.json"
        yield entry, path if entry.draw is not None and path.is_file() else None


def _write(name: str, table: Any, figure: Any, place: Path, stage: Path, pictures: bool) -> None:
    """Into the stage, unless the same figure stands in its place."""
    text = figure.to_json() + "\n"
    old = place / f"{name}.json"
    same = old.is_file() and json.loads(old.read_text(encoding="utf-8")) == json.loads(text)
    if same and (not pictures or (place / f"{name}.png").is_file()):
        return
    (stage / f"{name}.json").write_text(text, encoding="utf-8")
    table.to_csv(stage / f"{name}.csv", index=False, float_format="%.9g", lineterminator="\n")
