"""What the gallery and the pages of chapters share: their look, a plot, and the script that draws it.

A plot is drawn when it comes near the window, so that a page of fifty opens at once; printing draws the rest.
"""

from __future__ import annotations

import html
import json
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --quiet: #5a616b; --paper: #ffffff; --rule: #d9dde2;
  --note: #fbe8d3; --code: #f4f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --quiet: #a3abb5; --paper: #14171a; --rule: #343a41; --note: #46290b;
    --code: #1d2125 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h2, h3 { border-top: 1px solid var(--rule); padding-top: 1.5rem }
figure { margin: 1rem 0 2.5rem } .plot { min-width: 40rem } img { max-width: 100% }
.stamp, .links, nav { color: var(--quiet); font-size: .875rem; margin: .25rem 0 } a { color: inherit }
.note { background: var(--note); border-left: 4px solid #c8690a; padding: .5rem .75rem }
table { border-collapse: collapse; font-size: .875rem }
td, th { padding: .1rem .75rem .1rem 0; text-align: left }
.wide { overflow-x: auto }
"""

DRAW = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const plots = [...document.querySelectorAll(".plot")];
function draw(plot) {
  const fig = JSON.parse(document.querySelector(`script[data-plot="${plot.id}"]`).textContent);
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  fig.layout.font = {...fig.layout.font, color: ink};
  if (matchMedia("(pointer: coarse)").matches) fig.layout.dragmode = false;  // a finger scrolls
  plot.drawn = true;
  Plotly.react(plot, fig.data, fig.layout, {responsive: true, displaylogo: false,
    modeBarButtonsToRemove: ["sendChartToCloud"]});
}
function drawAll() { plots.filter((plot) => !plot.drawn).forEach(draw); }
if (window.Plotly) {
  const near = new IntersectionObserver((seen) => seen.forEach(({isIntersecting, target}) => {
    if (isIntersecting && !target.drawn) draw(target);
  }), {rootMargin: "600px 0px"});
  plots.forEach((plot) => near.observe(plot));
  dark.addEventListener("change", () => plots.filter((plot) => plot.drawn).forEach(draw));
  addEventListener("beforeprint", drawAll);
} else {
  for (const note of document.querySelectorAll("#no-plotly")) note.hidden = false;
  for (const plot of plots) plot.hidden = true;
  for (const hidden of document.querySelectorAll(".plotted noscript")) hidden.outerHTML = hidden.textContent;
}
"""


def plot_of(name: str, figure: dict[str, Any], alt: str, *, picture: str = "") -> str:
    """The HTML of a plot, from its JSON; ``picture``: what stands in where scripts do not run."""
    data, alt = json.dumps(figure).replace("</", "<\\/"), html.escape(alt)
    image = f'<noscript><img src="{picture}" alt="{alt}" loading="lazy"></noscript>' if picture else ""
    height = int(figure["layout"].get("height") or 440)
    return (
        f'<div class="plotted"><div class="wide"><div class="plot" id="{name}" role="img" aria-label="{alt}" '
        f'style="min-height: {height}px"></div></div>\n'
        f'<script type="application/json" data-plot="{name}">{data}</script>\n{image}</div>\n'
    )
