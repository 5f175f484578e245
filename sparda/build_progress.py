"""What a build says while a chapter runs: its cell, the time so far, and about how long the rest takes."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sparda.progress import duration, say

EVERY = 15.0  # seconds without a line before the next one comes


@dataclass
class Pace:
    """How long chapters take: as the last build or figures.yml says, scaled by what this build has shown.

    expected : chapter -> seconds; one that is not in it is not known
    """

    expected: dict[str, float]
    _took: float = 0.0
    _thought: float = 0.0

    def done(self, name: str, seconds: float) -> None:
        """A chapter has been run to its end."""
        if self.expected.get(name):
            self._took += seconds
            self._thought += self.expected[name]

    def left(self, names: list[str], spent: float = 0.0) -> str:
        """Words on the time that these chapters take, less what is spent of the first; empty if not known."""
        known = [self.expected.get(name, 0.0) for name in names]
        if not names or not all(known):
            return ""
        factor = self._took / self._thought if self._thought else 1.0
        rest = max(0.0, factor * known[0] - spent) + factor * sum(known[1:])
        return f"about {duration(rest)} left" if rest else "longer than expected"


@dataclass
class Watch:
    """One chapter that runs; ``cell`` is told of each cell as it starts."""

    name: str
    cells: int = 0
    pace: Pace | None = None
    began: float = field(default_factory=time.monotonic)
    _now: tuple[int, str, float] | None = None

    def cell(self, number: int, source: str) -> None:
        """Cell ``number``, counted from 0, starts."""
        self._now = (number, first_line(source), time.monotonic())

    def line(self) -> str:
        """What is said now."""
        total = time.monotonic() - self.began
        parts = [f"{duration(total)} so far"]
        if self._now:
            number, text, since = self._now
            parts.insert(
                0, f"cell {number + 1} of {self.cells} for {duration(time.monotonic() - since)}: {text}"
            )
        if left := self.pace.left([self.name], total) if self.pace else "":
            parts.append(left)
        return f"  {self.name}: {'; '.join(parts)}"

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Say a line every EVERY seconds until the block ends."""
        end = threading.Event()

        def speak() -> None:
            while not end.wait(EVERY):
                say(self.line())

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def first_line(source: str) -> str:
    """The first line of a cell that is no remark and, if there is one, no import; shortened."""
    lines = [line.strip() for line in source.splitlines() if line.strip() and line.strip()[0] not in "#%"]
    does = [line for line in lines if not re.match(r"(import|from)\b", line)]
    return f"`{(does or lines or [''])[0][:60]}`"


def register_engine() -> str:
    """Make papermill's usual engine tell ``watch=`` of each cell; return the engine's name."""
    from papermill.engines import NBClientEngine, papermill_engines

    class Told(NBClientEngine):
        """nbclient, and a watch."""

        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, *args: Any, **kwargs: Any) -> Any:
            watch, start = kwargs.pop("watch"), nb_man.cell_start
            watch.cells = len(nb_man.nb.cells)

            def cell_start(cell: Any, cell_index: int | None = None, **more: Any) -> Any:
                if cell.cell_type == "code":
                    watch.cell(cell_index or 0, cell.source)
                return start(cell, cell_index, **more)

            nb_man.cell_start = cell_start
            return super().execute_managed_notebook(nb_man, kernel_name, *args, **kwargs)

    papermill_engines.register("told", Told)
    return "told"
