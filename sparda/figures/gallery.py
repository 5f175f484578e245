"""The offline gallery: figures/index.html with one plotly.min.js, and a PNG beside each figure."""

from __future__ import annotations

import asyncio
import html
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from string import Template

from sparda.figures import catalogue

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>SparDA Workbench: figures</title>
<style>
:root { color-scheme: light dark; --ink: #1c2024; --quiet: #5a616b; --paper: #ffffff; --rule: #d9dde2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --quiet: #a3abb5; --paper: #14171a; --rule: #343a41 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h2 { border-top: 1px solid var(--rule); padding-top: 1.5rem }
figure { margin: 1rem 0 2.5rem } .plot { min-height: 440px } img { max-width: 100% }
.stamp, .links { color: var(--quiet); font-size: .875rem; margin: .25rem 0 } a { color: inherit }
</style>
<script src="plotly.min.js"></script></head><body>
<h1>SparDA Workbench: figures</h1>
<p>Every figure is made by a chapter from the data beside it. Its second line says whether the numbers are
<em>measured</em>, <em>modelled</em> or <em>simulated</em>. This page needs no network.</p>
$body
<script>
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  for (const data of document.querySelectorAll("script[type='application/json']")) {
    const fig = JSON.parse(data.textContent);
    fig.layout.font = {...fig.layout.font, color: ink};
    Plotly.react(data.dataset.plot, fig.data, fig.layout, {responsive: true, displaylogo: false,
      modeBarButtonsToRemove: ["sendChartToCloud"]});
  }
}
draw(); dark.addEventListener("change", draw);
</script></body></html>
""")

ENTRY = Template("""<figure id="$name">
<div class="plot" id="plot-$name" role="img" aria-label="$alt"></div>
<script type="application/json" data-plot="plot-$name">$data</script>
$picture<figcaption>$caption</figcaption>
<p class="stamp">$stamp</p>
<p class="links">$links</p>
</figure>
""")


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


def _links(name: str, notebook: str, folder: Path) -> str:
    targets = {
        "table (CSV)": f"{name}.csv",
        "figure (JSON)": f"{name}.json",
        "picture (PNG)": f"{name}.png",
        "where it comes from": f"{name}.provenance.json",
        "executed chapter": f"chapters/{notebook}",
    }
    present = {text: path for text, path in targets.items() if (folder / path).is_file()}
    return " · ".join(f'<a href="{path}">{text}</a>' for text, path in present.items())


def _entry(figure: catalogue.Figure, folder: Path) -> str:
    source = folder / f"{figure.name}.json"
    if not source.is_file():
        return f"<p>{figure.name}: not built yet; run <code>make reproduce</code>.</p>\n"
    drawn = json.loads(source.read_text(encoding="utf-8"))
    alt = html.escape(figure.alt)
    picture = f'<noscript><img src="{figure.name}.png" alt="{alt}"></noscript>\n'
    return ENTRY.substitute(
        name=figure.name,
        alt=alt,
        data=json.dumps(drawn).replace("</", "<\\/"),
        picture=picture if (folder / f"{figure.name}.png").is_file() else "",
        caption=html.escape(figure.caption),
        stamp=html.escape(drawn["layout"]["meta"]["stamp"]),
        links=_links(figure.name, figure.notebook, folder),
    )


def _heading(notebook: Path) -> str:
    """The chapter's own first heading."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for line in "".join(cell["source"]).splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("# "):
                return line[2:].strip()
    return notebook.stem


def write(root: Path, folder: Path) -> Path:
    """Write ``folder/index.html`` from the built figures and figures.yml; return its path."""
    from plotly.offline import get_plotlyjs

    parts = []
    for chapter in catalogue.read(root).values():
        parts.append(f"<h2>{html.escape(_heading(root / 'notebooks' / chapter.notebook))}</h2>\n")
        parts += [_entry(figure, folder) for figure in chapter.figures]
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"plotly.min.js": get_plotlyjs(), "index.html": PAGE.substitute(body="".join(parts))}
    for name, text in texts.items():
        fresh = folder / f".{name}.new"
        try:
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, folder / name)
        finally:
            fresh.unlink(missing_ok=True)  # what a full disk has cut off
    return folder / "index.html"
