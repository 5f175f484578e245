"""Every chapter in JupyterLab and Chromium: it runs, its widgets answer the keyboard, nothing complains."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]

CHAPTERS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
RUN_SECONDS = 240  # the limit of one chapter in profile smoke, for a slow machine; usual: 30
REACT_SECONDS = 60  # the limit until a key shows, be it a model that reads a prompt; usual: 0.3
DARK = ("02_gqa_selection", "04_uva_prefetch")  # the two main widgets are looked at in the dark theme too
ALLOWED: dict[str, str] = {}  # what the console may say: regular expression -> the reason
OTHERWISE = {  # a control that does not change the figure: what it changes
    "text of block": "sentence",
    "prompt": "nothing",  # until the button below it is pressed
}


def code(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def chapter(path: Path):
    """The chapter as a parameter; one that loads the weights is marked so."""
    reads_weights = re.search(r"sparda\.load\(|Subject|subject\(", code(path))
    return pytest.param(path, id=path.stem, marks=[pytest.mark.model] if reads_weights else [])


@pytest.mark.parametrize("path", [chapter(path) for path in CHAPTERS])
def test_a_chapter_runs_in_jupyterlab_and_its_widgets_answer_the_keyboard(path, lab, page, report):
    report.heading(path.stem)
    began = time.monotonic()
    page.open(lab.address(path.name))
    opened = time.monotonic()
    page.run_all(RUN_SECONDS)
    count = page.ask("count")
    report.say(f"opened in {opened - began:.1f} s, ran in {time.monotonic() - opened:.1f} s: {count}")
    faults = page.ask("outputs", "error") + page.ask("outputs", "stderr") + page.ask("faults")
    if page.ask("unrun"):
        faults.append(f"{page.ask('unrun')} cells did not run")
    wanted = len(re.findall(r"^(?!from|import).*\bexplore_\w+\(", code(path), re.MULTILINE))
    if count["views"] != wanted:
        faults.append(f"{count['views']} widgets are shown, and the chapter's cells make {wanted}")
    for number in range(count["views"]):
        faults += work(page, number, path.stem, report)
    for number, figure in enumerate(page.tab.locator("[data-figure]").all()):
        report.picture(figure, f"{path.stem}-figure-{number}")
    faults += page.ask("outputs", "error")
    faults += [said for said in page.said if not any(re.search(known, said) for known in ALLOWED)]
    for fault in dict.fromkeys(faults):
        report.say(f"**fault** {fault}")
    assert not faults, "\n".join(dict.fromkeys(faults))


def work(page, number: int, stem: str, report) -> list[str]:
    """Press every control of one widget; the faults found."""
    view = page.tab.locator(f'[data-view="{number}"]')
    name = f"{stem}-widget-{number}"
    report.picture(view, f"{name}-before")
    faults = []
    controls = page.controls(view)
    if "No live figure here?" in view.inner_text():
        faults.append(f"{name}: shows its last resort beside the live figure")
    if len(controls) < 3:
        faults.append(f"{name}: only {len(controls)} controls are found")
    for control in controls:
        if not control.label:
            faults.append(f"{name}: a {control.kind} has no label for a screen reader")
        faults += press(page, view, control, stem, report)
    faults += [f"{name}, after all keys: {fault}" for fault in page.ask("faults")]
    report.picture(view, f"{name}-after")
    if stem in DARK:
        show_dark(page, view, f"{name}-dark", report)
    return faults


def press(page, view, control, stem: str, report) -> list[str]:
    from playwright.sync_api import TimeoutError

    handle, part = view.element_handle(), OTHERWISE.get(control.label, "figure")
    page.ask("watch", handle)
    began = time.monotonic()
    keys = control.press()
    if part == "nothing":
        return []
    try:
        page.until("(asked) => probe.changed(asked)", REACT_SECONDS, [handle, part])
    except TimeoutError:
        said = " ".join(page.ask("problems"))
        return [f"{stem}: {keys} on {control.kind} '{control.label}' changes no {part}. {said}"]
    report.say(f"`{keys}` on {control.kind} *{control.label}*: {1000 * (time.monotonic() - began):.0f} ms")
    page.until("probe.idle()", 60)
    return [f"{stem}: {keys} on '{control.label}': {said}" for said in page.ask("problems")]


def show_dark(page, view, name: str, report) -> None:
    page.ask("theme", "JupyterLab Dark")
    page.until("probe.themed(false)", 30)
    report.picture(view, name)
    page.ask("theme", "JupyterLab Light")
    page.until("probe.themed(true)", 30)
