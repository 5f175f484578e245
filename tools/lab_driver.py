"""JupyterLab on 127.0.0.1 in headless Chromium: open a notebook, run it, work its controls by keyboard.

The browser tests drive the chapters with it. Everything waits for a state of the page, never for a time.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BROWSER_FLAGS = [
    "--no-sandbox",  # Chromium refuses to run as root without it; only our own pages are opened
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
LAB_FLAGS = [
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--LabApp.expose_app_in_browser=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
]
SECONDS = 1000  # Playwright counts milliseconds


class Lab:
    """A server of its own: its settings, workspaces, runtime files and log lie in ``folder``.

    root   : what the browser sees, as with `make lab` the repository
    folder : below it; where the server may write. Notebooks to open belong into its ``books``
    """

    def __init__(self, root: Path, folder: Path):
        self.books, self._token = folder / "books", secrets.token_hex(16)
        self._books = self.books.relative_to(root).as_posix()
        self.books.mkdir(parents=True)
        subprocess.run([sys.executable, str(HERE / "lab_settings.py"), str(folder / "settings")], check=True)
        self._runtime, self._log = folder / "runtime", folder / "server.log"
        rooms = {
            "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
            "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
            "JUPYTER_CONFIG_DIR": folder / "config",
            "JUPYTER_RUNTIME_DIR": self._runtime,
        }
        static = ("SPARDA_STATIC", "PLOTLY_RENDERER")  # a reader's notebook sets neither
        environment = {name: value for name, value in os.environ.items() if name not in static}
        environment |= {name: str(path) for name, path in rooms.items()} | {"JUPYTER_TOKEN": self._token}
        command = [sys.executable, "-m", "jupyter", "lab", f"--ServerApp.root_dir={root}", *LAB_FLAGS]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._url = self._wait(limit=120)
        except BaseException:
            self.stop()
            raise

    def _wait(self, limit: float) -> str:
        """The server's address, which its runtime file says as soon as it listens."""
        end = time.monotonic() + limit
        while time.monotonic() < end and self._process.poll() is None:
            for path in self._runtime.glob("jpserver-*.json"):
                try:
                    return json.loads(path.read_text(encoding="utf-8"))["url"]
                except ValueError:
                    pass  # half written
            time.sleep(0.1)
        log = self._log.read_text(encoding="utf-8", errors="replace")[-1500:]
        raise RuntimeError(f"JupyterLab did not start; the end of its log:\n{log}")

    def address(self, book: str) -> str:
        return f"{self._url}lab/tree/{self._books}/{book}?token={self._token}&reset"

    def stop(self) -> None:
        """End the server; its kernels end with it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Control:
    """One control of a widget: its element, what it is, and its label."""

    element: object  # a Playwright Locator
    kind: str  # slider | select | text | checkbox | button
    label: str

    def press(self) -> str:
        """Change its value by keyboard alone; return what was pressed."""
        keys = self.element.evaluate("at => probe.keys(at)")
        self.element.focus()
        for key in keys:
            self.element.page.keyboard.press(key)
        return " ".join(keys)


@dataclass
class Page:
    """A browser page on one notebook. ``said``: what its console and its network complained about."""

    tab: object
    said: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.tab.add_init_script(path=HERE / "lab_probe.js")
        self.tab.on("console", lambda m: m.type == "error" and self.said.append(f"console: {m.text}"))
        self.tab.on("pageerror", lambda error: self.said.append(f"exception: {error}"))
        self.tab.on("response", lambda r: r.status >= 400 and self.said.append(f"{r.status}: {r.url}"))
        self.tab.route(lambda url: not url.startswith("http://127.0.0.1:"), self._refuse)

    def _refuse(self, route) -> None:
        """No chapter needs a network: what asks for one is refused, and told."""
        self.said.append(f"asks for the network: {route.request.url[:200]}")
        route.abort()

    def ask(self, question: str, argument=None):
        """The answer of a function of tools/lab_probe.js."""
        return self.tab.evaluate(f"(x) => probe.{question}(x)", argument)

    def until(self, condition: str, seconds: float, argument=None) -> None:
        self.tab.wait_for_function(condition, arg=argument, timeout=seconds * SECONDS)

    def open(self, address: str, *, without: str = "", policy: str = "") -> None:
        """Open a notebook and wait until its kernel is idle.

        without : a Lab extension whose scripts this page does not get, as if it were not installed
        policy  : a Content-Security-Policy, as of a browser or a company that blocks scripts
        """
        if without:
            self.tab.route(f"**/lab/extensions/{without}/**", lambda route: route.abort())
        if policy:  # the page is then ours and no longer the server's, which it must be allowed to ask
            self.tab.context.grant_permissions(["local-network-access"])
            self.tab.route(address, lambda route: self._under(policy, route))
        self.tab.goto(address)
        self.until("window.jupyterapp && probe.ready()", 60)

    @staticmethod
    def _under(policy: str, route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers=answer.headers | {"content-security-policy": policy})

    def run_all(self, seconds: float) -> None:
        """Run every cell, and wait until the last has ended and every figure and widget is drawn."""
        self.ask("run")
        self.until("window.ended", seconds)
        self.until("probe.drawn()", 30)
        self.ask("mark")

    def controls(self, view) -> list[Control]:
        """The controls of one widget in the order of the page; a row of buttons counts as one."""
        found = self.ask("controls", view.element_handle())
        return [
            Control(view.locator(f'[data-control="{n}"]'), kind, label)
            for n, (kind, label) in enumerate(found)
        ]

    def close(self) -> None:
        """End the notebook's kernel, so that the next one has the memory."""
        try:
            self.ask("close")
        finally:
            self.tab.close()
