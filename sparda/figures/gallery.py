"""The offline gallery: index.html with one plotly.min.js, and a PNG beside each figure.

It shows what was built in its folder, and for the rest what is published in figures/. What the page says
stands in ``gallery_page``, what is set beside the paper in ``published``.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from sparda import build_report, provenance
from sparda.figures import catalogue, gallery_page, published
from sparda.progress import duration

DRAWN = "pictures.sha256"
WITHOUT = "Figures, tables and gallery are whole without them; only a reader without scripts misses them"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")


def find_browser() -> str | None:
    """Path of a Chromium-like browser: BROWSER_PATH or the first one on the search path; None if absent."""
    given = os.environ.get("BROWSER_PATH")
    return given or next((path for name in BROWSERS if (path := shutil.which(name))), None)


async def _pictures(figures: dict[str, dict], browser: str) -> dict[str, bytes]:
    import kaleido

    # mathjax would be fetched from a network, and nothing here needs it
    async with kaleido.Kaleido(n=1, path=browser, mathjax=False) as painter:
        return {
            name: await painter.calc_fig(fig, opts={"format": "png", "width": 960, "scale": 1.5})
            for name, fig in figures.items()
        }


def draw_pngs(folder: Path, names: Iterable[str], published: Path | None = None) -> None:
    """Draw ``<name>.png`` beside each ``<name>.json`` of ``folder`` that has changed since it was last drawn.

    names     : of figures, such as "tiny" or "published/table4"; those that are not there are left out
    published : a folder whose pictures are taken over where they were drawn from the same figure

    A PNG serves readers on a code-hosting page: white paper, dark ink, readable on any background. The file
    pictures.sha256 says which JSON each was drawn from, so a build without a browser leaves work, not doubt.
    """
    known, there = drawn(folder), [n for n in sorted(set(names)) if (folder / f"{n}.json").is_file()]
    if published and published != folder:
        _take_over(folder, there, known, published)
    stale = [name for name in there if not is_drawn(folder, name, known)]
    if not stale:
        return
    browser = find_browser()
    if browser is None or find_spec("kaleido") is None:
        print(f"PNG of {len(stale)} figures not drawn: {_lack(browser)}. {WITHOUT}")
        return
    print(f"drawing PNG of {len(stale)} figures, about {duration(0.6 * len(stale) + 5)}", flush=True)
    figures = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in stale}
    keys = {name: provenance.sha256(folder / f"{name}.json") for name in stale}
    for figure in figures.values():
        figure["layout"].update(paper_bgcolor="white", font={"color": "#1c2024"})
    try:
        pictures = asyncio.run(asyncio.wait_for(_pictures(figures, browser), timeout=60 + 10 * len(figures)))
    except Exception as error:  # the browser's trouble must not cost the numbers
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"no PNG drawn: {browser} failed ({reason[:200]}); the PNGs here stay as they are")
        return
    for name, picture in pictures.items():
        _replace(folder / f"{name}.png", picture)
    note_drawn(folder, known | keys)


def _lack(browser: str | None) -> str:
    """What is missing for pictures, and how it comes here."""
    if browser is None:
        return "no Chromium is here; install it (Debian: apt-get install chromium) and run this command again"
    return "the package kaleido is missing; run `make -B install` and this command again"


def _take_over(folder: Path, names: list[str], known: dict[str, str], published: Path) -> None:
    """Copy published pictures of the same figures, and note them in ``known`` and in the folder."""
    theirs, before = drawn(published), dict(known)
    for name in names:
        same = theirs.get(name) == provenance.sha256(folder / f"{name}.json")
        if same and not is_drawn(folder, name, known) and (published / f"{name}.png").is_file():
            _replace(folder / f"{name}.png", (published / f"{name}.png").read_bytes())
            known[name] = theirs[name]
    if known != before:
        note_drawn(folder, known)


def is_drawn(folder: Path, name: str, known: dict[str, str]) -> bool:
    """Whether the picture of a figure that is there was drawn from it."""
    source = folder / f"{name}.json"
    return known.get(name) == provenance.sha256(source) and (folder / f"{name}.png").is_file()


def note_drawn(folder: Path, known: dict[str, str]) -> None:
    """Write down which JSON each picture was drawn from."""
    lines = [f"{key}  {name}.json\n" for name, key in sorted(known.items())]
    _replace(folder / DRAWN, "".join(lines).encode())


def drawn(folder: Path) -> dict[str, str]:
    """Figure -> hash of the JSON that its picture was drawn from."""
    try:
        lines = (folder / DRAWN).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = [line.split("  ", 1) for line in lines if "  " in line]
    return {name.removesuffix(".json"): key for key, name in pairs}


def _replace(path: Path, content: bytes) -> None:
    """Write a file anew in one rename."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(content)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)  # what a full disk has cut off


def write(root: Path, folder: Path, *, pictures: bool = False) -> Path:
    """Write ``folder/index.html`` from figures, figures.yml and the last build's report; return its path.

    pictures : first draw the PNGs of all figures that have changed, where a browser is found
    """
    from plotly.offline import get_plotlyjs

    folder.mkdir(parents=True, exist_ok=True)
    report, chapters = build_report.read(folder / ".state"), catalogue.read(root)
    beside = list(published.build(folder)) if (root / "data" / "paper").is_dir() else []
    if pictures:
        names = [figure.name for chapter in chapters.values() for figure in chapter.figures]
        names += [f"published/{path.stem}" for _, path in beside if path]
        draw_pngs(folder, names, root / "figures")
    page = gallery_page.page(root, folder, chapters, report, beside)
    for name, text in {"plotly.min.js": get_plotlyjs(), "index.html": page}.items():
        _replace(folder / name, text.encode())
    return folder / "index.html"
