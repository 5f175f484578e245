"""One JupyterLab and one Chromium for all chapters, and the report that the tests leave in build/browser/."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sparda.figures.gallery import find_browser

WIDTH, HEIGHT = 1280, 1700  # a laptop's width; tall, so that a widget fits into one picture


@dataclass
class Report:
    """What the tests saw, chapter by chapter, in Markdown."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def heading(self, text: str) -> None:
        self.lines += ["", f"## {text}", ""]

    def say(self, text: str) -> None:
        self.lines.append(f"- {text}")

    def picture(self, locator, name: str, **options) -> None:
        locator.screenshot(path=self.folder / f"{name}.png", **options)
        self.lines.append(f"- ![{name}]({name}.png)")

    def write(self) -> None:
        seconds = time.monotonic() - self.began
        title = ["# The chapters in JupyterLab and headless Chromium", "", f"{seconds:.0f} s in all."]
        (self.folder / "report.md").write_text("\n".join([*title, *self.lines, ""]), encoding="utf-8")


@pytest.fixture(scope="package")
def report(root):
    folder = root / "build" / "browser"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    told = Report(folder)
    yield told
    told.write()


@pytest.fixture(scope="package")
def chromium(report):
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    from lab_driver import BROWSER_FLAGS

    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=BROWSER_FLAGS)
        report.say(f"Chromium {browser.version}")
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def lab(root, report, chromium):
    """JupyterLab over copies of the chapters: it saves as it pleases, and the repository stays as it is."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    from lab_driver import Lab

    server = Lab(root, report.folder / "lab")
    for path in (root / "notebooks").glob("*.*"):
        shutil.copy(path, server.books)
    yield server
    server.stop()


@pytest.fixture
def page(chromium, report, request):
    """A fresh page; its last state is kept as a picture, and its kernel ends with it."""
    from lab_driver import Page

    opened = Page(chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}))
    yield opened
    report.picture(opened.tab, f"{request.node.callspec.id}-end")
    opened.close()
