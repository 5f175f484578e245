"""The gallery's page as text: what stands beside the paper, then every chapter's figures.

It works from a file, without a network. Where scripts are blocked, pictures and tables of numbers stand in
for the plots; where a figure is not new, a sentence says why and the last good one is shown.
"""

from __future__ import annotations

import csv
import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

from sparda.build_report import Report
from sparda.figures.catalogue import Chapter, Figure
from sparda.figures.page_parts import DRAW, STYLE, plot_of
from sparda.figures.published_entries import Entry

PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>SparDA Workbench: figures</title>
<style>"""
    + STYLE
    + """</style>
<noscript><style>.plot { display: none }</style></noscript>
<script src="plotly.min.js"></script></head><body>
<h1>SparDA Workbench: figures</h1>
<p>Every figure is made from the data beside it. Its second line says whether the numbers are
<em>measured</em>, <em>modelled</em> or <em>simulated</em>. This page needs no network.</p>
<noscript><p class="note">This browser runs no scripts: pictures stand in for the plots, and the numbers are
below each of them.</p></noscript>
<p class="note" id="no-plotly" hidden>plotly.min.js is not beside this page, so pictures stand in for the
plots; <code>make reproduce</code> or <code>sparda gallery</code> writes it.</p>
$banner<nav>$contents</nav>
$body
<script>"""
    + DRAW.replace("$", "$$")
    + """</script></body></html>
"""
)

FIGURE = Template("""<figure id="$name">
$note$plot<figcaption>$caption</figcaption>
<p class="stamp">$stamp</p>
<p class="links">$links</p>
</figure>
""")

BESIDE = Template("""<h3 id="paper-$name">$source</h3>
<figure>
$note$plot<figcaption>$about</figcaption>
<p class="stamp">$stamp</p>
<ul>$reasons</ul>
$numbers<p class="links">$links</p>
</figure>
""")


def page(
    root: Path, folder: Path, chapters: Mapping[str, Chapter], report: Report,
    beside: Sequence[tuple[Entry, Path | None]],
) -> str:  # fmt: skip
    """The whole page."""
    parts, contents = [], []
    if beside:
        contents.append('<a href="#paper">The paper\'s tables and figures, beside ours</a>')
        parts.append('<h2 id="paper">The paper\'s tables and figures, beside ours</h2>\n')
        parts.append(
            "<p>Published numbers as far as they were recovered (data/paper/README.md says from where); "
            "none was read in the paper itself. Where ours cannot exist yet, the reason stands "
            "there. Ours here are those of the GPU that wrote this page, where it has measured, else the "
            "committed ones of an H200; the chapters' figures below draw the committed ones on every card, "
            "as their stamps say.</p>\n"
        )
        parts += [_beside(entry, path, root, folder, report) for entry, path in beside]
    for chapter in chapters.values():
        heading = html.escape(_heading(root / "notebooks" / chapter.notebook))
        contents.append(f'<a href="#chapter-{chapter.name}">{heading}</a>')
        parts.append(f'<h2 id="chapter-{chapter.name}">{heading}</h2>\n')
        parts.append(_failed(chapter, report))
        parts += [_figure(figure, root, folder, report) for figure in chapter.figures]
    return PAGE.substitute(banner=_banner(report), contents=" · ".join(contents), body="".join(parts))


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>\n'


def _banner(report: Report) -> str:
    if not report.waiting:
        return ""
    return _note(
        f"A build that began on {report.started} has not come to its end; it is still running, or it was "
        f"stopped. Waiting: {', '.join(report.waiting)}. What you see is the last good result of each; "
        f"`{report.command}` goes on where it stopped."
    )


def _failed(chapter: Chapter, report: Report) -> str:
    note = report.notes.get(chapter.name)
    if note is None:
        return ""
    return _note(
        f"The last attempt to build this chapter failed ({note.date}): {note.text}. The figures below are "
        "those of the last good build; their stamps say when that was."
    )


def _not_measured(files: Iterable[str], report: Report) -> str:
    return "".join(
        _note(f"{name} was not measured anew ({note.date}): {note.text}. What was measured before is shown.")
        for name, note in report.about(files).items()
    )


def _plot(name: str, source: Path, alt: str, folder: Path) -> tuple[str, str]:
    """The plot and its stamp; ValueError for a figure that cannot be read."""
    drawn = json.loads(source.read_text(encoding="utf-8"))
    picture = source.with_suffix(".png")
    shown = _link(picture, folder) if picture.is_file() else ""
    return plot_of(f"plot-{name}", drawn, alt, picture=shown), html.escape(drawn["layout"]["meta"]["stamp"])


def _link(path: Path, folder: Path) -> str:
    return os.path.relpath(path, folder).replace(os.sep, "/")


def _home(name: str, root: Path, folder: Path) -> Path:
    """Where a figure is: built here, else as it was published."""
    return folder if (folder / f"{name}.json").is_file() else root / "figures"


def _figure(figure: Figure, root: Path, folder: Path, report: Report) -> str:
    home = _home(figure.name, root, folder)
    source = home / f"{figure.name}.json"
    if not source.is_file():
        return f"<p>{figure.name}: not built yet; run <code>make reproduce</code>.</p>\n"
    try:
        plot, stamp = _plot(figure.name, source, figure.alt, folder)
    except (ValueError, KeyError, TypeError):
        number = figure.notebook.split("_")[0]
        return _note(f"{figure.name}.json is damaged; `make reproduce CHAPTERS={number}` writes it again")
    return FIGURE.substitute(
        name=figure.name,
        note=_not_measured(figure.inputs, report),
        plot=plot,
        caption=html.escape(figure.caption),
        stamp=stamp,
        links=_links(figure, home, folder),
    )


def _links(figure: Figure, home: Path, folder: Path) -> str:
    targets = {
        "table (CSV)": home / f"{figure.name}.csv",
        "figure (JSON)": home / f"{figure.name}.json",
        "picture (PNG)": home / f"{figure.name}.png",
        "where it comes from": home / f"{figure.name}.provenance.json",
        "executed chapter": folder / "chapters" / f"{Path(figure.notebook).stem}.html",
        "as a notebook": folder / "chapters" / figure.notebook,
    }
    there = {text: _link(path, folder) for text, path in targets.items() if path.is_file()}
    return " · ".join(f'<a href="{path}">{text}</a>' for text, path in there.items())


def _heading(notebook: Path) -> str:
    """The chapter's own first heading."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for line in "".join(cell["source"]).splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("# "):
                return line[2:].strip()
    return notebook.stem


def _beside(entry: Entry, path: Path | None, root: Path, folder: Path, report: Report) -> str:
    plot, stamp, numbers = "", "text, or numbers of the paper only: nothing is drawn", ""
    sources = [root / "data" / "paper" / f"{name}.csv" for name in entry.files]
    alt = f"{entry.source}; the numbers are in the table below it"
    if path is not None:
        plot, stamp = _plot(f"paper-{entry.name}-plot", path, alt, folder)
        numbers = _table(path.with_suffix(".csv"), "numbers")
    else:
        numbers = "".join(_table(source, f"published: {source.stem}") for source in sources)
    links = [f'<a href="{_link(source, folder)}">{source.name}</a>' for source in sources]
    links += [f'<a href="#{name}">{name}</a>' for name in entry.see]
    return BESIDE.substitute(
        name=entry.name,
        source=html.escape(entry.source),
        note=_not_measured(entry.uses, report),
        plot=plot,
        about=html.escape(entry.about),
        stamp=stamp,
        reasons="".join(f"<li>{html.escape(reason)}</li>" for reason in entry.reasons),
        numbers=numbers,
        links=" · ".join(links),
    )


def _table(source: Path, title: str) -> str:
    """A CSV file as a table that is folded away, and needs no script to unfold."""
    with open(source, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(v)}</td>" for v in row) + "</tr>\n" for row in rows[1:]
    )
    return (
        f'<details><summary>{html.escape(title)}</summary><div class="wide"><table><tr>{head}</tr>\n'
        f"{body}</table></div></details>\n"
    )
