"""An executed chapter as a page: text, code, tables and plots, to be read without Jupyter and a network."""

from __future__ import annotations

import copy
import html
from string import Template
from typing import Any

from sparda import links
from sparda.figures.page_parts import DRAW, STYLE, plot_of

PLOTLY = "application/vnd.plotly.v1+json"
PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title>
<style>"""
    + STYLE
    + """
pre { margin: 0; font: 13px/1.45 ui-monospace, monospace; overflow-x: auto }
.input_area { background: var(--code); border: 1px solid var(--rule); padding: .5rem .75rem;
  margin: .75rem 0 .25rem }
.prompt, .anchor-link { display: none } .output { margin: .25rem 0 1rem; overflow-x: auto }
.output_stderr { background: var(--note) }
p code, li code, td code { background: var(--code); padding: 0 .2em }
.highlight { background: none !important }
blockquote { border-left: 3px solid var(--rule); margin-left: 0; padding-left: 1rem }
td, th { vertical-align: top }
$code</style>
<script src="../plotly.min.js"></script></head><body>
<nav>$around</nav>
$body
<nav>$around</nav>
<script>"""
    + DRAW.replace("$", "$$")
    + """</script></body></html>
"""
)


def chapter(book: Any, title: str, around: str) -> str:
    """The page of an executed notebook (nbformat 4); ``around``: HTML above and below it."""
    book = copy.deepcopy(book)
    for number, cell in enumerate(book.cells):
        if cell.cell_type == "markdown":
            cell.source = links.to_pages(cell.source)
        for place, output in enumerate(cell.get("outputs", ())):
            if PLOTLY in output.get("data", {}):
                figure = output.data[PLOTLY]
                said = (figure["layout"].get("title") or {}).get("text", "a figure").replace("<br>", " ")
                output.data = {"text/html": plot_of(f"plot-{number}-{place}", figure, said)}
    return _page(book, title, around)


def text(markdown: str, title: str, around: str) -> str:
    """The page of a text in Markdown."""
    import nbformat

    cells = [nbformat.v4.new_markdown_cell(links.to_pages(markdown))]
    return _page(nbformat.v4.new_notebook(cells=cells), title, around)


def _page(book: Any, title: str, around: str) -> str:
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    body, _ = HTMLExporter(template_name="basic").from_notebook_node(book)
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    code = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"
    return PAGE.substitute(title=html.escape(title), code=code, around=around, body=body)
