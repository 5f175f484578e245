"""Where scripts or extensions are missing, the reader sees a sentence and the last good figure."""

from __future__ import annotations

import shutil

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

TIMELINE = "from sparda.widgets.prefetch_timeline import explore_prefetch\nexplore_prefetch()"
BLOCKS = """import torch
from sparda.figures.score_map import ScoreMaps
from sparda.spec import Sparsity
from sparda.widgets.block_scores import explore_blocks
positions = torch.arange(3, 512, 4)
scores = torch.rand(3, 2, len(positions), 32)
mass = scores.masked_fill(torch.arange(32) > positions[:, None] // 16, 0)
rule = Sparsity(budget_blocks=4, block_size=16, local_blocks=1)
explore_blocks(ScoreMaps(scores, mass / mass.sum(-1, keepdim=True), positions, ["text"] * 32, rule))"""
SHOWN = """() => [...document.querySelectorAll("figure")].filter((figure) => figure.querySelector(".plot"))
    .map((figure) => [figure.id, [...figure.querySelectorAll("img")].some((img) => img.naturalWidth > 50)])"""
WIDTHS = "[...document.querySelectorAll('.plot')].map((plot) => plot.querySelector('.main-svg').clientWidth)"
AS_NARROW = "Object.assign(document.createElement('style'), {textContent: '.plot {min-width: 0 !important}'})"
NO_BLOBS = "script-src 'self' 'unsafe-inline' 'unsafe-eval'"  # Lab runs; a widget's own script does not


@pytest.fixture(scope="module")
def book(lab):
    """A notebook of the two main widgets on made-up numbers, which no model need be read for."""
    import nbformat

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (TIMELINE, BLOCKS)])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, lab.books / "widgets.ipynb")
    return "widgets.ipynb"


@pytest.mark.parametrize(
    "missing",
    [{"without": "@jupyter-widgets/jupyterlab-manager"}, {"policy": NO_BLOBS}],
    ids=["no-widget-extension", "scripts-blocked"],
)
def test_a_widget_that_cannot_run_leaves_a_sentence_and_its_twin(missing, lab, book, page, report):
    report.heading(f"Widgets, {next(iter(missing.values()))}")
    page.open(lab.address(book), **missing)
    page.run_all(60)
    assert_twins(page)


def assert_twins(page) -> None:
    """Each of the two cells shows one figure and a sentence, and no word of a widget."""
    page.until("probe.seen().length === 2 && probe.seen().every((output) => output.figures)", 30)
    for output in page.ask("seen"):
        assert "No live figure here?" in output["text"]
        assert "VBox(" not in output["text"]
        assert "Error displaying widget" not in output["text"]
        assert output["figures"] == 1
    assert page.ask("outputs", "error") == []


def test_a_saved_notebook_that_has_lost_its_kernel_shows_the_twins(lab, book, chromium, report):
    from lab_driver import Page

    report.heading("Widgets, saved and opened without their kernel")
    shutil.copy(lab.books / book, lab.books / "saved.ipynb")
    for run in (True, False):
        page = Page(chromium.new_page(viewport={"width": 1000, "height": 1700}))  # plots are 568 px wide
        page.open(lab.address("saved.ipynb"))
        if run:
            page.run_all(60)
            assert [output["figures"] for output in page.ask("seen")] == [2, 1]  # live ones, and no twin
            assert "No live figure here?" not in str(page.ask("seen"))
            assert page.ask("faults") == []
            page.ask("save")
        else:
            assert_twins(page)
            assert page.ask("faults") == []
            report.picture(page.tab, "saved-and-opened-again")
        page.close()  # its kernel ends
    assert (lab.books / "saved.ipynb").stat().st_size < 200_000


def draw_all(tab) -> None:
    """Draw the gallery's plots that are not near the window too."""
    tab.evaluate("drawAll()")
    tab.wait_for_function("plots.every((plot) => plot.querySelector('.main-svg'))")


@pytest.fixture(scope="module")
def gallery(root, report):
    """The gallery of the committed figures, written anew."""
    from sparda.figures import gallery

    folder = report.folder / "figures"
    shutil.copytree(root / "figures", folder, ignore=shutil.ignore_patterns("*.html", "chapters", "failed"))
    return gallery.write(root, folder).as_uri()


def test_the_gallery_without_scripts_shows_every_figure_as_a_picture(gallery, chromium, report):
    report.heading("Gallery without scripts")
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(gallery)
    shown = tab.evaluate(SHOWN)
    assert shown
    assert not (bare := [name for name, picture in shown if not picture]), f"no picture: {bare}"
    report.picture(tab, "gallery-without-scripts")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_gallery_draws_every_figure_and_asks_for_no_network(gallery, chromium, report, scheme):
    report.heading(f"Gallery, {scheme}")
    context = chromium.new_context(color_scheme=scheme)
    tab = context.new_page()
    said = []
    tab.on("console", lambda message: message.type == "error" and said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda asked: asked.url.startswith("http") and said.append(f"asks for {asked.url}"))
    tab.goto(gallery)
    assert 0 < tab.evaluate("plots.filter((plot) => plot.drawn).length") < 10  # those near the window
    draw_all(tab)
    assert said == []
    report.picture(tab, f"gallery-{scheme}", full_page=True)
    context.close()


@pytest.mark.parametrize("width", [600, 1400])  # of the page, 32 px of it margins
def test_no_title_label_or_name_of_a_figure_is_cut_or_lies_on_another(gallery, chromium, root, width):
    context = chromium.new_context(viewport={"width": width, "height": 900})
    tab = context.new_page()
    tab.add_init_script(path=root / "tools" / "lab_probe.js")
    tab.add_init_script(f"addEventListener('DOMContentLoaded', () => document.head.append({AS_NARROW}))")
    tab.goto(gallery)
    draw_all(tab)
    tab.wait_for_function(f"{WIDTHS}.every((each) => each === {min(width - 32, 992)})")
    assert tab.evaluate("probe.faults()") == []
    context.close()


def test_on_a_narrow_screen_plots_keep_their_width_and_the_page_does_not_scroll_sideways(
    gallery, chromium, report
):
    report.heading("Gallery, 390 px")
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    tab = context.new_page()
    tab.goto(gallery)
    draw_all(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert min(tab.evaluate(WIDTHS)) >= 600
    report.picture(tab, "gallery-narrow")
    context.close()
