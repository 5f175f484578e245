"""The offline gallery: figures/index.html with one plotly.min.js, and a PNG beside each figure.

What the page says stands in ``gallery_page``, what is set beside the paper in ``published``.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from sparda import build_report
from sparda.figures import catalogue, gallery_page, published

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


def draw_pngs(folder: Path) -> None:
    """Draw ``<name>.png`` beside every figure JSON of ``folder``; say why if that cannot be done.

    A PNG serves readers on a code-hosting page: white paper, dark ink, readable on any background.
    """
    browser = find_browser()
    if browser is None or find_spec("kaleido") is None:
        print("no PNG drawn: that needs Chromium and the package kaleido; the PNGs here stay as they are")
        return
    figures = {}
    for path in sorted(folder.glob("*.json")):
        figures[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        figures[path.stem]["layout"].update(paper_bgcolor="white", font={"color": "#1c2024"})
    try:
        pictures = asyncio.run(asyncio.wait_for(_pictures(figures, browser), timeout=60 + 10 * len(figures)))
    except Exception as error:  # the browser's trouble must not cost the chapter's numbers
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"no PNG drawn: {browser} failed ({reason[:200]}); the PNGs here stay as they are")
        return
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)


def write(root: Path, folder: Path, *, pictures: bool = False) -> Path:
    """Write ``folder/index.html`` from figures, figures.yml and the last build's report; return its path.

    pictures : also draw PNGs of what stands beside the paper, where a browser is found
    """
    from plotly.offline import get_plotlyjs

    folder.mkdir(parents=True, exist_ok=True)
    report = build_report.read(folder / ".state")
    paper = (root / "data" / "paper").is_dir()
    beside = list(published.build(folder, pictures=pictures)) if paper else []
    page = gallery_page.page(root, folder, catalogue.read(root), report, beside)
    for name, text in {"plotly.min.js": get_plotlyjs(), "index.html": page}.items():
        fresh = folder / f".{name}.new"
        try:
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, folder / name)
        finally:
            fresh.unlink(missing_ok=True)  # what a full disk has cut off
    return folder / "index.html"
